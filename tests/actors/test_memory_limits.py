"""What one client makes a server hold is weighed: it costs that client, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Limits
from mcp_actors.abc import FrameChannel
from mcp_actors.supervision.budget import Budget, holder_of
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer

from .peers import LEGACY, Serves, call, cancelled, faulty_pair, legacy_client, modern_call, settled
from .witness import Witness

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
