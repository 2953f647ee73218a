"""The circuit breaker of an upstream."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from mcp_actors.gateway.breaker import NEXT_STATE, PAUSES, THRESHOLD, CircuitBreaker, CircuitState


async def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.failed()


async def test_it_opens_after_failures_in_a_row_and_says_for_how_long(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    await fail(breaker, THRESHOLD - 1)
    assert breaker.seconds_left() is None
    breaker.failed()
    left = breaker.seconds_left()
    assert left is not None
    assert PAUSES[0] / 2 <= left <= PAUSES[0]
    await trio.sleep(left)
    assert breaker.seconds_left() is None
    assert breaker.state is CircuitState.HALF_OPEN


async def test_an_answer_between_failures_begins_the_count_anew(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    for _ in range(5):
        await fail(breaker, THRESHOLD - 1)
        breaker.succeeded()
    assert (breaker.state, breaker.failures) == (CircuitState.CLOSED, 0)


async def test_each_trial_that_fails_makes_the_pause_longer_and_a_success_short_again(
    autojump_clock: MockClock,
) -> None:
    breaker = CircuitBreaker()
    await fail(breaker, THRESHOLD)
    for pause in (*PAUSES, PAUSES[-1]):
        left = breaker.seconds_left()
        assert left is not None
        assert pause / 2 <= left <= pause
        await trio.sleep(left)
        assert breaker.seconds_left() is None
        breaker.failed()
    left = breaker.seconds_left()
    assert left is not None
    await trio.sleep(left)
    assert breaker.seconds_left() is None
    breaker.succeeded()
    await fail(breaker, THRESHOLD)
    left = breaker.seconds_left()
    assert left is not None
    assert left <= PAUSES[0]


@given(st.lists(st.sampled_from(["fail", "succeed", "wait", "look"]), max_size=60))
def test_no_history_leads_out_of_its_table_or_past_the_longest_pause(steps: list[str]) -> None:
    async def live() -> None:
        breaker = CircuitBreaker()
        for step in steps:
            if step == "fail":
                breaker.failed()
            elif step == "succeed":
                breaker.succeeded()
                assert breaker.seconds_left() is None
            elif step == "wait":
                await trio.sleep(PAUSES[-1] / 3)
            left = breaker.seconds_left()
            assert left is None or 0 < left <= PAUSES[-1]
            assert (left is None) == (breaker.state is not CircuitState.OPEN)

    trio.run(live, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("state", CircuitState)
def test_every_state_is_left_by_a_success(state: CircuitState) -> None:
    assert {after for (before, _), after in NEXT_STATE.items() if before is state} & {CircuitState.CLOSED}
