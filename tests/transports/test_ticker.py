"""One task that keeps the deadlines of many."""

from __future__ import annotations

import math

import pytest
import structlog
import trio
import trio.testing

from mcp_actors.supervision.containment import RESTART_PAUSE, start_again
from mcp_actors.supervision.task_kinds import TICKER
from mcp_transports._poller import Ticker


class Member:
    def __init__(self, seconds: float, error: BaseException | None = None) -> None:
        self.deadline = trio.current_time() + seconds
        self.expired: list[float] = []
        self.crashes: list[BaseException] = []
        self._error = error

    def expire(self, now: float) -> None:
        self.expired.append(now)
        if self._error is not None:
            raise self._error
        self.deadline = math.inf

    def crashed(self, error: BaseException) -> None:
        self.crashes.append(error)


async def test_a_member_expires_within_a_tick_and_never_early(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    members = [Member(seconds) for seconds in (0.5, 2.0, 3.7)]
    for each in members:
        ticker.add(each)
    start = trio.current_time()
    await trio.sleep(10)
    assert [[when - start for when in each.expired] for each in members] == [[1.0], [2.0], [4.0]]
    assert len(ticker) == 3


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(), trio.TrioInternalError()], ids=repr)
async def test_a_member_that_raises_is_discarded_and_told_and_no_other_one(
    error: BaseException, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    broken, later, other = Member(0.5, error), Member(3.5), Member(0.5)
    with structlog.testing.capture_logs() as logs:
        for each in (broken, later, other):
            ticker.add(each)
        await trio.sleep(10)
    assert broken.crashes == [error]
    assert (len(broken.expired), len(later.expired), len(other.expired)) == (1, 1, 1)
    assert ticker.members == {later, other}
    assert [(each["event"], each["log_level"]) for each in logs] == [("ticker failed", "error")]


async def test_a_ticker_that_crashes_itself_is_started_again(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    failures = [ZeroDivisionError()]

    def on_tick() -> None:
        if failures:
            raise failures.pop()

    ticker: Ticker[Member] = Ticker(1.0, on_tick)
    start_again(nursery, TICKER, ticker.run)
    member = Member(0.5)
    ticker.add(member)
    start = trio.current_time()
    with structlog.testing.capture_logs():
        await trio.sleep(10)
    assert [when - start for when in member.expired] == [pytest.approx(2 + RESTART_PAUSE)]


async def test_a_ticker_without_members_sleeps_for_good(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ticker: Ticker[Member] = Ticker(1.0)
    nursery.start_soon(ticker.run)
    member = Member(0.5)
    ticker.add(member)
    ticker.discard(member)
    ticker.discard(member)
    await trio.sleep(5)
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
    assert member.expired == []
