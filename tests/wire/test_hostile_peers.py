"""Any bytes at all reach a living server and a living client: both go on, or end that connection, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_actors import Client, McpError, Server
from mcp_actors.testing import RawServer, ScriptedPeer, raw_client, raw_server
from tests.messages import modern_meta, modern_request

METHODS = [
    "completion/complete",
    "initialize",
    "initialized",
    "logging/setLevel",
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/progress",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "server/discover",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
    "unknown/method",
]
META = modern_meta()

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
NAMES = st.sampled_from(
    [
        "_meta",
        "argument",
        "arguments",
        "capabilities",
        "cursor",
        "inputResponses",
        "level",
        "name",
        "notifications",
    ]
) | st.sampled_from(
    ["progress", "progressToken", "protocolVersion", "ref", "requestId", "requestState", "resultType", "uri"]
)
KNOWN = st.sampled_from(["add", "note://one", "hello", "2025-11-25", "debug"])
PARAMS = st.dictionaries(NAMES, VALUES | st.just(META) | KNOWN, max_size=5)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(0, 3) | SCALARS,
        "method": st.sampled_from(METHODS) | VALUES,
        "params": PARAMS | PARAMS.map(lambda params: {**params, "_meta": META}) | VALUES,
        "result": PARAMS | VALUES,
        "error": VALUES | st.just({"code": -1, "message": "no"}),
    },
)
# Python writes NaN and half characters, which no JSON has: all the better.
HOSTILE = st.binary(max_size=60) | (MESSAGES | st.lists(MESSAGES, max_size=3)).map(
    lambda message: json.dumps(message).encode()
)
TRICKY = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":1e999,"b":1}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\\ud800"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"1" * 5000 + b"}",
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    b'{"jsonrpc":"2.0","id":99999999999999999999,"method":"ping"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e999}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{},"progress":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":1e999}}',
    b'{"jsonrpc":"2.0","id":1,"result":1e999}',
    b"[" * 5000,
    b"\x00",
    b"",
]


def make_server() -> Server:
    server = Server("under test")

    @server.tool
    async def add(a: int, b: int = 0) -> int:
        return a + b

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def hello(name: str = "you") -> str:
        return f"Hello {name}"

    return server


def one_line(data: bytes) -> bytes:
    """What a binding with newline frames would hand on."""
    return data.replace(b"\n", b" ")


async def answered(peer: ScriptedPeer, id: str) -> Any:
    """The answer to a good request of the stateless revision, whatever else was sent before it."""
    await peer.send(modern_request(id, "tools/list"))
    while True:
        message = await peer.receive()
        for each in message if isinstance(message, list) else [message]:
            assert each.get("id", 0) is not None
            if each.get("id") == id:
                return each


@settings(max_examples=60)
@given(st.lists(HOSTILE, max_size=6))
@example(TRICKY)
async def test_a_server_answers_on(messages: list[bytes]) -> None:
    async with raw_client(make_server()) as peer:
        for data in messages:
            await peer.send(one_line(data))
        answer = await answered(peer, "still there?")
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["add"]


@settings(max_examples=60)
@given(st.lists(HOSTILE, max_size=6))
@example(TRICKY)
async def test_a_server_answers_on_in_a_legacy_session(messages: list[bytes]) -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-11-25")
        for data in messages:
            await peer.send(one_line(data))
        answer = await answered(peer, "still there?")
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["add"]


@pytest.mark.parametrize("data", TRICKY, ids=range(len(TRICKY)))
async def test_each_tricky_message_alone(data: bytes) -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-11-25")
        await peer.send(one_line(data))
        assert "result" in await answered(peer, "still there?")


@settings(max_examples=60)
@given(st.lists(HOSTILE, max_size=6), st.sampled_from(["legacy", "modern"]))
@example(TRICKY, "legacy")
@example(TRICKY, "modern")
async def test_a_client_goes_on(messages: list[bytes], era: str) -> None:
    """The call in flight may be answered by a hostile message that hits its id; the next one gets its own answer."""
    sent = trio.Event()
    async with raw_server() as there, trio.open_nursery() as nursery:
        nursery.start_soon(hostile_server, there, messages, sent)
        async with Client(there.transport, era=era) as client:
            try:
                await client.request("acme/hostile")
            except McpError:
                pass
            await sent.wait()
            await trio.testing.wait_all_tasks_blocked()
            answer = await client.request("acme/thing")
        nursery.cancel_scope.cancel()
    assert answer["good"] is True


async def hostile_server(there: RawServer, messages: list[bytes], sent: trio.Event) -> None:
    """Greets as it should, and answers every request, one of them after having sent ``messages``."""
    peer = await there.accept()
    while True:
        try:
            request = await peer.receive()
        except trio.EndOfChannel:
            return
        if "method" not in request or "id" not in request:
            continue
        result: dict[str, Any] = {"resultType": "complete", "good": True}
        if request["method"] == "initialize":
            result |= {"protocolVersion": "2025-11-25", "serverInfo": {"name": "hostile", "version": "0"}}
        if request["method"] == "server/discover":
            result |= {"supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}
        if request["method"] == "acme/hostile":
            for data in messages:
                await peer.send(one_line(data))
        result["capabilities"] = {}
        await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": result})
        if request["method"] == "acme/hostile":
            sent.set()
