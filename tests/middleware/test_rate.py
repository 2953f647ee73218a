"""A bound on the requests of each caller in a second."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Server
from mcp_actors.errors import Overloaded
from mcp_actors.middleware import RateLimit, rate

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
