"""Experiments in virtual time: exact figures where they can be known, the same figures everywhere else."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from mcp_actors import Context, Server
from mcp_actors.examples.simulation import experiment
from mcp_actors.testing.simulate import links
from mcp_actors.testing.simulate.links import (
    Constant,
    Empirical,
    Exponential,
    LinkProfile,
    LogNormal,
    Uniform,
)
from mcp_actors.testing.simulate.report import latencies
from mcp_actors.testing.simulate.world import User, World, simulate

pytestmark = pytest.mark.slow

# A busy little world: every kind of fault and ending occurs in it.
BUSY = World(
    clients=40,
    servers=3,
    link=LinkProfile(
        latency=LogNormal(0.1, 0.5),
        bandwidth=100_000,
        stall=0.01,
        stall_time=Exponential(0.5),
        disconnect=0.01,
        disconnect_every=60,
        notice=Uniform(0, 2),
    ),
    think=Exponential(2),
    service=Empirical([0.1, 0.2, 5.0], weights=[5, 4, 1]),
    cancel=0.3,
    cancel_after=Uniform(0, 1),
    timeout=4,
)


def one_user(behaviour: Callable[[User], Any], **options: Any) -> World:
    return World(**{"clients": 1, "ramp": 0.0, "behaviour": behaviour, **options})


async def calls_forever(user: User) -> None:
    while True:
        await user.call("work", {"seconds": 0.0})


# -- exact figures ---------------------------------------------------------------------------------------------------


def test_a_link_of_100_ms_gives_round_trips_of_200_ms() -> None:
    # Connecting and the first question are a round trip each; calls are answered at 0.6, 0.8, 1.0.
    report = simulate(one_user(calls_forever, link=LinkProfile(latency=0.1)), seed=1, duration=1.05)
    assert report.latency == attrs.evolve(latencies([0.2]), count=3)
    assert (report.calls, report.answered, report.unfinished, report.failed) == (4, 3, 1, 0)
    assert (report.messages, report.messages_lost, report.handler_runs) == (9, 0, 3)


def test_a_link_without_latency_takes_no_time() -> None:
    async def three_calls(user: User) -> None:
        for _ in range(3):
            await user.call("work", {"seconds": 0.25})

    report = simulate(one_user(three_calls), seed=1, duration=10)
    assert report.latency == attrs.evolve(latencies([0.25]), count=3)
    assert report.handler_seconds == 0.75
    assert report.wasted_seconds == 0.0


def test_bandwidth_makes_frames_wait_for_each_other() -> None:
    async def pair(user: User) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(user.call, "work", {"seconds": 0.0})
            nursery.start_soon(user.call, "work", {"seconds": 0.0})

    report = simulate(one_user(pair, link=LinkProfile(bandwidth=1000)), seed=1, duration=10)
    # Requests of the same length leave one after the other, and their answers overlap with that.
    assert report.latency.count == 2
    assert report.latency.max > 1.2 * report.latency.p50


def test_a_link_that_breaks_at_a_frame_fails_the_call_and_is_made_again() -> None:
    async def two_calls(user: User) -> None:
        for _ in range(2):
            assert await user.call("work", {"seconds": 1.0}) is None
            await user.think(5)

    # Frames 1 and 2 open a session, 3 is the call, 4 would be the answer.
    link = LinkProfile(latency=0.1, disconnect_at_frame=4)
    report = simulate(one_user(two_calls, link=link), seed=1, duration=20)
    assert report.errors == {"ConnectionLost": 2}
    assert (report.calls, report.failed, report.disconnects) == (2, 2, 2)
    assert (report.connected, report.reconnects) == (1, 2)
    assert report.messages_lost == 2
    # Each handler worked to its end, for an answer that nobody got.
    assert (report.handler_runs, report.wasted_runs) == (2, 2)
    assert (report.handler_seconds, report.wasted_seconds) == (2.0, 2.0)


def test_what_is_under_way_is_lost_with_the_connection() -> None:
    async def pair(user: User) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(user.call, "work", {"seconds": 0.0})

    # Frame 3 is the first call, and still on its way when the second one breaks the line.
    report = simulate(
        one_user(pair, link=LinkProfile(latency=0.1, disconnect_at_frame=4)), seed=1, duration=5
    )
    assert (report.failed, report.handler_runs, report.messages_lost) == (2, 0, 2)


def test_no_frame_overtakes_another_and_a_full_line_makes_its_sender_wait() -> None:
    seen: list[float] = []

    async def listens(user: User) -> None:
        with trio.fail_after(100):
            await user.client.call_tool("count", on_progress=lambda report: seen.append(report.progress))
        times.append(trio.current_time())

    times: list[float] = []
    world = one_user(listens, server=_counting, link=LinkProfile(latency=Uniform(0.9, 1.0)))
    simulate(world, seed=1, duration=60)
    assert seen == list(range(1000))
    # A second for the call after two round trips, then a second for every 256 frames of a thousand.
    assert 8.1 < times[0] <= 9.0


def _counting() -> Server:
    server = Server("counting")

    @server.tool
    async def count(ctx: Context) -> None:
        for number in range(1000):
            await ctx.progress(number)

    return server


def test_a_session_that_never_comes_about_is_counted_and_tried_again() -> None:
    report = simulate(one_user(calls_forever, link=LinkProfile(disconnect_at_frame=1)), seed=1, duration=30)
    assert report.connected == report.calls == 0
    assert report.refused == {"ConnectionLost": report.disconnects}
    assert report.disconnects > 10


def test_cancelled_work_is_counted_and_confirmed_by_its_handler() -> None:
    async def gives_up(user: User) -> None:
        assert await user.call("work", {"seconds": 10.0}, patience=1.0) is None
        await user.think(1)

    report = simulate(one_user(gives_up, link=LinkProfile(latency=0.1)), seed=1, duration=20)
    assert (report.calls, report.cancelled, report.cancels_confirmed) == (1, 1, 1)
    assert report.handlers_stopped == 1
    # Begun at 0.1 and stopped at 1.1, by the cancellation that was sent at 1.0.
    assert (report.handler_seconds, report.wasted_seconds) == (1.0, 1.0)


def test_a_cancellation_that_comes_too_late_is_not_confirmed() -> None:
    async def gives_up(user: User) -> None:
        await user.call("work", {"seconds": 1.0}, patience=1.15)
        await user.think(5)

    report = simulate(one_user(gives_up, link=LinkProfile(latency=0.1)), seed=1, duration=20)
    assert (report.cancelled, report.cancels_confirmed, report.handlers_stopped) == (1, 0, 0)
    assert (report.wasted_runs, report.wasted_seconds) == (1, 1.0)


def test_what_is_in_flight_at_the_end_is_neither_useful_nor_wasted() -> None:
    async def waits(user: User) -> None:
        await user.call("work", {"seconds": 100.0})

    report = simulate(one_user(waits), seed=1, duration=10)
    assert (report.calls, report.unfinished, report.handlers_stopped) == (1, 1, 0)
    assert (report.handler_seconds, report.wasted_seconds) == (10.0, 0.0)


def test_a_timeout_is_an_error_by_its_name() -> None:
    async def waits(user: User) -> None:
        await user.call("work", {"seconds": 100.0})

    report = simulate(one_user(waits, timeout=3.0), seed=1, duration=10)
    assert report.errors == {"CallTimeout": 1}
    assert (report.handlers_stopped, report.wasted_seconds) == (1, 3.0)
    assert report.cancels_confirmed == report.cancelled == 0


def test_a_break_that_is_noticed_late_leaves_the_handler_at_work() -> None:
    async def waits(user: User) -> None:
        await user.call("work", {"seconds": 3.0})

    # The cancellation, frame 4, breaks the line; the server finds out five seconds later and has long been done.
    link = LinkProfile(disconnect_at_frame=4, notice=5)
    report = simulate(one_user(waits, link=link, timeout=1.0), seed=1, duration=10)
    assert report.errors == {"CallTimeout": 1}
    assert (report.handlers_stopped, report.wasted_seconds) == (0, 3.0)


def test_a_line_that_stands_still_holds_what_comes_after() -> None:
    async def one_call(user: User) -> None:
        await user.call("work", {"seconds": 0.0})

    report = simulate(one_user(one_call, link=LinkProfile(stall=1, stall_time=2)), seed=1, duration=60)
    assert report.latency.max == 4.0
    assert report.stalls == report.messages == 4


def test_a_connection_breaks_after_a_time_whether_used_or_not() -> None:
    async def waits(user: User) -> None:
        await user.think(1000)

    report = simulate(one_user(waits, link=LinkProfile(disconnect_every=10)), seed=1, duration=999)
    assert 70 < report.disconnects < 130
    assert report.reconnects == report.disconnects


def test_a_server_of_ones_own_and_a_tool_that_fails() -> None:
    def make() -> Server:
        server = Server("own")

        @server.tool
        async def fail() -> str:
            raise ValueError("no")

        return server

    async def calls(user: User) -> None:
        await user.call("fail")
        await user.call("missing")

    report = simulate(one_user(calls, server=make), seed=1, duration=1)
    assert report.failed == 2
    assert report.answered == 0


# -- the same each time ----------------------------------------------------------------------------------------------


def test_every_kind_of_ending_is_in_the_busy_world() -> None:
    report = simulate(BUSY, seed=7, duration=60)
    assert set(report.errors) == {"CallTimeout", "ConnectionLost"}
    for figure in ("answered", "cancelled", "cancels_confirmed", "reconnects", "wasted_runs", "stalls"):
        assert getattr(report, figure) > 0, figure
    assert report.calls == report.answered + report.cancelled + report.failed + report.unfinished
    assert report.wasted_seconds < report.handler_seconds


def test_the_same_seed_gives_the_same_figures_and_another_seed_others() -> None:
    first = simulate(BUSY, seed=7, duration=30)
    random.random()
    assert simulate(BUSY, seed=7, duration=30).to_json() == first.to_json()
    assert simulate(BUSY, seed=8, duration=30).to_json() != first.to_json()


def test_the_same_figures_in_processes_that_hash_differently() -> None:
    program = "from tests.test_simulate import *; print(simulate(BUSY, seed=7, duration=30).to_json(), one_at_a_time())"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "4711")
    ]
    here = f"{simulate(BUSY, seed=7, duration=30).to_json()} {one_at_a_time()}\n"
    assert outputs[0] == outputs[1] == here


def one_at_a_time() -> str:
    """A world in which it shows who came first, though all come at the same time."""

    def make() -> Server:
        server = Server("narrow")
        door = trio.Lock()

        @server.tool
        async def work(seconds: float) -> None:
            async with door:
                await trio.sleep(seconds)

        return server

    async def calls(user: User) -> None:
        await user.think(1)
        await user.call("work", {"seconds": user.number / 100})

    world = World(clients=30, ramp=0, server=make, behaviour=calls, link=LinkProfile(latency=0.1))
    return simulate(world, seed=3, duration=60).to_json()


def test_equal_deadlines_do_not_depend_on_addresses() -> None:
    """Many sleeps end at the same time here: what Trio orders by address must not show."""
    order: list[list[int]] = [[], []]

    def world(run: int) -> World:
        async def behave(user: User) -> None:
            ballast = [object() for _ in range(user.rng.randrange(100) * run)]
            await user.think(1)
            order[run].append(user.number)
            assert len(ballast) >= 0

        return World(clients=50, ramp=0, behaviour=behave)

    for run in range(2):
        simulate(world(run), seed=3, duration=2)
    assert order[0] == order[1]
    assert sorted(order[0]) == list(range(50)) != order[0]


def test_what_is_due_in_the_past_happens_now_and_sets_no_clock_back() -> None:
    seen: list[float] = []

    async def main(clock: links.VirtualClock) -> float:
        await trio.sleep(5)
        clock.at(1.0, lambda _: seen.append(trio.current_time()), None)
        await trio.sleep(1)
        return trio.current_time()

    assert links.run(main, seed=1) == 6
    assert seen == [5]


def test_nobody_elses_dice_are_touched() -> None:
    scheduler: Any = trio._core._run
    random.seed(5)
    before = (
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING,
        scheduler._r.getstate(),
        random.getstate(),
        gc.get_threshold(),
    )
    simulate(one_user(calls_forever, link=LinkProfile(latency=0.1)), seed=1, duration=1)
    after = (
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING,
        scheduler._r.getstate(),
        random.getstate(),
        gc.get_threshold(),
    )
    assert before == after


def test_a_trio_that_cannot_be_made_repeatable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(RuntimeError, match="repeatable"):
        simulate(BUSY, seed=1, duration=1)


# -- what is refused, what is left -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-1),
        lambda: Constant(float("nan")),
        lambda: Uniform(2, 1),
        lambda: Exponential(float("inf")),
        lambda: LogNormal(1, -0.5),
        lambda: Empirical([]),
        lambda: Empirical([-1.0]),
        lambda: Empirical([1.0], weights=[1, 2]),
        lambda: Empirical([1.0], weights=[0]),
        lambda: LinkProfile(latency=-0.1),
        lambda: LinkProfile(disconnect=1.1),
        lambda: LinkProfile(stall=-1),
        lambda: LinkProfile(bandwidth=0),
        lambda: LinkProfile(disconnect_every=0),
        lambda: LinkProfile(disconnect_at_frame=0),
        lambda: World(clients=0),
        lambda: World(clients=1, servers=0),
        lambda: World(clients=1, cancel=2),
        lambda: World(clients=1, ramp=-1),
        lambda: World(clients=1, timeout=0),
        lambda: simulate(World(clients=1), seed=1, duration=0),
        lambda: simulate(World(clients=1), seed=1, duration=float("inf")),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        make()


def test_what_a_behaviour_raises_comes_out_as_it_is() -> None:
    async def stumbles(user: User) -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        simulate(one_user(stumbles), seed=1, duration=1)


async def test_not_inside_a_running_program() -> None:
    with pytest.raises(RuntimeError):
        simulate(BUSY, seed=1, duration=1)


def test_nothing_is_left_of_a_world() -> None:
    class Marked(Server):
        pass

    simulate(attrs.evolve(BUSY, server=lambda: _with_work(Marked("marked"))), seed=1, duration=5)
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Marked | User)] == []


def _with_work(server: Server) -> Server:
    @server.tool
    async def work(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    return server


# -- distributions and quantiles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        (Constant(2), 2.0),
        (Uniform(1, 3), 2.0),
        (Exponential(2), 2.0),
        (LogNormal(2, 0.5), 2.266),
        (Empirical([1, 2, 3]), 2.0),
        (Empirical([1, 5], weights=[3, 1]), 2.0),
    ],
)
def test_distributions_have_the_mean_that_they_state(distribution: Any, mean: float) -> None:
    rng = random.Random(1)
    drawn = [distribution.sample(rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.02)
    assert min(drawn) >= 0


def test_quantiles_are_exact() -> None:
    found = latencies([float(each) for each in range(100, 0, -1)])
    assert (found.p50, found.p90, found.p99, found.max, found.mean) == (50.0, 90.0, 99.0, 100.0, 50.5)
    assert latencies([]).count == 0


def test_a_report_is_a_table_and_json() -> None:
    report = experiment(0.01, clients=20)
    assert json.loads(report.to_json()) == attrs.asdict(report)
    assert f"p99 {report.latency.p99 * 1000:,.1f}" in str(report)
    assert "20 clients, 1 servers, 60 s, seed 1" in str(report)
