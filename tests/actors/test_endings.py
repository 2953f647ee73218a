"""How connections end: goodbyes and breaks, and what becomes of the calls in flight."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectionLost, Context, Limits, Server
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer, raw_client

from .peers import (
    LEGACY,
    Serves,
    call,
    faulty_pair,
    met,
    request,
    settled,
)
from .witness import Witness

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


# -- the peer ends cleanly -------------------------------------------------------------------------------------------


class Wire:
    """A server at one end of a pair of byte streams, the test at the other."""

    def __init__(self, server: Server, **options: Any) -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        self.server = server
        self.far = theirs
        self.near = LineChannel(ours, ours, **options)
        self.peer = ScriptedPeer(LineChannel(theirs, theirs))

    async def goodbye(self) -> None:
        await self.far.send_stream.aclose()


async def test_end_of_input_lets_calls_in_flight_answer() -> None:
    witness = Witness()
    wire = Wire(witness.server)
    with trio.fail_after(100):
        async with trio.open_nursery() as serving:
            serving.start_soon(witness.server.serve, Serves(wire.near))
            await wire.peer.initialize(LEGACY)
            await wire.peer.send(call(1, "nap", seconds=0.5))
            await wire.goodbye()
            assert (await wire.peer.receive())["id"] == 1
            with pytest.raises(trio.EndOfChannel):
                await wire.peer.receive()
    assert witness.returned == [1]


GRACES = [
    pytest.param(Limits(end_grace=5, drain_grace=60), id="its-own"),
    pytest.param(Limits(end_grace=60, drain_grace=5), id="never-longer-than-after-a-stop"),
]


@pytest.mark.parametrize("limits", GRACES)
async def test_the_grace_after_end_of_input_is_bounded(limits: Limits) -> None:
    witness = Witness(limits=limits)
    wire = Wire(witness.server)
    async with trio.open_nursery() as serving:
        serving.start_soon(witness.server.serve, Serves(wire.near))
        await wire.peer.initialize(LEGACY)
        await wire.peer.send(call(1, "nap", seconds=4))
        await wire.peer.send(call(2, "hang"))
        began = trio.current_time()
        await wire.goodbye()
        assert (await wire.peer.receive())["id"] == 1
        with pytest.raises(trio.EndOfChannel):
            await wire.peer.receive()
        assert trio.current_time() - began == 5
    assert witness.cancelled == [2]


async def test_a_stop_ends_the_grace_of_calls_whose_peer_has_left() -> None:
    witness = Witness(limits=Limits(end_grace=60, drain_grace=60))
    wire = Wire(witness.server)
    async with trio.open_nursery() as serving:
        serving.start_soon(witness.server.serve, Serves(wire.near))
        await wire.peer.initialize(LEGACY)
        await wire.peer.send(call(1, "hang"))
        began = trio.current_time()
        await wire.goodbye()
        await settled()
        assert witness.cancelled == []
        witness.server.stop()
        with pytest.raises(trio.EndOfChannel):
            await wire.peer.receive()
        assert trio.current_time() == began
    assert witness.cancelled == [1]


async def test_a_handler_that_asks_after_the_goodbye_learns_that_nobody_will_answer() -> None:
    server = Server("asks")
    raised: list[BaseException] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await trio.sleep(0.5)
            await ctx.elicit("Who?", FORM)
        except Exception as error:
            raised.append(error)
        return "without an answer"

    wire = Wire(server)
    async with trio.open_nursery() as serving:
        serving.start_soon(server.serve, Serves(wire.near))
        await wire.peer.initialize(LEGACY, {"elicitation": {}})
        await wire.peer.send(call(1, "ask"))
        await wire.goodbye()
        assert (await wire.peer.receive())["result"]["content"][0]["text"] == "without an answer"
    assert [type(error) for error in raised] == [ConnectionLost]


# -- the peer breaks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["snap", "snap_writes"])
async def test_a_break_cancels_everything_of_that_connection_at_once(how: str) -> None:
    witness = Witness()
    channel, peer = faulty_pair()
    sibling_channel, sibling = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(channel, sibling_channel))
        await peer.initialize(LEGACY)
        await sibling.initialize(LEGACY)
        for id in range(1, 11):
            await peer.send(call(id, "hang"))
        await sibling.send(call("s", "nap", seconds=1))
        await settled()
        sent, began = len(channel.sent), trio.current_time()
        getattr(channel, how)()
        if how == "snap_writes":
            await peer.send(request("p", "ping"))
        await settled()
        assert sorted(witness.cancelled) == list(range(1, 11))
        assert len(channel.sent) == sent
        assert trio.current_time() == began
        assert channel.closed
        assert len(witness.server.tree().sessions) == 1
        assert (await sibling.receive())["id"] == "s"
        nursery.cancel_scope.cancel()


async def test_a_break_while_draining_does_not_wait_for_the_grace() -> None:
    witness = Witness(limits=Limits(end_grace=50, drain_grace=50))
    wire = Wire(witness.server)
    async with trio.open_nursery() as serving:
        serving.start_soon(witness.server.serve, Serves(wire.near))
        await wire.peer.initialize(LEGACY)
        await wire.peer.send(call(1, "nap", seconds=1))
        await wire.peer.send(call(2, "hang"))
        await wire.goodbye()
        await settled()
        began = trio.current_time()
        await wire.far.receive_stream.aclose()
    # The writer found out with the first answer, and nobody is left who could want the other one.
    assert trio.current_time() - began == 1
    assert witness.cancelled == [2]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_when_the_server_goes_every_pending_call_fails_at_once(era: str) -> None:
    raised: list[BaseException] = []

    async def wait_for_answer(client: Client) -> None:
        try:
            await client.call_tool("any")
        except Exception as error:
            raised.append(error)

    async with met(era) as (client, peer), trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(wait_for_answer, client)
        await settled()
        assert len(client.tree().pending) == 100
        began = trio.current_time()
        await peer.channel.aclose()
        await settled()
        assert trio.current_time() == began
        assert [type(error) for error in raised] == [ConnectionLost] * 100
        assert len({id(error) for error in raised}) == 100
        with pytest.raises(ConnectionLost):
            await client.call_tool("any")


async def test_a_raw_client_that_vanishes_leaves_nothing() -> None:
    witness = Witness()
    async with raw_client(witness.server) as peer:
        await peer.initialize(LEGACY)
        await peer.send(call(1, "hang"))
        await settled()
        await peer.channel.aclose()
        await trio.sleep(witness.server.limits.drain_grace + 1)
        assert witness.server.tree().sessions == ()
        assert witness.cancelled == [1]
