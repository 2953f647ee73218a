"""Every bound at work: calls in flight, waiting rooms, outboxes, floods."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Limits, Overloaded, Server
from mcp_actors._actors.limits import ConcurrencyLimiter
from mcp_actors.abc import FrameChannel
from mcp_actors.supervision.budget import Budget, holder_of
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer, connected_pair
from mcp_transports.memory import MemoryTransport

from .peers import (
    LEGACY,
    Serves,
    arrived,
    call,
    cancelled,
    faulty_pair,
    legacy_client,
    living,
    modern_call,
    request,
    settled,
)
from .witness import Witness

# -- limits that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [("max_in_flight", 0), ("outbox", -1), ("max_waiting", -1), ("drain_delay", math.nan), ("beat", -0.5)],
)
def test_a_limit_with_which_nothing_is_served_is_refused(name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is at least [01], not {number}$"):
        Limits(**{name: number})


# -- too many calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [call, modern_call])
async def test_of_10000_requests_at_once_the_excess_is_refused(make: Any) -> None:
    witness = Witness(limits=Limits(max_in_flight=100, max_waiting=50, max_wait=60))
    async with legacy_client(witness.server) as peer:
        answers: list[Any] = []

        async def read() -> None:
            while True:
                answers.append(await peer.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            baseline = living()
            for id in range(10_000):
                await peer.send(make(id, "nap", seconds=10))
            await settled()
            assert len(witness.begun) == 100
            assert living() - baseline == 150
            refused = [answer for answer in answers if "error" in answer]
            assert len(refused) == 9_850
            assert {answer["error"]["code"] for answer in refused} == {429}
            assert refused[-1]["error"]["data"] == {
                "reason": "overloaded",
                "scope": "connection",
                "limit": 100,
                "waiting": 50,
            }
            await peer.send(request("p", "ping"))
            await settled()
            assert answers[-1] == {"jsonrpc": "2.0", "id": "p", "result": {}}
            await trio.sleep(21)
            assert len(witness.returned) == 150
            assert sorted(answer["id"] for answer in answers[:-151] if "error" not in answer) == []
            assert len({answer["id"] for answer in answers}) == 10_001
            await peer.send(make("later", "echo", text="works again"))
            await settled()
            assert answers[-1]["id"] == "later"
            # Some tasks are kept for calls to come.
            assert living() - baseline <= 64
            nursery.cancel_scope.cancel()
        limiter = witness.server.tree().limiter
        assert (limiter.inside, limiter.waiting, limiter.refused) == (0, 0, 0)


async def test_a_client_gets_the_refusal_as_overloaded() -> None:
    witness = Witness(limits=Limits(max_in_flight=1, max_waiting=0))
    async with connected_pair(witness.server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "nap", {"seconds": 5})
        await settled()
        with pytest.raises(Overloaded) as caught:
            await client.call_tool("echo", {"text": "x"})
        assert caught.value.data["scope"] == "connection"
        await trio.sleep(6)
        await client.call_tool("echo", {"text": "x"})


async def test_waiting_for_a_place_is_bounded_and_in_order() -> None:
    witness = Witness(limits=Limits(max_in_flight=1, max_wait=30))
    async with legacy_client(witness.server) as peer:
        await peer.send(call(1, "nap", seconds=10))
        for id in (2, 3, 4):
            await peer.send(call(id, "nap", seconds=15))
        answers = await arrived(peer, within=1000)
        assert [answer["id"] for answer in answers] == [1, 2, 4, 3]
        assert answers[2]["error"]["data"]["reason"] == "overloaded"
        assert witness.returned == [1, 2, 3]


async def test_a_waiting_call_shows_itself_and_can_be_cancelled() -> None:
    witness = Witness(limits=Limits(max_in_flight=1, max_waiting=2))
    async with legacy_client(witness.server) as peer:
        for id in (1, 2, 3):
            await peer.send(call(id, "hang"))
        await settled()
        states = [(each.id, each.state) for each in witness.server.tree().sessions[0].calls]
        assert states == [(1, "running"), (2, "waiting"), (3, "waiting")]
        await peer.send(cancelled(2))
        await peer.send(cancelled(3))
        assert await arrived(peer, within=1000) == []
        assert witness.begun == [1]
        # Both places in the waiting room are free again.
        for id in (4, 5):
            await peer.send(call(id, "hang"))
        await settled()
        states = [(each.id, each.state) for each in witness.server.tree().sessions[0].calls]
        assert states == [(1, "running"), (4, "waiting"), (5, "waiting")]
        await peer.send(cancelled(1))
        await settled()
        assert witness.begun == [1, 4]


# -- the limiter of the whole server -------------------------------------------------------------------------------


@pytest.fixture
def crowd() -> Witness:
    """Ten places on the server, five on each connection."""
    return Witness(limits=Limits(max_in_flight=5, max_waiting=5, server_max_in_flight=10, max_wait=30))


async def test_connections_share_the_places_of_the_server(crowd: Witness) -> None:
    channels = [faulty_pair() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.server.serve, Serves(*[channel for channel, _ in channels]))
        peers = [peer for _, peer in channels]
        for peer in peers:
            await peer.initialize(LEGACY)
        for number, peer in enumerate(peers[:3]):
            for id in range(5):
                await peer.send(call(f"{number}.{id}", "hang"))
            await settled()
        limiter = crowd.server.tree().limiter
        assert (limiter.inside, limiter.waiting) == (10, 5)
        await peers[3].send(call("one too many", "hang"))
        refusal = await peers[3].receive()
        assert refusal["error"]["data"]["scope"] == "server"
        # What is refused there holds no place of its connection.
        for id in range(6):
            await peers[3].send(call(f"again {id}", "hang"))
            assert (await peers[3].receive())["error"]["data"]["scope"] == "server"
        # When a connection breaks its places go to those who wait.
        channels[0][0].snap()
        await settled()
        limiter = crowd.server.tree().limiter
        assert (limiter.inside, limiter.waiting) == (10, 0)
        channels[2][0].snap()
        channels[1][0].snap()
        await settled()
        limiter = crowd.server.tree().limiter
        assert (limiter.inside, limiter.waiting) == (0, 0)
        assert sorted(crowd.begun) == sorted(crowd.cancelled)
        nursery.cancel_scope.cancel()


async def test_who_waits_for_its_connection_takes_no_place_of_the_server(crowd: Witness) -> None:
    channels = [faulty_pair() for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.server.serve, Serves(*[channel for channel, _ in channels]))
        greedy, modest = [peer for _, peer in channels]
        await greedy.initialize(LEGACY)
        await modest.initialize(LEGACY)
        for id in range(10):
            await greedy.send(call(id, "hang"))
        await settled()
        assert crowd.server.tree().limiter.inside == 5
        for id in range(5):
            await modest.send(call(id, "nap", seconds=1))
        assert len(await arrived(modest, within=2)) == 5
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["cancelled", "refused", "broken"])
async def test_a_call_that_waited_at_both_gates_leaves_no_trace(how: str) -> None:
    limits = Limits(max_in_flight=1, max_waiting=3, server_max_in_flight=1, max_wait=30)
    witness = Witness(limits=limits)
    for _ in range(10):
        channel, peer = faulty_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(witness.server.serve, Serves(channel))
            await peer.initialize(LEGACY)
            for id in (1, 2, 3):
                await peer.send(call(id, "hang"))
            await settled()
            if how == "cancelled":
                for id in (3, 2, 1):
                    await peer.send(cancelled(id))
                assert await arrived(peer) == []
            elif how == "refused":
                assert sorted(answer["id"] for answer in await arrived(peer, within=31)) == [2, 3]
                await peer.send(cancelled(1))
            else:
                channel.snap()
            await settled()
            limiter = witness.server.tree().limiter
            assert (limiter.inside, limiter.waiting) == (0, 0)
            nursery.cancel_scope.cancel()


async def test_a_place_that_is_handed_to_a_call_just_cancelled_is_given_back() -> None:
    limiter = ConcurrencyLimiter("connection", 1, 5, 30)
    assert limiter.try_enter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.enter, limiter.issue_ticket())
        await settled()
        nursery.cancel_scope.cancel()
        # The task has not noticed yet.
        limiter.leave()
    assert (limiter.inside, len(limiter.waiting)) == (0, 0)


# -- a peer that does not read ---------------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_holds_up_its_own_handlers_only() -> None:
    server = Server("floods", limits=Limits(outbox=16, stall_timeout=30))
    sent: dict[Any, int] = {}

    @server.tool
    async def flood(ctx: Context) -> None:
        while True:
            await ctx.progress(sent.setdefault(ctx.request_id, 0) + 1)
            sent[ctx.request_id] += 1

    clogged, silent = faulty_pair()
    good, reader = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(clogged, good))
        await silent.initialize(LEGACY)
        await reader.initialize(LEGACY)
        clogged.clog()
        await silent.send(call("f", "flood", token="t"))
        await settled()
        # What the writer holds, the outbox, and nothing more.
        assert sent["f"] <= 2 * 16 + 1
        [link] = [session.link for session in server.tree().sessions if session.calls]
        assert (link.outbox_limit, link.blocked) == (16, 1)
        assert "result" in await reader.request(1, "ping")
        await trio.sleep(29)
        assert not clogged.closed
        # Then it is given up, with the time that closing may take.
        await trio.sleep(3)
        assert clogged.closed
        assert len(server.tree().sessions) == 1
        assert "result" in await reader.request(2, "ping")
        nursery.cancel_scope.cancel()


async def test_a_flood_of_pings_without_reading_is_held_up_then_given_up() -> None:
    """What the session answers itself needs no call and no place: only the read path can hold it up."""
    server = Server("s", limits=Limits(outbox=16, stall_timeout=30))
    channel, peer = faulty_pair(buffer=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(channel))
        await peer.initialize(LEGACY)
        channel.clog()
        taken = 0
        with trio.move_on_after(20):
            for id in range(10_000):
                await peer.send(request(id, "ping"))
                taken += 1
        assert taken < 100
        assert server.tree().sessions[0].link.outbox < 100
        assert not channel.closed
        await trio.sleep(12)
        assert channel.closed
        assert server.tree().sessions == ()
        nursery.cancel_scope.cancel()


async def test_a_peer_that_reads_again_in_time_misses_nothing() -> None:
    server = Server("floods", limits=Limits(outbox=4, stall_timeout=30))

    @server.tool
    async def count(ctx: Context) -> str:
        for number in range(1, 101):
            await ctx.progress(number)
        return "counted"

    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(channel))
        await peer.initialize(LEGACY)
        channel.clog()
        await peer.send(call(1, "count", token="t"))
        await trio.sleep(29)
        channel.unclog()
        *reports, answer = await arrived(peer)
        assert [report["params"]["progress"] for report in reports] == list(range(1, 101))
        assert answer["id"] == 1
        nursery.cancel_scope.cancel()


async def test_a_peer_that_reads_slowly_but_steadily_is_waited_for() -> None:
    witness = Witness(limits=Limits(outbox=16, stall_timeout=30))
    channel, peer = faulty_pair(buffer=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(channel))
        await peer.initialize(LEGACY)

        @nursery.start_soon
        async def send() -> None:
            for id in range(1000):
                await peer.send(call(id, "echo", text="x"))

        for _ in range(1000):
            await trio.sleep(0.25)
            assert "result" in await peer.receive()
        nursery.cancel_scope.cancel()


async def test_a_ping_and_a_cancellation_get_through_when_everything_is_full() -> None:
    witness = Witness(limits=Limits(outbox=4, max_in_flight=2, max_waiting=0))
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(channel))
        await peer.initialize(LEGACY)
        channel.clog()
        for id in (1, 2, 3):
            await peer.send(call(id, "hang"))
        for id in range(10, 14):
            await peer.send(request(id, "ping"))
        await settled()
        await peer.send(cancelled(1))
        await settled()
        assert witness.cancelled == [1]
        channel.unclog()
        assert [message["id"] for message in await arrived(peer)] == [3, 10, 11, 12, 13]
        nursery.cancel_scope.cancel()


# -- connections -----------------------------------------------------------------------------------------------------


async def test_1000_connections_good_bad_and_aborted_leave_nothing() -> None:
    chance = random.Random(2)
    witness = Witness(limits=Limits(drain_grace=1))
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(witness.server.serve, transport)
        await settled()
        baseline = living()

        async def visit(kind: str) -> None:
            await trio.sleep(chance.random() * 10)
            if kind == "client":
                async with Client(transport) as client:
                    await client.call_tool("echo", {"text": "hello"})
                return
            async with transport.connect() as channel:
                peer = ScriptedPeer(channel)
                if kind == "garbage":
                    await peer.send(chance.randbytes(chance.randrange(1, 200)))
                elif kind == "greets":
                    await peer.initialize(LEGACY)
                elif kind != "aborts":
                    await peer.initialize(LEGACY)
                    await peer.send(call(1, "hang"))
                    if kind == "cancels":
                        await peer.send(cancelled(1))
                await trio.sleep(chance.random() * 3)

        kinds = ["client", "garbage", "greets", "aborts", "leaves", "cancels"]
        for number in range(1000):
            nursery.start_soon(visit, kinds[number % len(kinds)])
        await trio.sleep(60)
        assert living() == baseline
        tree = witness.server.tree()
        assert tree.sessions == ()
        assert (tree.limiter.inside, tree.limiter.waiting, tree.bus.subscriptions) == (0, 0, 0)
        assert len(witness.begun) == len(witness.cancelled) >= 166
        nursery.cancel_scope.cancel()


# -- What one client makes a server hold is weighed: it costs that client, and nobody else notices -------

KIB = 1024
# Each peer of these tests has the same address, unless it says another one.
URI_BYTES = 8000


class From(FrameChannel):
    """A channel whose peer has the address that a test gives it."""

    def __init__(self, channel: FrameChannel, address: str) -> None:
        self._channel = channel
        self._address = address
        self.send, self.receive, self.aclose = channel.send, channel.receive, channel.aclose  # type: ignore[method-assign]

    send = receive = aclose = None  # type: ignore[assignment]

    @property
    def peer(self) -> str:
        return self._address


def hello(**params: Any) -> dict[str, Any]:
    good = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    return {**good, **params}


def subscribable(limits: Limits) -> Witness:
    witness = Witness(limits=limits)

    @witness.server.resource("x:{name}")
    async def resource(name: str) -> str:
        return name

    return witness


@pytest.mark.parametrize("times", [1, 10])
@pytest.mark.parametrize("member", ["capabilities", "clientInfo"])
async def test_what_a_session_keeps_of_its_client_is_bounded(member: str, times: int) -> None:
    witness = Witness()
    near, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(near))
        long = {"name": "x", "version": "0", "extra": "y" * 64 * KIB * times}
        answer = await peer.request(1, "initialize", hello(**{member: long}))
        assert answer["error"]["code"] == -32602
        assert member in answer["error"]["message"]
        assert "65536" in answer["error"]["message"]
        # Nothing is kept of it, and the client may introduce itself again.
        assert witness.server.tree().memory.kept.held == 0
        long["extra"] = "y" * 60 * KIB
        assert "result" in await peer.request(2, "initialize", hello(**{member: long}))
        assert 60 * KIB < witness.server.tree().sessions[0].kept_bytes < 64 * KIB
        assert witness.server.tree().memory.kept.held == witness.server.tree().sessions[0].kept_bytes
        nursery.cancel_scope.cancel()
    assert witness.server.tree().memory.kept.held == 0


@pytest.mark.parametrize("number", [50, 500])
async def test_the_uris_of_one_client_leave_room_for_those_of_others(number: int) -> None:
    witness = subscribable(Limits(kept_bytes=10 * URI_BYTES, server_kept_bytes=30 * URI_BYTES))
    pairs = [faulty_pair() for _ in range(3)]
    addresses = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]
    channels = [From(near, address) for (near, _), address in zip(pairs, addresses, strict=True)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(*channels))
        greedy, sibling, other = [peer for _, peer in pairs]
        for peer in (greedy, sibling, other):
            await peer.initialize(LEGACY)

        async def subscribe(peer: ScriptedPeer, id: int) -> dict[str, Any]:
            uri = f"x:{id:05}".ljust(URI_BYTES, "y")
            return await peer.request(id, "resources/subscribe", {"uri": uri})

        answers = [await subscribe(greedy, id) for id in range(1, number)]
        assert sum("result" in answer for answer in answers) == 9
        assert answers[-1]["error"]["code"] == 429
        assert str(10 * URI_BYTES) in answers[-1]["error"]["message"]
        # Another connection of the same address has no room either, and another address has all of its own.
        assert "error" in await subscribe(sibling, 1)
        assert "result" in await subscribe(other, 1)
        kept = witness.server.tree().memory.kept
        assert kept.held <= 11 * URI_BYTES
        assert kept.refused == number - 1 - 9 + 1
        # What is no longer wanted makes room.
        await greedy.request("u", "resources/unsubscribe", {"uri": "x:00001".ljust(URI_BYTES, "y")})
        assert "result" in await subscribe(sibling, 1)
        nursery.cancel_scope.cancel()
    assert witness.server.tree().memory.kept.held == 0


@pytest.mark.parametrize("make", [call, modern_call])
@pytest.mark.parametrize("number", [20, 200])
async def test_the_bytes_of_calls_in_flight_are_bounded(make: Any, number: int) -> None:
    size = 100 * KIB
    limits = Limits(in_flight_bytes=5 * size, server_in_flight_bytes=8 * size)
    witness = Witness(limits=limits)

    @witness.server.tool
    async def holds(text: str) -> str:
        await trio.sleep(10)
        return ""

    async with legacy_client(witness.server) as peer:
        await peer.send(make("short", "holds", text="x"))
        for id in range(number):
            await peer.send(make(id, "holds", text="x" * size))
        await settled()
        in_flight = witness.server.tree().memory.in_flight
        assert in_flight.held <= 5 * size
        assert in_flight.refused == number - 4
        answers = [await peer.receive() for _ in range(number - 4)]
        assert {answer["error"]["code"] for answer in answers} == {429}
        assert f"the limit is {5 * size}" in answers[0]["error"]["message"]
        # Short calls are only counted.
        await peer.send(make("echo", "echo", text="x"))
        assert (await peer.receive())["id"] == "echo"
        await trio.sleep(11)
        assert {(await peer.receive())["id"] for _ in range(5)} == {"short", 0, 1, 2, 3}
        assert witness.server.tree().memory.in_flight.held == 0


async def test_a_call_that_waits_or_is_refused_holds_nothing_more_at_its_end() -> None:
    witness = Witness(limits=Limits(max_in_flight=1, max_waiting=1))
    async with legacy_client(witness.server) as peer:
        for id in (1, 2, 3):
            message = call(id, "hang")
            message["params"]["_meta"] = {"x": "y" * 20 * KIB}
            await peer.send(message)
        await settled()
        assert 2 * 20 * KIB < witness.server.tree().memory.in_flight.held < 3 * 20 * KIB
        for id in (1, 2):
            await peer.send(cancelled(id))
        await settled()
        assert witness.server.tree().memory.in_flight.held == 0


# -- the budget itself -----------------------------------------------------------------------------------------------


def test_a_budget_has_a_limit_for_each_holder_and_one_for_all() -> None:
    budget = Budget(10, 6)
    assert budget.charge("a", 6) is None
    assert budget.charge("a", 1) == "holder"
    assert budget.charge("b", 5) == "all"
    assert budget.charge(None, 4) is None
    budget.release("a", 2)
    assert budget.charge("b", 2) is None
    statistics = budget.statistics()
    assert (statistics.held, statistics.largest, statistics.holders, statistics.refused) == (10, 4, 2, 2)
    budget.release("a", 4)
    budget.release("b", 2)
    budget.release(None, 4)
    assert (budget.held, budget.statistics().holders) == (0, 0)


def test_by_default_one_holder_may_have_the_half() -> None:
    assert Budget(10).holder_limit == 5


@pytest.mark.parametrize(
    ("peer", "principal", "holder"),
    [
        ("127.0.0.1:4711", None, "127.0.0.1"),
        ("[2001:db8::1:2]:80", None, "2001:db8::/64"),
        ("[2001:db8::ffff:1]:81", None, "2001:db8::/64"),
        ("[fe80::1%eth0]:80", None, "fe80::/64"),
        ("unix", None, "unix"),
        ("stdio", None, "stdio"),
        ("127.0.0.1:4711", Principal("alice"), "principal alice"),
        (None, Principal("alice"), "principal alice"),
        (None, None, None),
    ],
)
def test_who_answers_for_what_is_held(
    peer: str | None, principal: Principal | None, holder: str | None
) -> None:
    assert holder_of(peer, principal) == holder
