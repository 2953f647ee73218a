"""Anything at all is sent, to a server and to a client: an error or a closed connection, never a dead process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_actors import Client, McpError, Server
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitResult
from tests.messages import BATCHING, VERSION

from .conftest import run_in_virtual_time
from .peers import (
    LEGACY,
    MODERN,
    Dials,
    Serves,
    arrived,
    call,
    cancelled,
    greet,
    modern_call,
    notification,
    progressed,
    reply,
    request,
    settled,
)
from .witness import Witness


# Each example in a run of its own, which the plugin would give the real clock.
def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(partial(test, *args, **kwargs))

    return run


SLOW = settings(max_examples=60, suppress_health_check=list(HealthCheck))

# -- what is sent ----------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
IDS: st.SearchStrategy[Any] = (
    st.sampled_from([1, 2, 0, -1, "1", "", "x", 2**64, 1.0, True, None, [], {}]) | SCALARS
)
GOOD = [
    request(1, "ping"),
    request(
        1,
        "initialize",
        {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}},
    ),
    request(2, "server/discover", {"_meta": {VERSION: MODERN}}),
    request(2, "tools/list"),
    request("r", "resources/read", {"uri": "x:y"}),
    request("g", "prompts/get", {"name": "p", "arguments": {}}),
    request("l", "logging/setLevel", {"level": "info"}),
    request(
        "c",
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}},
    ),
    request(
        "e", "elicitation/create", {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    ),
    request("s", "sampling/createMessage", {"messages": [], "maxTokens": 1}),
    call(3, "echo", text="x"),
    call(4, "hang", token="t"),
    modern_call(5, "hang"),
    cancelled(4),
    progressed(1, 1),
    notification("notifications/initialized"),
    notification("notifications/message", level="info", data=1),
    notification("notifications/resources/updated", uri="x:y"),
    notification("notifications/subscriptions/acknowledged", _meta={}),
    reply(1),
    {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}},
]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A good message with some of its members, at any depth, replaced, removed or added."""
    message = json.loads(json.dumps(draw(st.sampled_from(GOOD))))
    for _ in range(draw(st.integers(1, 3))):
        place = message
        while True:
            inner = [key for key, value in place.items() if isinstance(value, dict) and value]
            if not inner or draw(st.booleans()):
                break
            place = place[draw(st.sampled_from(inner))]
        key = draw(st.sampled_from([*place, "_meta", "id"]) if place else st.text(max_size=5))
        if draw(st.booleans()):
            place[key] = draw(IDS if key in ("id", "requestId", "progressToken") else VALUES)
        else:
            place.pop(key, None)
    return message


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good message with some bytes changed."""
    data = bytearray(encoded(draw(st.sampled_from(GOOD))))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


LINES = st.one_of(
    st.binary(max_size=100),
    VALUES.map(encoded),
    mutated().map(encoded),
    damaged(),
    st.sampled_from(GOOD).map(encoded),
    st.lists(mutated(), max_size=4).map(encoded),
    st.sampled_from(
        [b"[" * 1000, b'{"a":' * 500, b"\xff\xfe", b"\x00", b"[]", b"[[]]", b"null", b"1" * 5000]
    ),
)
SENT = st.lists(LINES, min_size=1, max_size=12)


# -- who gets it -----------------------------------------------------------------------------------------------------


class Pipe:
    """A channel over byte streams, and the other end of the streams, to write anything to."""

    def __init__(self, limit: int = 10_000) -> None:
        ours, self.far = trio.testing.memory_stream_pair()
        self.near = LineChannel(ours, ours, max_message_bytes=limit)
        self.peer = ScriptedPeer(LineChannel(self.far, self.far))

    async def send(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            try:
                await self.far.send_all(line + b"\n")
            except trio.BrokenResourceError:
                return  # it has had enough of us
            await trio.lowlevel.checkpoint()
        await settled()

    async def heard(self) -> list[Any]:
        """Everything that came back: whole messages, or this raises."""
        messages = await arrived(self.peer)
        for message in messages:
            for each in message if isinstance(message, list) else [message]:
                assert each["jsonrpc"] == "2.0"
        return messages


@asynccontextmanager
async def served(version: str | None) -> AsyncIterator[tuple[Witness, Pipe, ScriptedPeer]]:
    """A server with a hostile connection and an honest one."""
    witness = Witness()

    @witness.server.prompt
    async def p(a: str = "") -> str:
        return a

    @witness.server.resource("x:{name}")
    async def resource(name: str) -> str:
        return name

    hostile, honest = Pipe(), Pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(hostile.near, honest.near))
        await honest.peer.initialize(LEGACY)
        if version is not None:
            await hostile.peer.initialize(version)
        yield witness, hostile, honest.peer
        nursery.cancel_scope.cancel()


# -- servers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, LEGACY, BATCHING])
@SLOW
@given(lines=SENT)
@in_virtual_time
async def test_a_server_survives_any_lines(version: str | None, lines: list[bytes]) -> None:
    async with served(version) as (witness, hostile, honest):
        await hostile.send(lines)
        await hostile.heard()
        # Neither the sibling nor, if it is still there, the hostile connection itself has come to harm.
        answer = await honest.request("after", "tools/call", {"name": "echo", "arguments": {"text": "alive"}})
        assert answer["result"]["content"][0]["text"] == "alive"
        if len(witness.server.tree().sessions) == 2:
            await hostile.send([encoded(request("still there", "ping"))])
            assert any("still there" in json.dumps(message) for message in await hostile.heard())
        await hostile.far.aclose()
        await trio.sleep(witness.server.limits.drain_grace + 2)
        [session] = witness.server.tree().sessions
        assert session.calls == ()
        assert witness.server.tree().limiter.inside == 0


@SLOW
@given(data=st.lists(st.binary(max_size=200), max_size=10))
@in_virtual_time
async def test_a_server_survives_any_bytes_in_any_pieces(data: list[bytes]) -> None:
    async with served(None) as (_, hostile, honest):
        for piece in data:
            try:
                await hostile.far.send_all(piece)
            except trio.BrokenResourceError:
                break
            await trio.lowlevel.checkpoint()
        await hostile.far.aclose()
        assert "result" in await honest.request("after", "ping")


@pytest.mark.parametrize("cut", range(0, 400, 7))
async def test_a_server_survives_a_connection_cut_at_any_byte(cut: int) -> None:
    async with served(None) as (witness, hostile, honest):
        conversation = b"".join(
            encoded(message) + b"\n" for message in [GOOD[1], GOOD[15], call(3, "hang"), GOOD[0]]
        )
        await hostile.far.send_all(conversation[:cut])
        await hostile.far.aclose()
        assert "result" in await honest.request("after", "ping")
        await trio.sleep(witness.server.limits.drain_grace + 2)
        assert len(witness.server.tree().sessions) == 1


MALFORMED = [
    (b'{"jsonrpc": "2.0", "id": 1, "method": "pi', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": ' + b"[" * 200 + b"]" * 200 + b"}", -32700),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}', -32600),
    (b"[]", -32600),
    (b"5", -32600),
]


@pytest.mark.parametrize(("line", "code"), MALFORMED)
async def test_a_malformed_message_gets_its_error_and_the_connection_goes_on(line: bytes, code: int) -> None:
    async with served(LEGACY) as (witness, hostile, _):
        await hostile.send([line])
        [message] = await hostile.heard()
        assert message["error"]["code"] == code
        assert message.get("id") in (1, 2) or "id" not in message
        assert "result" in await hostile.peer.request("after", "ping")
        assert sum(session.counters.malformed for session in witness.server.tree().sessions) == 1


async def test_a_message_that_is_too_long_ends_its_connection_with_an_error() -> None:
    async with served(LEGACY) as (witness, hostile, honest):
        await hostile.send([encoded(call(1, "hang")), b"x" * 20_000])
        [message] = await hostile.heard()
        assert message["error"]["code"] == -32600
        assert "10000" in message["error"]["message"]
        with pytest.raises(trio.EndOfChannel):
            await hostile.peer.receive()
        assert witness.cancelled == [1]
        assert "result" in await honest.request("after", "ping")


async def test_what_cannot_be_answered_within_the_limit_harms_nobody() -> None:
    """An error that repeated the id would be longer than the connection carries."""
    async with served(LEGACY) as (witness, hostile, honest):
        line = encoded(request("", "q"))
        await hostile.send([line.replace(b'""', b'"' + b"x" * (9_998 - len(line)) + b'"')])
        [message] = await hostile.heard()
        assert message["error"]["code"] == -32600
        assert "id" not in message
        assert "result" in await hostile.peer.request("after", "ping")
        assert "result" in await honest.request("after", "ping")
        assert len(witness.server.tree().sessions) == 2


# -- clients ---------------------------------------------------------------------------------------------------------


async def elicitation(question: Any) -> ElicitResult:
    await trio.lowlevel.checkpoint()
    return ElicitResult("decline")


@pytest.mark.parametrize("version", [LEGACY, BATCHING])
@SLOW
@given(lines=SENT)
@in_virtual_time
async def test_a_client_survives_any_lines(version: str, lines: list[bytes]) -> None:
    hostile = Pipe()
    server = Server("another")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet, hostile.peer, version)
        options: dict[str, Any] = {
            "elicitation": elicitation,
            "roots": ["file:///x"],
            "on_log": lambda *args: None,
            "on_change": lambda *args: None,
        }
        async with (
            Client(Dials([hostile.near]), era="legacy", **options) as client,
            Client(server) as sibling,
        ):
            await settled()
            await hostile.send(lines)
            await hostile.heard()
            await sibling.ping()
            assert client.tree().pending == ()
        nursery.cancel_scope.cancel()


@SLOW
@given(lines=SENT)
@in_virtual_time
async def test_a_client_survives_any_answer_to_its_greeting(lines: list[bytes]) -> None:
    hostile, again = Pipe(), Pipe()
    baseline = trio.lowlevel.current_statistics().tasks_living
    await hostile.send(lines)
    with suppress(McpError):
        async with Client(Dials([hostile.near, again.near]), timeout=1, probe_timeout=1):
            pass
    assert trio.lowlevel.current_statistics().tasks_living == baseline


async def test_a_client_answers_the_good_part_of_a_batch() -> None:
    hostile = Pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet, hostile.peer, BATCHING)
        async with Client(Dials([hostile.near]), era="legacy") as client:
            await settled()
            await hostile.send([encoded([request("p", "ping"), 5])])
            assert await hostile.heard() == [[reply("p")]]
            assert client.tree().counters.malformed == 1
