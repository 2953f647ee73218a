"""One typed exception for each failure at the public edge, and never a group of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
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

from .peers import Dials, failure, faulty_pair, greet, greet_modern, met, reply, settled

SECRET = "hunter2"


async def answer_all(peer: ScriptedPeer, answer: Callable[[Any], Any]) -> None:
    while True:
        asked = await peer.receive()
        if "id" in asked:
            await peer.send(answer(asked))


ANSWERS: list[tuple[Any, type[Exception], str]] = [
    ({"result": 5}, RemoteProtocolError, "not an object"),
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


# -- each way to fail ------------------------------------------------------------------------------------
#
# Up to the exception that left the public edge.


Act = Callable[[Client], Awaitable[Any]]


async def raised_by(failing: Awaitable[None]) -> BaseException:
    """The exception exactly as it comes: caught before a nursery of the test could wrap it, and never unwrapped."""
    try:
        await failing
    except (Exception, BaseExceptionGroup) as error:
        return error
    raise AssertionError("nothing was raised")


async def use(transport: Any, act: Act | None = None, **options: Any) -> None:
    """What a user writes: a client as a block, and one call inside it."""
    async with Client(transport, **options) as client:
        assert act is not None, "it should not have connected"
        await act(client)


async def against(
    play: Callable[[ScriptedPeer], Awaitable[None]], act: Act | None = None, **options: Any
) -> BaseException:
    """What a client raises beside a server that plays this; the nursery of the test is around both."""
    async with raw_server() as server, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def serve() -> None:
            await play(await server.accept())

        error = await raised_by(use(server.transport, act, **options))
        nursery.cancel_scope.cancel()
    return error


async def call_any(client: Client) -> None:
    await client.call_tool("any")


async def never_connects() -> BaseException:
    return await raised_by(use(Dials([ConnectFailed("no route")])))


async def unknown_scheme() -> BaseException:
    return await raised_by(use("gopher:somewhere"))


async def unknown_version() -> BaseException:
    async def play(peer: ScriptedPeer) -> None:
        await peer.send(failure(await peer.receive(), -32601))
        await peer.send(reply(await peer.receive(), {"protocolVersion": "1999-01-01"}))

    return await against(play)


async def silent() -> BaseException:
    async with raw_server() as server:
        return await raised_by(use(server.transport))


async def hangs_up_at_once() -> BaseException:
    channel, peer = faulty_pair()
    again, other = faulty_pair()
    await peer.channel.aclose()
    await other.channel.aclose()
    return await raised_by(use(Dials([channel, again])))


async def breaks_during_a_call() -> BaseException:
    async def play(peer: ScriptedPeer) -> None:
        await greet(peer)
        await peer.receive()
        await peer.channel.aclose()

    return await against(play, call_any, era="legacy")


async def ask_for_ever(peer: ScriptedPeer) -> None:
    await greet_modern(peer)
    with suppress(trio.EndOfChannel):  # the client has given up
        await answer_all(
            peer, lambda asked: reply(asked, {"resultType": "input_required", "requestState": "again"})
        )


async def asks_for_ever() -> BaseException:
    return await against(ask_for_ever, call_any, era="modern")


async def asks_who_does_not_answer() -> BaseException:
    return await against(ask_for_ever, call_any, era="modern", answer_input=False)


async def undeclared() -> BaseException:
    async def act(client: Client) -> None:
        await client.list_prompts()

    return await against(greet, act, era="legacy")


async def bad_level() -> BaseException:
    async def act(client: Client) -> None:
        await client.set_log_level("loud")  # type: ignore[arg-type]

    return await against(greet, act, era="legacy")


class CannotListen:
    """A server transport whose address is taken."""

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await trio.lowlevel.checkpoint()
        raise PermissionError("the address is taken")


async def cannot_listen() -> BaseException:
    return await raised_by(Server("s").serve(CannotListen()))


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (cannot_listen, PermissionError),
        (never_connects, ConnectFailed),
        (unknown_scheme, TransportNotFound),
        (unknown_version, UnsupportedVersion),
        (silent, CallTimeout),
        (hangs_up_at_once, ConnectionLost),
        (breaks_during_a_call, ConnectionLost),
        (asks_for_ever, RemoteProtocolError),
        (asks_who_does_not_answer, InputRequired),
        (undeclared, LocalProtocolError),
        (bad_level, LocalProtocolError),
    ],
)
async def test_each_failure_is_one_exception_of_its_own_type(
    fail: Callable[[], Awaitable[BaseException]], kind: type[Exception]
) -> None:
    baseline = trio.lowlevel.current_statistics().tasks_living
    error = await fail()
    assert type(error) is kind
    assert trio.lowlevel.current_statistics().tasks_living == baseline


def test_what_ends_a_server_that_runs_alone_is_one_exception() -> None:
    with pytest.raises(PermissionError):
        Server("s").run(CannotListen())


async def test_a_group_is_not_taken_for_what_is_in_it() -> None:
    """The counter-example: a group of one, as a nursery makes it, is what the test above sees and refuses."""

    async def leak() -> None:
        async with trio.open_nursery():
            raise ConnectionLost("wrapped")

    assert type(await raised_by(leak())) is ExceptionGroup


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
