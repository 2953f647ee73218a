"""What a server may ask of a client, what a client may answer, and the codes of what neither may do."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Context, MissingCapability, ResourceNotFound, RpcError, Server
from mcp_actors._eras.convert import history_problem
from mcp_actors.testing import raw_client
from mcp_actors.types import SamplingMessage, TextContent, ToolResultContent, ToolUseContent

from .peers import EVERY, LEGACY, MODERN, ask, begin
from .peers import meta as modern_meta

USE, OTHER = ToolUseContent("1", "add", {}), ToolUseContent("2", "add", {})
RESULT, OTHERS = ToolResultContent("1", []), ToolResultContent("2", [])
TEXT = TextContent("hi")


def conversation(*turns: tuple[str, Any]) -> list[SamplingMessage]:
    return [SamplingMessage(role, content) for role, content in turns]  # type: ignore[arg-type]


BALANCED = [
    conversation(("user", TEXT)),
    conversation(("assistant", USE), ("user", RESULT)),
    conversation(("user", TEXT), ("assistant", [TEXT, USE, OTHER]), ("user", [OTHERS, RESULT])),
]
UNBALANCED = [
    conversation(("assistant", USE)),
    conversation(("user", RESULT)),
    conversation(("assistant", USE), ("user", TEXT)),
    conversation(("assistant", USE), ("user", [RESULT, TEXT])),
    conversation(("assistant", USE), ("user", OTHERS)),
    conversation(("assistant", [USE, OTHER]), ("user", RESULT)),
    conversation(("assistant", USE), ("assistant", RESULT)),
    conversation(("user", USE), ("user", RESULT)),
    conversation(("assistant", USE), ("user", TEXT), ("user", RESULT)),
]


@pytest.mark.parametrize("messages", BALANCED)
def test_uses_with_their_results_are_right(messages: list[SamplingMessage]) -> None:
    assert history_problem(messages) is None


@pytest.mark.parametrize("messages", UNBALANCED)
async def test_a_history_that_does_not_belong_together_is_not_sent(messages: list[SamplingMessage]) -> None:
    server = Server("asks")
    raised: list[str] = []

    @server.tool
    async def draw(ctx: Context) -> None:
        """Asks a model."""
        try:
            await ctx.sample(messages, max_tokens=5)
        except Exception as error:
            raised.append(type(error).__name__)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25", {"sampling": {"tools": {}}})
        assert "result" in await peer.request(1, "tools/call", {"name": "draw"})
    assert raised == ["LocalProtocolError"]


@pytest.mark.parametrize(
    ("version", "sampling", "context", "may"),
    [
        ("2025-11-25", {}, "thisServer", False),
        ("2025-11-25", {"context": {}}, "allServers", True),
        ("2025-11-25", {}, "none", True),
        ("2025-06-18", {}, "thisServer", True),
        (MODERN, {}, "thisServer", False),
        (MODERN, {"context": {}}, "thisServer", True),
    ],
)
async def test_the_context_of_other_servers_is_for_clients_that_declare_it(
    version: str, sampling: Any, context: Any, may: bool
) -> None:
    server = Server("asks")
    missing: list[Any] = []

    @server.tool
    async def draw(ctx: Context) -> None:
        """Asks a model."""
        try:
            await ctx.sample("hi", max_tokens=5, include_context=context)
        except MissingCapability as error:
            missing.append(error.data["requiredCapabilities"])

    async with raw_client(server) as peer:
        await begin(peer, version, {"sampling": sampling})
        meta = {} if version != MODERN else {"_meta": modern_meta({"sampling": sampling})}
        params = {"name": "draw", "arguments": {}, **meta}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        first = await peer.receive()
    asked = first.get("method") == "sampling/createMessage" or "inputRequests" in first.get("result", {})
    assert asked == may
    assert missing == ([] if may else [{"sampling": {"context": {}}}])


@pytest.mark.parametrize(
    ("uri", "good"),
    [("file:///a", True), ("FILE:///a", True), ("file://host/a", True), ("https://a/", False), ("/a", False)],
)
async def test_roots_are_files(uri: str, good: bool) -> None:
    server = Server("asks")
    got: list[str] = []

    @server.tool
    async def look(ctx: Context) -> None:
        """Asks for roots."""
        try:
            got.extend(root.uri for root in await ctx.list_roots())
        except Exception as error:
            got.append(type(error).__name__)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25", {"roots": {}})
        params = {"name": "look", "arguments": {}}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        question = await peer.receive()
        answer = {"roots": [{"uri": uri}]}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        await peer.receive()
    assert got == ([uri] if good else ["RemoteProtocolError"])


@pytest.mark.parametrize("version", EVERY)
async def test_errors_have_codes_of_the_clients_own_revision(version: str) -> None:
    server = Server("fails")
    errors = {
        "gone": ResourceNotFound("x://gone"),
        "bare": RpcError(-32002, "gone"),
        "needy": MissingCapability({"roots": {}}),
        "visit": RpcError(-32042, "sign in", {"elicitations": []}),
        "own": RpcError(-31999, "mine"),
    }

    @server.method("acme/fail")
    async def fail(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        raise errors[params["how"]]

    async with raw_client(server) as peer:
        await begin(peer, version)
        codes = {
            how: (await ask(peer, version, how, "acme/fail", {"how": how}))["error"]["code"] for how in errors
        }
    modern, visits = version not in LEGACY, version == "2025-11-25"
    assert codes == {
        "gone": -32602 if modern else -32002,
        "bare": -32602 if modern else -32002,
        "needy": -32021 if modern else -32602,
        "visit": -32042 if visits else -32603,
        "own": -31999,
    }
