"""What a revision does not know never reaches its clients: each kind of message, through a real server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mcp_actors import Context, Server
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import (
    Annotations,
    AudioContent,
    CallToolResult,
    CreateMessageParams,
    EmbeddedResource,
    Icon,
    ResourceLink,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from tests.messages import SERVER_INFO, modern_meta

from .peers import EVERY, MODERN, ask, begin, call, modern

ICONS = [Icon("https://example.org/i.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
STAMP = "2026-01-01T00:00:00Z"


@attrs.define
class Point:
    x: int
    y: int


def make_server() -> Server:
    server = Server(
        "ladder",
        version="1",
        title="Ladder",
        description="Steps",
        website_url="https://example.org",
        icons=ICONS,
    )

    @server.tool(
        title="A point",
        icons=ICONS,
        meta={"acme/x": 1},
        annotations=ToolAnnotations(title="P", read_only_hint=True),
    )
    async def point() -> Point:
        """Where."""
        return Point(1, 2)

    @server.tool
    async def numbers() -> list[int]:
        """Some numbers."""
        return [1, 2]

    @server.tool
    async def media() -> CallToolResult:
        """One block of each kind."""
        return CallToolResult(
            [
                TextContent(
                    "t", annotations=Annotations(priority=0.5, last_modified=STAMP), meta={"acme/x": 1}
                ),
                AudioContent("UklGRg==", "audio/wav"),
                ResourceLink("x://a", "a", title="A", description="the first"),
                EmbeddedResource(TextResourceContents("x://a", "text", meta={"acme/x": 1})),
            ]
        )

    @server.tool
    async def work(ctx: Context) -> str:
        """Reports progress."""
        await ctx.progress(1, 2.5, "half way")
        return "done"

    @server.tool
    async def draw(ctx: Context) -> str:
        """Asks a model."""
        blocks = [TextContent("one"), TextContent("two", meta={"acme/x": 1})]
        params = CreateMessageParams([SamplingMessage("user", blocks)], 10)
        return str((await ctx.ask({"q": params}))["q"].content.text)

    server.add_prompt(greet, title="Greeting", icons=ICONS, meta={"acme/x": 1})
    server.add_resource(
        "x://a",
        lambda: TextResourceContents("x://a", "text", meta={"acme/x": 1}),
        name="a",
        title="A",
        icons=ICONS,
        meta={"acme/x": 1},
        annotations=Annotations(audience=["user"], last_modified=STAMP),
    )
    server.add_resource("x://{b}", lambda b: "text", name="b", title="B", icons=ICONS, meta={"acme/x": 1})

    @server.completion(prompt="greet", argument="name")
    async def names(value: str, settled: dict[str, str]) -> list[str]:
        return [value, *settled.values()]

    return server


async def greet(name: str) -> str:
    """Greets."""
    return name


async def result(peer: ScriptedPeer, version: str, method: str, **params: Any) -> Any:
    return (await ask(peer, version, method, method, params))["result"]


# One member that is younger than the first revision, for each kind of answer: (method, params, where, since).
ANSWERS: list[tuple[str, dict[str, Any], tuple[str | int, ...], str]] = [
    ("tools/list", {}, ("tools", 0, "annotations"), "2025-03-26"),
    ("tools/list", {}, ("tools", 0, "icons"), "2025-11-25"),
    ("tools/list", {}, ("tools", 1, "outputSchema"), MODERN),  # what is no object has none before
    ("tools/call", {"name": "point"}, ("structuredContent",), "2025-06-18"),
    ("tools/call", {"name": "numbers"}, ("structuredContent",), MODERN),
    ("tools/call", {"name": "media"}, ("content", 0, "annotations", "lastModified"), "2025-06-18"),
    (
        "tools/call",
        {"name": "media"},
        ("content", 1, "mimeType"),
        "2025-03-26",
    ),  # audio is told in words before
    ("tools/call", {"name": "media"}, ("content", 2, "uri"), "2025-06-18"),  # and so is a link
    ("tools/call", {"name": "media"}, ("content", 3, "resource", "_meta"), "2025-06-18"),
    ("prompts/list", {}, ("prompts", 0, "title"), "2025-06-18"),
    ("prompts/list", {}, ("prompts", 0, "icons"), "2025-11-25"),
    ("resources/list", {}, ("resources", 0, "annotations", "lastModified"), "2025-06-18"),
    ("resources/list", {}, ("resources", 0, "icons"), "2025-11-25"),
    ("resources/templates/list", {}, ("resourceTemplates", 0, "title"), "2025-06-18"),
    ("resources/read", {"uri": "x://a"}, ("contents", 0, "_meta"), "2025-06-18"),
]


@pytest.mark.parametrize("version", EVERY)
class TestEachRevision:
    """A server writes whatever it sends in the revision that its client speaks.

    What each revision knows is the affair of ``eras/test_convert_revisions.py``.
    """

    async def test_answers(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for method, params, (*way, member), first in ANSWERS:
                found = await result(peer, version, method, **params)
                for step in way:
                    found = found[step]
                assert (member in found) == (version >= first), (method, way, member)

    async def test_what_cannot_be_said_is_told_in_words(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            numbers = (await call(peer, version, 1, "numbers"))["result"]
            assert numbers["content"] == [{"type": "text", "text": "[1,2]"}]
            _, _, link, _ = (await call(peer, version, 2, "media"))["result"]["content"]
            assert "x://a" in (link["uri"] if version >= "2025-06-18" else link["text"])

    async def test_introduction(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            if version == MODERN:
                info = (await result(peer, version, "server/discover"))["_meta"][SERVER_INFO]
            else:
                info = (await peer.initialize(version))["serverInfo"]
            assert ("title" in info) == (version >= "2025-06-18")
            assert ("icons" in info) == (version >= "2025-11-25")

    async def test_progress(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            for token in (0, "", 5, "t"):  # presence counts, not truth
                meta: dict[str, Any] = {"progressToken": token}
                if version == MODERN:
                    meta |= modern_meta()
                params = {"name": "work", "_meta": meta}
                await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                report = (await peer.receive())["params"]
                message = {"message": "half way"} if version >= "2025-03-26" else {}
                assert report == {"progressToken": token, "progress": 1, "total": 2.5, **message}
                assert type(report["progressToken"]) is type(token)
                assert (await peer.receive())["id"] == 1

    async def test_completion_context(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            params = {
                "ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "a"},
                "context": {"arguments": {"other": "b"}},
            }
            completion = (await result(peer, version, "completion/complete", **params))["completion"]
            assert completion["values"] == ["a", "b"]  # what came is used, whatever the revision

    async def test_sampling_in_the_form_of_the_revision(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            answer = {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "m"}
            if version == MODERN:
                params = {"name": "draw"}
                first = (await modern(peer, 1, "tools/call", params, capabilities={"sampling": {}}))["result"]
                messages = first["inputRequests"]["q"]["params"]["messages"]
            else:
                await begin(peer, version, {"sampling": {}})
                await peer.send(
                    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "draw"}}
                )
                question = await peer.receive()
                messages = question["params"]["messages"]
                await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
                assert (await peer.receive())["result"]["content"][0]["text"] == "ok"
            if version >= "2025-11-25":
                assert [len(message["content"]) for message in messages] == [2]
            else:  # one block a message
                assert [message["content"]["text"] for message in messages] == ["one", "two"]


async def test_unknown_members_that_arrive_are_no_fault() -> None:
    for version in EVERY:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            params = {"name": "point", "arguments": {}, "acme": {"x": 1}, "task": {"ttl": 5}}
            assert "result" in await ask(peer, version, 1, "tools/call", params)
