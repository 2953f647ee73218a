"""The answer to a call that reported progress waits until the peer has read the report, and nothing else waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Context, Server
from mcp_actors._actors.inbound_call import READING_LIMIT, READING_TIME
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer
from tests.messages import modern_request

from .peers import LEGACY, Message, Serves, arrived, call, cancelled, notification, reply, request, settled


class Pipe(trio.abc.SendStream):
    """Sends at once, and says that the peer has not read it until ``read`` is called."""

    def __init__(self, inner: trio.abc.SendStream) -> None:
        self._inner = inner
        self._taken = self.sent = 0
        self.looks = 0

    def read(self) -> None:
        self._taken = self.sent

    def unread(self) -> int | None:
        self.looks += 1
        return self.sent - self._taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += len(data)
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


server = Server("reporting")


@server.tool
async def report(ctx: Context) -> str:
    await ctx.progress(1)
    return "reported"


@server.tool
async def wait(ctx: Context) -> str:
    await trio.lowlevel.checkpoint()
    return "waited"


@asynccontextmanager
async def served(info: Message | None = None, *, pipe: bool) -> AsyncIterator[tuple[ScriptedPeer, Pipe]]:
    """A peer that has introduced itself as ``info``, over a pipe that says what is read or a stream that does not."""
    near, far = trio.testing.memory_stream_pair()
    out = Pipe(near)
    peer = ScriptedPeer(LineChannel(far, far))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(LineChannel(near, out if pipe else near)))
        params: dict[str, Any] = {
            "protocolVersion": LEGACY,
            "capabilities": {},
            "clientInfo": info or {"name": "any"},
        }
        await peer.send(request(0, "initialize", params))
        await peer.receive()
        await peer.send(notification("notifications/initialized"))
        await settled()
        yield peer, out
        nursery.cancel_scope.cancel()


def told(messages: list[Message]) -> list[Any]:
    """The id of each answer, the method of everything else."""
    return [message.get("method") or message["id"] for message in messages]


async def test_the_answer_waits_until_the_pipe_is_read_and_others_go_on() -> None:
    async with served(pipe=True) as (peer, out):
        await peer.send(call(1, "report", token="t"))
        await peer.send(call(2, "wait"))
        await peer.send(call(3, "wait", token="u"))
        assert told(await arrived(peer)) == ["notifications/progress", 2, 3]
        out.read()
        assert told(await arrived(peer, within=0.01)) == [1]


async def test_a_peer_that_does_not_read_is_not_waited_for_long() -> None:
    async with served(pipe=True) as (peer, _):
        began = trio.current_time()
        await peer.send(call(1, "report", token="t"))
        assert told([await peer.receive(), await peer.receive()]) == ["notifications/progress", 1]
        assert trio.current_time() - began == pytest.approx(READING_LIMIT)


async def test_a_thousand_calls_wait_side_by_side() -> None:
    async with served(pipe=True) as (peer, out):
        for number in range(1, 1001):
            await peer.send(call(number, "report", token=number))
        messages = await arrived(peer)
        assert told(messages) == ["notifications/progress"] * 1000
        out.read()
        assert sorted(told(await arrived(peer, within=0.01))) == list(range(1, 1001))


async def test_what_reports_nothing_does_not_look_at_the_pipe() -> None:
    async with served(pipe=True) as (peer, out):
        await peer.send(call(1, "wait", token="t"))
        await peer.send(call(2, "report"))
        assert told([await peer.receive(), await peer.receive()]) == [1, 2]
        assert out.looks == 0


@pytest.mark.parametrize(
    ("info", "waits"),
    [
        ({"name": "mcp-actors", "version": "9"}, False),
        ({"name": "mcp", "version": "0.1.0"}, False),
        ({"name": "mcp", "version": "1.0.0"}, True),
        ({"name": "claude-code", "version": "0.1.0"}, True),
    ],
)
async def test_who_handles_what_it_reads_in_order_is_not_waited_for(info: Message, waits: bool) -> None:
    async with served(info, pipe=True) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        assert told(await arrived(peer)) == ["notifications/progress", *([] if waits else [1])]


async def test_a_call_that_is_cancelled_while_it_waits_is_not_answered() -> None:
    async with served(pipe=True) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        assert told(await arrived(peer)) == ["notifications/progress"]
        await peer.send(cancelled(1))
        assert told(await arrived(peer, within=1)) == []
        assert server.tree().sessions[0].calls == ()


async def test_where_reading_is_not_seen_a_ping_shows_it() -> None:
    async with served(pipe=False) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        progress, ping = await arrived(peer)
        assert told([progress, ping]) == ["notifications/progress", "ping"]
        await peer.send(reply(ping))
        assert told(await arrived(peer)) == [1]


async def test_a_ping_that_is_not_answered_holds_nothing_up_for_long() -> None:
    async with served(pipe=False) as (peer, _):
        began = trio.current_time()
        await peer.send(call(1, "report", token="t"))
        for expected in ("notifications/progress", "ping", 1):
            assert told([await peer.receive()]) == [expected]
        assert trio.current_time() - began == pytest.approx(READING_LIMIT)
        # Nor is it taken back, as a request of a program's own would be.
        assert await arrived(peer, within=1) == []


async def test_where_no_ping_exists_a_moment_has_to_do() -> None:
    near, far = trio.testing.memory_stream_pair()
    peer = ScriptedPeer(LineChannel(far, far))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(LineChannel(near, near)))
        began = trio.current_time()
        await peer.send(
            modern_request(1, "tools/call", {"name": "report", "arguments": {}}, progressToken="t")
        )
        assert told([await peer.receive(), await peer.receive()]) == ["notifications/progress", 1]
        assert trio.current_time() - began == pytest.approx(READING_TIME)
        nursery.cancel_scope.cancel()
