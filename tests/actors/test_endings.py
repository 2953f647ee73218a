"""How connections end: goodbyes and breaks, and what becomes of the calls in flight."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, ConnectionLost, Context, Limits, Server
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_client
from mcp_actors.types import ElicitResult
from mcp_transports.memory import memory_channel_pair

from .peers import (
    LEGACY,
    Serves,
    arrived,
    call,
    cancelled,
    faulty_pair,
    legacy_client,
    met,
    modern_call,
    notification,
    reply,
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


# -- How calls end when somebody gives them up: both directions, several hops, and nothing there to cancel ---

# -- cancelled in flight ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [call, modern_call])
@pytest.mark.parametrize("id", [7, 0, "seven", "", 2**70])
async def test_a_cancelled_call_sees_cancelled_and_is_not_answered(make: Any, id: Any) -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        await peer.send(make(id, "hang"))
        await settled()
        assert witness.begun == [id]
        await peer.send(cancelled(id, reason="changed my mind"))
        assert await arrived(peer, within=1000) == []
        assert witness.cancelled == [id]
        assert "changed my mind" in witness.reasons[0]
        [session] = witness.server.tree().sessions
        assert session.calls == ()
        assert session.counters.cancelled == 1
        assert "result" in await peer.request("next", "ping")


async def test_cancelling_one_call_leaves_the_others() -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        for id in range(1, 6):
            await peer.send(call(id, "nap", seconds=3))
        await settled()
        await peer.send(cancelled(3))
        answered = [message["id"] for message in await arrived(peer, within=10)]
        assert sorted(answered) == [1, 2, 4, 5]
        assert witness.cancelled == [3]


async def test_an_id_is_not_its_lookalike() -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        for id in (1, "1"):
            await peer.send(call(id, "hang"))
        for wrong in (True, 1.0, None, [1], {"id": 1}):
            await peer.send(cancelled(wrong))
        await settled()
        assert witness.cancelled == []
        await peer.send(cancelled("1"))
        await settled()
        assert witness.cancelled == ["1"]
        assert witness.server.tree().sessions[0].counters.late == 5


async def test_a_handler_that_swallows_its_cancellation_is_not_answered_either() -> None:
    server = Server("stubborn")

    @server.tool
    async def stubborn() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "all the same"

    async with legacy_client(server) as peer:
        await peer.send(call(1, "stubborn"))
        await settled()
        await peer.send(cancelled(1))
        assert await arrived(peer, within=1000) == []
        assert server.tree().sessions[0].calls == ()


async def test_cleanup_after_cancellation_may_take_time_and_says_nothing() -> None:
    server = Server("tidy")
    tidied: list[float] = []

    @server.tool
    async def tidy(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await ctx.progress(1)
                await trio.sleep(3)
                await ctx.log("error", "too late")
            tidied.append(trio.current_time())

    async with legacy_client(server) as peer:
        await peer.send(call(1, "tidy", token="t"))
        await settled()
        await peer.send(cancelled(1))
        await settled()
        [state] = [each.state for each in server.tree().sessions[0].calls]
        assert state == "cancelled"
        # While the handler tidies up, its id is still taken.
        assert (await peer.request(1, "ping"))["error"]["code"] == -32600
        assert await arrived(peer, within=1000) == []
        assert len(tidied) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_leaving_the_scope_round_a_call_tells_the_server(era: str) -> None:
    witness = Witness()
    async with connected_pair(witness.server, era=era) as client:
        with trio.move_on_after(2) as scope:
            await client.call_tool("hang")
        assert scope.cancelled_caught
        await settled()
        assert len(witness.cancelled) == 1
        assert client.tree().pending == ()
        assert (await client.call_tool("echo", {"text": "still here"})).content[0].text == "still here"  # type: ignore[union-attr]


async def test_the_server_cancels_what_it_asked() -> None:
    seen: list[str] = []

    async def elicitation(question: Any) -> ElicitResult:
        seen.append("asked")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise
        raise AssertionError

    async with met(elicitation=elicitation) as (client, peer):
        await peer.send(
            request("q", "elicitation/create", {"message": "Who?", "requestedSchema": FORM, "mode": "form"})
        )
        await settled()
        assert seen == ["asked"]
        assert [each.method for each in client.tree().calls] == ["elicitation/create"]
        await peer.send(cancelled("q", reason="never mind"))
        assert await arrived(peer, within=1000) == []
        assert seen == ["asked", "cancelled"]
        assert client.tree().calls == ()
        await peer.send(request("p", "ping"))
        assert await peer.receive() == reply("p")


async def test_a_cancelled_call_withdraws_its_own_questions_first() -> None:
    server = Server("asks")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Who?", FORM)
        return "never"

    async with legacy_client(server, elicitation={}) as peer:
        await peer.send(call(1, "ask"))
        question = await peer.receive()
        assert question["method"] == "elicitation/create"
        await peer.send(cancelled(1))
        [withdrawn] = await arrived(peer, within=1000)
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == question["id"]
        [session] = server.tree().sessions
        assert session.pending == ()
        # An answer that crossed it on the way does no harm.
        await peer.send(reply(question, {"action": "decline"}))
        assert "result" in await peer.request(2, "ping")
        assert server.tree().sessions[0].counters.late == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("hops", [1, 2, 5])
async def test_cancellation_travels_over_any_number_of_hops(era: str, hops: int) -> None:
    """Client, then servers whose handlers are clients of the next one."""
    ends: list[str] = []
    last = Witness()
    server = last.server
    for number in range(hops, 0, -1):
        server = relay(server, f"hop {number}", ends, era)
    async with connected_pair(server, era=era) as client:
        with trio.move_on_after(5):
            await client.call_tool("forward")
        await settled()
        assert len(last.begun) == len(last.cancelled) == 1
        assert sorted(ends) == [f"hop {number} cancelled" for number in range(1, hops + 1)]
        # By message, hop by hop, not because a connection went down.
        assert "cancelled by the peer" in last.reasons[0]


def relay(inner: Server, name: str, ends: list[str], era: str) -> Server:
    outer = Server(name)

    @outer.tool
    async def forward() -> str:
        async with Client(inner, era=era) as client:
            try:
                await client.call_tool("forward" if "forward" in inner.tools else "hang")
            except trio.Cancelled:
                ends.append(f"{name} cancelled")
                raise
        return "never"

    return outer


async def test_cancellation_travels_there_and_back_again() -> None:
    """A question comes back to the client, whose answer needs a call of another server; the first call is given up."""
    library = Witness()
    server = Server("asks")
    ended: list[str] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.elicit("Who?", FORM)
        except trio.Cancelled:
            ended.append("asker")
            raise
        return "never"

    async with connected_pair(library.server) as lookup:

        async def elicitation(question: Any) -> ElicitResult:
            try:
                await lookup.call_tool("hang")
            except trio.Cancelled:
                ended.append("answerer")
                raise
            raise AssertionError

        async with connected_pair(server, era="legacy", elicitation=elicitation) as client:
            with trio.move_on_after(1):
                await client.call_tool("ask")
            await settled()
            assert ended == ["asker", "answerer"]
            assert len(library.begun) == len(library.cancelled) == 1
            assert (client.tree().calls, client.tree().pending, lookup.tree().pending) == ((), (), ())


# -- unknown or finished id ------------------------------------------------------------------------------------------


async def test_cancelling_what_is_not_there_is_counted_and_ignored() -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        await peer.request(1, "tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for id in (1, 99, "initialize"):
            await peer.send(cancelled(id))
        await peer.send(notification("notifications/cancelled"))
        assert await arrived(peer) == []
        counters = witness.server.tree().sessions[0].counters
        assert (counters.late, counters.cancelled) == (4, 0)
        assert "result" in await peer.request(2, "ping")


async def test_a_client_drops_answers_and_progress_that_nobody_waits_for() -> None:
    async with met() as (client, peer):
        await peer.send(reply(1000))
        await peer.send(reply("1"))
        await peer.send(notification("notifications/progress", progressToken=5, progress=1))
        await peer.send(cancelled(5))
        await settled()
        assert client.tree().counters.late == 4
        assert await arrived(peer) == []


# -- A client that leaves is no error: its calls end, others go on, and nothing above debug is logged ----

server = Server("left")


@server.tool
async def reports(ctx: Context) -> str:
    while True:
        await ctx.progress(1)
        await trio.sleep(0.01)


@server.tool
async def asks(ctx: Context) -> str:
    return str(await ctx.elicit("?", {"type": "object", "properties": {"a": {"type": "string"}}}))


@pytest.mark.parametrize(("make", "tool"), [(call, "reports"), (modern_call, "reports"), (call, "asks")])
@pytest.mark.parametrize("clients", [10, 100])
async def test_a_client_that_leaves_in_the_middle_of_a_call_is_no_error(
    clients: int, make: Any, tool: str
) -> None:
    with capture_logs() as lines:
        pairs = [memory_channel_pair() for _ in range(clients)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, Serves(*[theirs for _, theirs in pairs]))
            for ours, _ in pairs:
                peer = ScriptedPeer(ours)
                await peer.initialize(LEGACY, {"elicitation": {}})
                message = make(1, tool)
                message["params"].setdefault("_meta", {})["progressToken"] = 1
                await peer.send(message)
                await peer.receive()
                await ours.aclose()
            await trio.sleep(20)
            assert server.tree().limiter.inside == 0
            nursery.cancel_scope.cancel()
    assert [line for line in lines if line["log_level"] != "debug"] == []
