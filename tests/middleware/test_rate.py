"""A bound on the requests of each caller in a second."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import Client, Context, RpcError, Server
from mcp_actors import asyncio as in_asyncio
from mcp_actors import sync as in_threads
from mcp_actors.errors import Overloaded
from mcp_actors.middleware import (
    AuditLog,
    ConcurrencyLimit,
    ConcurrencyStatistics,
    RateLimit,
    ResultCache,
    ResultSize,
    Retry,
    Timing,
    rate,
)
from mcp_actors.server import CallNext

from .callers import served


def make_server(limit: RateLimit) -> Server:
    server = Server("s")
    server.middleware(limit)
    server.add_tool(lambda: "x", name="t", description="A tool.", inline=True)
    return server


async def test_a_caller_has_its_burst_and_then_its_rate(autojump_clock: Any) -> None:
    limit = RateLimit(2, burst=3)
    async with (
        served(make_server(limit)) as at,
        at.client("ann", era="legacy") as ann,
        at.client("bob", era="legacy") as bob,
    ):
        for _ in range(3):
            await ann.call_tool("t")
        with pytest.raises(Overloaded, match="requests in a second") as refused:
            await ann.call_tool("t")
        assert refused.value.retry_after == pytest.approx(0.5)
        await bob.call_tool("t")
        await trio.sleep(0.5)
        await ann.call_tool("t")
        with pytest.raises(Overloaded):
            await ann.call_tool("t")
        assert limit.refused == 2


async def test_pings_and_the_handshake_are_free(autojump_clock: Any) -> None:
    limit = RateLimit(0.001)
    async with served(make_server(limit)) as at:
        for _ in range(3):
            async with at.client("ann", era="legacy") as ann:
                await ann.ping()
    assert limit.refused == 0


async def test_notifications_beyond_the_rate_are_dropped(autojump_clock: Any) -> None:
    limit, taken = RateLimit(1, burst=2), []
    server = make_server(limit)

    @server.notification("acme/event")
    async def event(n: int) -> None:
        taken.append(n)

    async with served(server) as at, at.client("ann", era="legacy") as ann:
        for n in range(4):
            await ann.notify("acme/event", {"n": n})
        await trio.sleep(1)
    assert taken == [0, 1]
    assert limit.refused == 2


async def test_nothing_is_kept_of_callers_that_are_gone(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = RateLimit(10)
    for number in range(100):
        assert limit._take(f"caller {number}") == 0
    assert len(limit) == 100
    await trio.sleep(10)
    for _ in range(60):
        limit._take("one")
    assert len(limit) == 1
    monkeypatch.setattr(rate, "MAX_CALLERS", 5)
    for number in range(100):
        limit._take(f"caller {number}")
    assert len(limit) <= 5


def test_another_event_loop_whose_clock_began_elsewhere_begins_with_full_buckets() -> None:
    limit = RateLimit(0.01, burst=2)

    async def calls(first: str) -> list[bool]:
        return [limit._take(first) == 0, limit._take("ann") == 0, limit._take("ann") == 0]

    for began in (1e6, 0.0, 5e5):
        clock = trio.testing.MockClock()
        clock.jump(began)
        assert trio.run(calls, f"caller {began}", clock=clock) == [True, True, True]


@pytest.mark.parametrize("wrong", [(0, None), (-1, None), (float("inf"), None), (float("nan"), None), (5, 0)])
def test_numbers_out_of_range_are_refused(wrong: tuple[float, int | None]) -> None:
    with pytest.raises(ValueError, match="RateLimit"):
        RateLimit(wrong[0], burst=wrong[1])


# -- A bound on calls that run, with a fair share for each caller: turns, refusals, cancellation, and what is kept ---

IDLE = ConcurrencyStatistics(0, 0, 0, 0)


def slow_server(limit: ConcurrencyLimit, seconds: float = 1.0) -> tuple[Server, list[str]]:
    """A server with a tool that takes a second, and the names of those whose calls began, in this order."""
    server, began = Server("s"), []
    server.middleware(limit)

    @server.tool
    async def slow(ctx: Context, name: str = "") -> str:
        """Takes a second."""
        began.append(name or (ctx.principal.subject if ctx.principal else ""))
        await trio.sleep(seconds)
        return "done"

    return server, began


async def settled(limit: ConcurrencyLimit, running: int, waiting: int) -> None:
    with trio.fail_after(60):
        while (limit.statistics().running, limit.statistics().waiting) != (running, waiting):
            await trio.lowlevel.checkpoint()


async def test_callers_that_wait_take_turns(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1)
    server, began = slow_server(limit)
    async with served(server) as at, at.client("greedy") as greedy, at.client("ann") as ann:
        async with at.client("bob") as bob, trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(greedy.call_tool, "slow")
            await settled(limit, 1, 5)
            for number, client in enumerate((ann, bob, ann)):
                nursery.start_soon(client.call_tool, "slow")
                await settled(limit, 1, 6 + number)
        assert began == ["greedy", "ann", "bob", "greedy", "ann", *["greedy"] * 4]
        assert limit.statistics() == IDLE


async def test_one_caller_has_half_of_the_places_at_most(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(4)
    server, _ = slow_server(limit)
    async with served(server) as at, at.client("greedy") as greedy, at.client("ann") as ann:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(greedy.call_tool, "slow")
            await settled(limit, 2, 8)
            start = trio.current_time()
            await ann.call_tool("slow")
            assert trio.current_time() - start == pytest.approx(1.0)
        assert trio.current_time() - start == pytest.approx(5.0)
    assert limit.statistics() == IDLE


async def test_beyond_its_queue_a_caller_is_refused_and_told_when_to_come(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(2, per_caller=1, waiting=1)
    server, _ = slow_server(limit)
    async with served(server) as at, at.client("greedy") as greedy, at.client("ann") as ann:
        await greedy.call_tool("slow")
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(greedy.call_tool, "slow")
            await settled(limit, 1, 1)
            with pytest.raises(Overloaded, match="of this client: the limit is 2; retry in") as refused:
                await greedy.call_tool("slow")
            assert refused.value.code == 429
            assert refused.value.retry_after is not None
            assert 0.1 <= refused.value.retry_after <= 2
            await ann.call_tool("slow")
    assert limit.statistics() == ConcurrencyStatistics(0, 0, 0, 1)


async def test_a_call_waits_no_longer_than_it_may(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1, max_wait=3)
    server, _ = slow_server(limit, seconds=10)
    async with served(server) as at, at.client("ann") as ann, at.client("bob") as bob:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ann.call_tool, "slow")
            await settled(limit, 1, 0)
            start = trio.current_time()
            with pytest.raises(Overloaded):
                await bob.call_tool("slow")
            assert trio.current_time() - start == pytest.approx(3)
            assert limit.statistics() == ConcurrencyStatistics(1, 0, 1, 1)


@pytest.mark.parametrize("phase", ["waiting", "running", "handed over"])
async def test_a_cancelled_call_leaves_its_place_at_once(phase: str, autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1)
    server, began = slow_server(limit)
    async with served(server) as at, at.client("ann") as ann, at.client("bob") as bob:
        async with trio.open_nursery() as nursery, trio.open_nursery() as cancelled:
            first = cancelled if phase == "running" else nursery
            first.start_soon(ann.call_tool, "slow", {"name": "first"})
            await settled(limit, 1, 0)
            if phase != "running":
                cancelled.start_soon(ann.call_tool, "slow", {"name": "cancelled"})
                await settled(limit, 1, 1)
            nursery.start_soon(bob.call_tool, "slow", {"name": "bob"})
            await settled(limit, 1, 1 if phase == "running" else 2)
            if phase == "handed over":
                await trio.sleep(1.0)
            cancelled.cancel_scope.cancel()
        assert began[-1] == "bob"
        assert "cancelled" not in began or phase == "handed over"
        assert limit.statistics() == IDLE


async def test_the_end_of_a_session_frees_what_it_had(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1)
    server, _ = slow_server(limit, seconds=100)
    async with served(server) as at, at.client("bob") as bob:
        async with at.client("ann") as ann, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ann.call_tool, "slow")
            await settled(limit, 1, 2)
            nursery.cancel_scope.cancel()
        with trio.fail_after(101):
            await bob.call_tool("slow", cap=1000, timeout=1000)
        assert limit.statistics() == IDLE


async def test_what_must_never_wait_needs_no_place(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1)
    server, _ = slow_server(limit)
    async with served(server) as at, at.client("ann", era="modern") as ann, trio.open_nursery() as nursery:
        async with ann.listen(tools=True):
            nursery.start_soon(ann.call_tool, "slow")
            await settled(limit, 1, 0)
            start = trio.current_time()
            await ann.ping()
            async with at.client("bob", era="legacy") as bob:
                await bob.ping()
            assert trio.current_time() == start


async def test_tasks_have_a_place_while_they_run_and_waiting_for_them_needs_none(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1)
    server = Server("s")
    server.middleware(limit)

    @server.tool(task="required")
    async def long(ctx: Context) -> str:
        """Takes long."""
        await trio.sleep(10)
        return str(limit.statistics().running)

    for era in ("legacy", "modern"):
        async with served(server) as at, at.client("ann", era=era) as ann:
            assert (await ann.call_tool("long")).text == "1"


async def test_without_a_principal_each_session_in_memory_is_a_caller(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(2, per_caller=1)
    server, began = slow_server(limit)
    async with Client(server) as ann, Client(server) as bob, trio.open_nursery() as nursery:
        for client in (ann, ann, bob):
            nursery.start_soon(client.call_tool, "slow")
        await settled(limit, 2, 1)
        assert limit.statistics().callers == 2
    assert len(began) == 3


async def test_notifications_take_places_and_are_dropped_beyond_the_queue(autojump_clock: Any) -> None:
    limit = ConcurrencyLimit(1, waiting=1)
    server, taken, done = Server("s"), [], trio.Event()
    server.middleware(limit)

    @server.notification("acme/event")
    async def event(n: int) -> None:
        await trio.sleep(1)
        taken.append(n)
        if len(taken) == 2:
            done.set()

    async with served(server) as at, at.client("ann", era="legacy") as ann:
        for n in range(4):
            await ann.notify("acme/event", {"n": n})
        await done.wait()
    assert taken == [0, 1]
    assert limit.statistics().refused == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"places": 0},
        {"places": 2, "per_caller": 3},
        {"places": 2, "waiting": -1},
        {"places": 1, "max_wait": 0},
    ],
)
def test_numbers_out_of_range_are_refused_concurrency(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ConcurrencyLimit"):
        ConcurrencyLimit(**wrong)


class FakeContext:
    """As much of a context as a limit reads."""

    def __init__(self, name: str) -> None:
        self.method = "tools/call"
        self.call = SimpleNamespace(invocation=SimpleNamespace(principal=SimpleNamespace(key=name)))


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 5), st.floats(0.1, 5), st.one_of(st.none(), st.floats(0, 8))),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, places=st.integers(1, 4))
def test_places_are_never_lost_nor_given_twice(steps: list[Any], places: int) -> None:
    """Calls of four callers begin, take some time and may be cancelled: at the end the limit is as it was."""
    limit = ConcurrencyLimit(places, waiting=3, max_wait=4)
    running: dict[str, int] = {}

    async def call(name: str, begin: float, takes: float, cancelled: float | None) -> None:
        await trio.sleep(begin)

        async def run(ctx: Any = None) -> None:
            running[name] = running.get(name, 0) + 1
            assert sum(running.values()) <= places
            assert running[name] <= limit.per_caller
            try:
                await trio.sleep(takes)
            finally:
                running[name] -= 1

        call_next: CallNext = run
        with trio.move_on_after(1e9 if cancelled is None else cancelled):
            try:
                await limit(FakeContext(name), call_next)  # type: ignore[arg-type]
            except Overloaded:
                running.setdefault(name, 0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, begin, takes, cancelled in steps:
                nursery.start_soon(call, f"caller {number}", begin, takes, cancelled)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    left = limit.statistics()
    assert (left.running, left.waiting, left.callers) == (0, 0, 0)


@pytest.mark.slow
async def test_the_p99_of_others_stays_with_a_greedy_caller(autojump_clock: Any) -> None:
    """50 callers, one of which keeps 150 calls in flight: what the others wait, in virtual time."""

    async def p99_of_others(greedy_calls: int, limit: ConcurrencyLimit) -> float:
        server, _ = slow_server(limit, seconds=0.05)
        took: list[float] = []

        async def honest(client: Client, number: int) -> None:
            await trio.sleep(number / 50)
            for _ in range(5):
                began = trio.current_time()
                await client.call_tool("slow")
                took.append(trio.current_time() - began)
                await trio.sleep(0.5)

        async def greedy(client: Client) -> None:
            while True:
                try:
                    await client.call_tool("slow")
                except Overloaded as error:
                    await trio.sleep(error.retry_after or 1.0)

        async with served(server) as at, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(at.client(f"caller {n}")) for n in range(50)]
            async with trio.open_nursery() as attack:
                for _ in range(greedy_calls):
                    attack.start_soon(greedy, clients[0])
                await trio.sleep(0.2)
                async with trio.open_nursery() as nursery:
                    for number, client in enumerate(clients[1:]):
                        nursery.start_soon(honest, client, number)
                attack.cancel_scope.cancel()
        assert len(took) == 245
        return sorted(took)[int(len(took) * 0.99)]

    alone = await p99_of_others(0, ConcurrencyLimit(16))
    attacked = await p99_of_others(150, ConcurrencyLimit(16))
    in_one_queue = await p99_of_others(150, ConcurrencyLimit(16, per_caller=16, waiting=1000))
    assert attacked <= 1.3 * alone
    # Turns alone, without places that are kept for others: each waits for one place of the sixteen to become free.
    assert alone < in_one_queue <= 2 * alone


# -- No place of a `ConcurrencyLimit` is lost, and no caller is kept, however calls and sessions end -----

SCHEDULES = int(os.environ.get("MCP_MIDDLEWARE_SCHEDULES", "3"))
ENDINGS = ("returns", "raises", "refuses", "swallows", "cleans up")


class Ended:
    """A server whose calls end in all ways, and the most of them that ran at once."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self.running = self.most = 0
        self.server = Server("s")
        self.server.middleware(limit)
        self.server.add_tool(self.run, description="Ends as it is told.")

    async def run(self, seconds: float, ending: str) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(seconds)
            if ending == "raises":
                raise RuntimeError("as it was told")
            if ending == "refuses":
                raise RpcError(5, "as it was told")
            if ending == "swallows":
                with trio.move_on_after(seconds, shield=True):
                    await trio.sleep_forever()
        finally:
            if ending == "cleans up":
                with trio.move_on_after(0.2, shield=True):
                    await trio.sleep_forever()
            self.running -= 1
        return "done"


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_places_come_back_under_every_ending(seed: int, autojump_clock: Any) -> None:
    chance = random.Random(seed)
    limit = ConcurrencyLimit(3, per_caller=2, waiting=3, max_wait=0.7)
    ended = Ended(limit)

    async def call(client: Client) -> None:
        arguments = {"seconds": chance.random(), "ending": chance.choice(ENDINGS)}
        with trio.move_on_after(chance.random() * 1.5):
            try:
                await client.call_tool("run", arguments)
            except (RpcError, Overloaded):
                pass

    async def session() -> None:
        await trio.sleep(chance.random())
        with trio.move_on_after(chance.random() * 6):
            async with Client(ended.server, era=chance.choice(("legacy", "modern"))) as client:
                async with trio.open_nursery() as calls:
                    for _ in range(20):
                        calls.start_soon(call, client)
                        await trio.sleep(chance.random() * 0.1)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(session)
    await trio.sleep(60)
    now = limit.statistics()
    assert (now.running, now.waiting, now.callers) == (0, 0, 0)
    assert now.refused > 0
    assert ended.most <= limit.places


# -- What ready middleware is given: numbers out of range, and the side that it is for -------------------

NUMBERS: dict[str, Callable[[Any], object]] = {
    "ConcurrencyLimit(places=)": lambda number: ConcurrencyLimit(number),
    "ConcurrencyLimit(per_caller=)": lambda number: ConcurrencyLimit(5, per_caller=number),
    "ConcurrencyLimit(waiting=)": lambda number: ConcurrencyLimit(5, waiting=number),
    "ConcurrencyLimit(max_wait=)": lambda number: ConcurrencyLimit(5, max_wait=number),
    "RateLimit(rate=)": lambda number: RateLimit(number),
    "RateLimit(burst=)": lambda number: RateLimit(5, burst=number),
    "ResultCache(max_bytes=)": lambda number: ResultCache(max_bytes=number),
    "ResultCache(max_entries=)": lambda number: ResultCache(max_entries=number),
    "ResultSize(limit=)": lambda number: ResultSize(number),
    "Retry(attempts=)": lambda number: Retry(number),
    "Retry(pause=)": lambda number: Retry(pause=number),
    "Retry(most=)": lambda number: Retry(most=number),
}
EACH = pytest.mark.parametrize("name", NUMBERS)
ON_SERVERS = (
    AuditLog(),
    ConcurrencyLimit(1),
    RateLimit(1),
    ResultCache(),
    ResultSize(1024),
)


@EACH
@pytest.mark.parametrize(
    "number", [float("nan"), float("inf"), float("-inf"), -1, pytest.param(10**400, id="huge")]
)
def test_a_number_out_of_range_is_refused_in_one_line_that_names_it(name: str, number: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        NUMBERS[name](number)
    assert str(refused.value).startswith(f"{name} is a ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


async def test_each_of_several_limits_keeps_the_place_of_a_plain_function() -> None:
    limits, release = [ConcurrencyLimit(2), ConcurrencyLimit(3)], threading.Event()
    server = Server("s")
    for each in limits:
        server.middleware(each)
    began = threading.Event()

    @server.tool
    def work() -> None:
        began.set()
        release.wait(60)

    async with served(server) as way, way.client("ann") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "work")
            await trio.to_thread.run_sync(began.wait)
            nursery.cancel_scope.cancel()
        await client.ping()
        assert [each.statistics().running for each in limits] == [1, 1]
        release.set()
        while any(each.statistics().running for each in limits):
            await trio.lowlevel.checkpoint()


async def test_a_plain_function_keeps_its_place_until_its_thread_has_ended() -> None:
    """A cancelled call ends at once, and its function runs on: nobody gets around the limit by cancelling."""
    limit, release = ConcurrencyLimit(1), threading.Event()
    server = Server("s")
    server.middleware(limit)
    running: list[int] = []
    most: list[int] = []

    @server.tool
    def work() -> str:
        running.append(1)
        most.append(len(running))
        release.wait(60)
        running.pop()
        return "done"

    async with served(server) as way, way.client("ann") as client, way.client("bob") as other:
        for waiting in (0, 1, 1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "work")
                await settled(limit, 1, waiting)
                nursery.cancel_scope.cancel()
            await settled(limit, 1, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.call_tool, "work")
            while not limit.statistics().waiting:
                await trio.lowlevel.checkpoint()
            release.set()
        while limit.statistics().running:
            await trio.lowlevel.checkpoint()
    assert max(most) == 1
    assert limit.statistics() == ConcurrencyStatistics(running=0, waiting=0, callers=0, refused=0)


@EACH
@pytest.mark.parametrize("number", ["3", True, [1], 1j, b"3"])
def test_what_is_no_number_is_refused_in_one_line_that_names_it(name: str, number: Any) -> None:
    with pytest.raises(TypeError) as refused:
        NUMBERS[name](number)
    assert str(refused.value).startswith(f"{name} is a ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [Retry(), Retry])
def test_what_is_for_clients_is_refused_by_a_server(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"Retry is for clients: write Client\(…, middleware=\[Retry\(…\)\]\)$"
    ):
        Server("s").middleware(given)


@pytest.mark.parametrize("given", ON_SERVERS)
@pytest.mark.parametrize("client", [Client, in_asyncio.Client, in_threads.Client])
def test_what_is_for_servers_is_refused_by_a_client(given: Any, client: Any) -> None:
    name = type(given).__name__
    for each in (given, type(given)):
        with pytest.raises(
            TypeError, match=rf"^{name} is for servers: write server\.middleware\({name}\(…\)\)$"
        ):
            client(Server("s"), middleware=[each])


@pytest.mark.parametrize("client", [Client, in_asyncio.Client, in_threads.Client])
def test_a_class_is_refused_by_a_client(client: Any) -> None:
    with pytest.raises(TypeError, match=r"Timing is a class: give an object of it, Timing\(…\)"):
        client(Server("s"), middleware=[Timing])
