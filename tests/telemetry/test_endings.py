"""Endings that are rare: of answers that are too long, of defects of the engine, and of what was raised here."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors._actors.beats import Beats
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors.abc.framing import LineChannel
from mcp_actors.abc.telemetry import ObservedSession
from mcp_actors.errors import INTERNAL_ERROR, CallTimeout, ConnectionLost, McpError, RpcError, SessionExpired
from mcp_actors.telemetry import Metrics
from mcp_actors.testing import ScriptedPeer
from tests.actors.peers import LEGACY, Serves, call, faulty_pair

from .recorder import Recorder

OUT = 'mcp_actors_connection_bytes_total{direction="out"}'


def repeating(telemetry: Recorder | Metrics) -> Server:
    server = Server("repeating", telemetry=telemetry)

    @server.tool
    async def repeat(times: int) -> str:
        return "x" * times

    return server


async def test_an_answer_that_is_too_long_is_an_error() -> None:
    there = Recorder()
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=50_000) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeating(there).serve, Serves(near))
        peer = ScriptedPeer(far)
        await peer.initialize(LEGACY)
        await peer.send(call(1, "repeat", times=60_000))
        assert (await peer.receive())["error"]["code"] == INTERNAL_ERROR
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ((_, ending),) = there.of("in", "tools/call")
    assert (ending.kind, ending.code) == ("error", INTERNAL_ERROR)


async def test_a_call_that_a_defect_of_the_engine_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    there = Recorder()
    monkeypatch.setattr(Beats, "watch", broken)
    async with Client(repeating(there)) as client:
        with pytest.raises(RpcError, match="internal error"):
            await client.call_tool("repeat", {"times": 1}, on_progress=lambda progress: None)
    ((_, ending),) = there.of("in", "tools/call")
    assert (ending.kind, ending.code) == ("error", INTERNAL_ERROR)


RAISED: list[tuple[McpError, str, str | None]] = [
    (SessionExpired("the session is gone"), "lost", "the session is gone"),
    (ConnectionLost("the connection ended"), "lost", "the connection ended"),
    (CallTimeout("custom/method", "idle", 3), "timeout", str(CallTimeout("custom/method", "idle", 3))),
    (RpcError(-32000, "no " * 1000), "error", ("no " * 1000)[:256]),
    (McpError("something else " * 1000), "error", "McpError"),
]


@pytest.mark.parametrize(
    ("error", "kind", "message"), RAISED, ids=[type(each[0]).__name__ for each in RAISED]
)
async def test_what_a_request_raises_is_its_ending(
    error: McpError, kind: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> dict[str, Any]:
        raise error

    here = Recorder()
    async with Client(repeating(Recorder()), telemetry=here) as client:
        monkeypatch.setattr(OutboundCalls, "request", fail)
        with pytest.raises(McpError):
            await client.request("custom/method", {})
        monkeypatch.undo()
    ((_, ending),) = here.of("out", "custom/method")
    assert (ending.kind, ending.message) == (kind, message)


async def test_a_session_whose_connection_breaks_is_told_apart() -> None:
    there = Recorder()
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeating(there).serve, Serves(channel))
        await peer.initialize(LEGACY)
        await trio.testing.wait_all_tasks_blocked()
        channel.snap()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    _, ended = there.sessions
    assert isinstance(ended, ObservedSession)
    assert (ended.side, ended.version, ended.is_broken) == ("server", LEGACY, True)


async def test_bytes_of_connections_that_have_ended_count_still() -> None:
    metrics = Metrics()
    server = repeating(metrics)

    def counted() -> int:
        (line,) = (each for each in metrics.text().splitlines() if each.startswith(OUT))
        return int(line.rpartition(" ")[2])

    async with Client(server):
        before = counted()
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, Serves(LineChannel(ours, ours)))
            far = LineChannel(theirs, theirs)
            peer = ScriptedPeer(far)
            await peer.initialize(LEGACY)
            await peer.send(call(1, "repeat", times=5000))
            await peer.receive()
            await far.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert counted() >= before + 5000
            nursery.cancel_scope.cancel()
