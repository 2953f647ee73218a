"""One typed exception for each failure at the public edge, and never a group of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from mcp_actors import (
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    InputRequired,
    LocalProtocolError,
    McpError,
    RemoteProtocolError,
    RpcError,
    Server,
    TransportNotFound,
    UnsupportedVersion,
)
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_server

from .peers import (
    Dials,
    failure,
    faulty_pair,
    met,
    reply,
    settled,
)

SECRET = "hunter2"


async def answer_all(peer: ScriptedPeer, answer: Callable[[Any], Any]) -> None:
    while True:
        asked = await peer.receive()
        if "id" in asked:
            await peer.send(answer(asked))


ANSWERS: list[tuple[Any, type[Exception], str]] = [
    ({"result": 5}, RemoteProtocolError, "no object"),
    ({"result": {"content": 5}}, RemoteProtocolError, "malformed"),
    ({"result": {"content": [{"type": "text"}]}}, RemoteProtocolError, "malformed"),
    ({"result": {"resultType": "surprise"}}, RemoteProtocolError, "unknown type"),
    ({"result": {"resultType": "input_required", "inputRequests": 7}}, RemoteProtocolError, "object"),
    ({"result": {"resultType": "input_required", "requestState": 7}}, RemoteProtocolError, "string"),
    ({"error": {"code": -32603, "message": "internal"}}, RpcError, "internal"),
    ({"error": {"code": 7, "message": "", "data": [1]}}, RpcError, "7"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), ANSWERS)
async def test_a_strange_answer_is_one_typed_exception(answer: Any, kind: type[Exception], text: str) -> None:
    async with met("modern") as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer_all, peer, lambda asked: {"jsonrpc": "2.0", "id": asked["id"], **answer})
        with pytest.raises(kind, match=text) as caught:
            await client.call_tool("any")
        assert isinstance(caught.value, McpError)
        assert client.tree().pending == ()
        nursery.cancel_scope.cancel()


async def never_connects() -> None:
    async with Client(Dials([ConnectFailed("no route")])):
        raise AssertionError


async def unknown_scheme() -> None:
    async with Client("gopher:somewhere"):
        raise AssertionError


async def unknown_version() -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def serve() -> None:
            peer = await server.accept()
            await peer.send(failure(await peer.receive(), -32601))
            await peer.send(reply(await peer.receive(), {"protocolVersion": "1999-01-01"}))

        try:
            async with Client(server.transport):
                raise AssertionError
        finally:
            nursery.cancel_scope.cancel()


async def silent() -> None:
    async with raw_server() as server, Client(server.transport):
        raise AssertionError


async def hangs_up_at_once() -> None:
    channel, peer = faulty_pair()
    again, other = faulty_pair()
    await peer.channel.aclose()
    await other.channel.aclose()
    async with Client(Dials([channel, again])):
        raise AssertionError


async def breaks_during_a_call() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def leave() -> None:
            await peer.receive()
            await peer.channel.aclose()

        await client.call_tool("any")


async def asks_for_ever() -> None:
    def ask(asked: Any) -> Any:
        return reply(asked, {"resultType": "input_required", "requestState": "again"})

    async with met("modern") as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer_all, peer, ask)
        try:
            await client.call_tool("any")
        finally:
            nursery.cancel_scope.cancel()


async def asks_who_does_not_answer() -> None:
    def ask(asked: Any) -> Any:
        return reply(asked, {"resultType": "input_required", "requestState": "again"})

    async with met("modern", answer_input=False) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(answer_all, peer, ask)
        try:
            await client.call_tool("any")
        finally:
            nursery.cancel_scope.cancel()


async def undeclared() -> None:
    async with met() as (client, _):
        await client.list_prompts()


async def bad_level() -> None:
    async with met() as (client, _):
        await client.set_log_level("loud")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (never_connects, ConnectFailed),
        (unknown_scheme, TransportNotFound),
        (unknown_version, UnsupportedVersion),
        (silent, CallTimeout),
        (hangs_up_at_once, ConnectionLost),
        (asks_for_ever, RemoteProtocolError),
        (asks_who_does_not_answer, InputRequired),
        (undeclared, LocalProtocolError),
        (bad_level, LocalProtocolError),
    ],
)
async def test_each_failure_is_one_exception_of_its_own_type(
    fail: Callable[[], Awaitable[None]], kind: type[Exception]
) -> None:
    baseline = trio.lowlevel.current_statistics().tasks_living
    # A test's own nursery wraps what leaves it; what is inside is the exception itself.
    with pytest.raises((kind, ExceptionGroup)) as caught:
        await fail()
    error: BaseException = caught.value
    while isinstance(error, ExceptionGroup):
        assert len(error.exceptions) == 1
        error = error.exceptions[0]
    assert type(error) is kind
    assert trio.lowlevel.current_statistics().tasks_living == baseline


async def test_a_server_that_vanishes_fails_the_call_that_waits() -> None:
    async with met() as (client, peer):
        with pytest.RaisesGroup(ConnectionLost):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await settled()
                await peer.channel.aclose()


class Mine(Exception):
    """Somebody's own."""


@pytest.mark.parametrize(
    "error",
    [
        Mine("as it is"),
        ExceptionGroup("mine", [Mine("one")]),
        KeyboardInterrupt(),
        SystemExit(3),
        ConnectionLost("?"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_users_own_exception_leaves_the_block_unchanged(error: BaseException, era: str) -> None:
    caught: BaseException | None = None
    try:
        async with connected_pair(Server("s"), era=era):
            raise error
    except BaseException as raised:
        caught = raised
    assert caught is error
    assert error.__cause__ is None
    assert not isinstance(error.__context__, ExceptionGroup)
