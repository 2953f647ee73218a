"""What each revision does not know never reaches its clients: every row of the ladder, through a real server."""

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


def since(version: str, first: str, *members: str) -> set[str]:
    return set(members) if version >= first else set()


@pytest.mark.parametrize("version", EVERY)
class TestEachRevision:
    async def test_implementation(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            if version == MODERN:
                found = (await result(peer, version, "server/discover"))["_meta"]
                info = found[SERVER_INFO]
            else:
                info = (await peer.initialize(version))["serverInfo"]
            assert set(info) == {
                "name",
                "version",
                *since(version, "2025-06-18", "title"),
                *since(version, "2025-11-25", "description", "websiteUrl", "icons"),
            }

    async def test_tools(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            tools = {tool["name"]: tool for tool in (await result(peer, version, "tools/list"))["tools"]}
            assert set(tools["point"]) == {
                "name",
                "description",
                "inputSchema",
                *since(version, "2025-03-26", "annotations"),
                *since(version, "2025-06-18", "title", "outputSchema", "_meta"),
                *since(version, "2025-11-25", "icons"),
            }
            # What is no object is described in the stateless revision only.
            assert ("outputSchema" in tools["numbers"]) == (version == MODERN)

    async def test_structured_content(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            point = (await call(peer, version, 1, "point"))["result"]
            assert point.get("structuredContent") == ({"x": 1, "y": 2} if version >= "2025-06-18" else None)
            assert point["content"] == [{"type": "text", "text": '{"x":1,"y":2}'}]
            numbers = (await call(peer, version, 2, "numbers"))["result"]
            assert numbers.get("structuredContent") == ([1, 2] if version == MODERN else None)
            assert numbers["content"] == [{"type": "text", "text": "[1,2]"}]

    async def test_content_blocks(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            text, audio, link, embedded = (await call(peer, version, 1, "media"))["result"]["content"]
            assert text["annotations"] == {"priority": 0.5} | (
                {"lastModified": STAMP} if version >= "2025-06-18" else {}
            )
            for block in (text, embedded["resource"]):
                assert ("_meta" in block) == (version >= "2025-06-18")
            assert audio["type"] == ("audio" if version >= "2025-03-26" else "text")
            assert link["type"] == ("resource_link" if version >= "2025-06-18" else "text")
            if version < "2025-06-18":
                assert "x://a" in link["text"]  # nothing is lost without a word

    async def test_prompts(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            (prompt,) = (await result(peer, version, "prompts/list"))["prompts"]
            assert set(prompt) == {
                "name",
                "description",
                "arguments",
                *since(version, "2025-06-18", "title", "_meta"),
                *since(version, "2025-11-25", "icons"),
            }

    async def test_resources(self, version: str) -> None:
        async with raw_client(make_server()) as peer:
            await begin(peer, version)
            (resource,) = (await result(peer, version, "resources/list"))["resources"]
            (template,) = (await result(peer, version, "resources/templates/list"))["resourceTemplates"]
            for each, own in ((resource, {"uri", "annotations"}), (template, {"uriTemplate"})):
                assert set(each) == {
                    "name",
                    "description",
                    *own,
                    *since(version, "2025-06-18", "title", "_meta"),
                    *since(version, "2025-11-25", "icons"),
                }
            assert ("lastModified" in resource["annotations"]) == (version >= "2025-06-18")
            (contents,) = (await result(peer, version, "resources/read", uri="x://a"))["contents"]
            assert ("_meta" in contents) == (version >= "2025-06-18")

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
