"""The health of an upstream: its failures, and the circuit breaker that says whether it is tried.

After failures in a row the breaker refuses at once, instead of letting every call try again. A failure is an attempt to
connect that failed, a shared connection that was lost before it answered, or a call that ran out of its time. An answer
is a success, even if it is an error.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

import trio

from mcp_actors.errors import Overloaded, UpstreamUnavailable
from mcp_actors.supervision.printable import printable, without_paths

__all__ = [
    "LONGEST_FAILURE",
    "PAUSES",
    "THRESHOLD",
    "CircuitBreaker",
    "CircuitEvent",
    "CircuitState",
    "UpstreamHealth",
]

# Failures in a row after which it opens.
THRESHOLD = 3
# Seconds for which it stays open, the first time and each time that the trial fails; the last one repeats. Each is
# cut by up to half at random, so that many upstreams of one machine are not tried at one moment.
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0)
# Characters of a failure that people are shown.
LONGEST_FAILURE = 300


class CircuitState(enum.Enum):
    """Whether an upstream is tried."""

    CLOSED = "closed"
    """It is: requests pass."""
    OPEN = "open"
    """It is not: requests are refused at once."""
    HALF_OPEN = "half-open"
    """The pause is over, and the next requests show whether it is there again."""


class CircuitEvent(enum.Enum):
    """The events of a breaker."""

    SUCCESS = "success"
    FAILURES = "failures"
    """One failure too many in a row."""
    PAUSE_OVER = "pause over"


NEXT_STATE = MappingProxyType(
    {
        (CircuitState.CLOSED, CircuitEvent.SUCCESS): CircuitState.CLOSED,
        (CircuitState.CLOSED, CircuitEvent.FAILURES): CircuitState.OPEN,
        # A call that was on its way when it opened may still be answered.
        (CircuitState.OPEN, CircuitEvent.SUCCESS): CircuitState.CLOSED,
        (CircuitState.OPEN, CircuitEvent.PAUSE_OVER): CircuitState.HALF_OPEN,
        (CircuitState.HALF_OPEN, CircuitEvent.SUCCESS): CircuitState.CLOSED,
        (CircuitState.HALF_OPEN, CircuitEvent.FAILURES): CircuitState.OPEN,
    }
)


class CircuitBreaker:
    """The breaker of one upstream."""

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.failures = 0
        """Failures in a row."""
        self._opened = 0
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value} failures={self.failures}>"

    def seconds_left(self) -> float | None:
        """Returns for how long requests are refused, ``None`` if they pass."""
        if self.state is not CircuitState.OPEN:
            return None
        left = self._until - trio.current_time()
        if left > 0:
            return left
        self.state = NEXT_STATE[self.state, CircuitEvent.PAUSE_OVER]
        return None

    def succeeded(self) -> None:
        """Takes note of an answer."""
        if self.failures:
            self.failures = self._opened = 0
            self.state = NEXT_STATE[self.state, CircuitEvent.SUCCESS]

    def failed(self) -> None:
        """Takes note of a failure."""
        self.failures += 1
        too_many = self.state is CircuitState.HALF_OPEN or self.failures >= THRESHOLD
        if too_many and self.state is not CircuitState.OPEN:
            self.state = NEXT_STATE[self.state, CircuitEvent.FAILURES]
            pause = PAUSES[min(self._opened, len(PAUSES) - 1)]
            self._opened += 1
            self._until = trio.current_time() + pause * (1 - random.random() / 2)


class UpstreamHealth:
    """The health of one upstream."""

    def __init__(self) -> None:
        self.breaker = CircuitBreaker()
        self.lost = 0
        """Connections that were lost."""
        self.last_failure: str | None = None
        """The last failure, cut short."""
        self.is_away = False
        """Whether the last attempt to connect failed."""
        self._is_renewed = False
        self.failed_connects = 0
        """Attempts to connect that have failed."""
        self.refused_calls = 0
        """Calls that were not sent, because it cannot be called, or has too many."""

    def __repr__(self) -> str:
        return f"<UpstreamHealth lost={self.lost} {self.breaker!r}>"

    @property
    def is_up(self) -> bool:
        """Whether it can be called as far as is known; before the first attempt, it can.

        An upstream that was connected to again can be called, although the breaker waits for its first answer.
        """
        state = self.breaker.state
        return not self.is_away and (
            state is CircuitState.CLOSED or (state is CircuitState.HALF_OPEN and self._is_renewed)
        )

    def connected(self) -> bool:
        """Takes note of a connection that was made; returns whether the attempt before it failed."""
        was_away, self.is_away = self.is_away, False
        self._is_renewed = True
        return was_away

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts a call that the block refuses, before anything of it was sent."""
        try:
            yield
        except (Overloaded, UpstreamUnavailable):
            self.refused_calls += 1
            raise

    def failed(self, reason: str) -> None:
        """Takes note of a failure that says that the upstream is not there, or does nothing."""
        self.last_failure = printable(without_paths(reason), LONGEST_FAILURE)
        self._is_renewed = False
        self.breaker.failed()

    def refused(self, reason: str) -> None:
        """Takes note of a failure that says nothing about other clients, so that they are not refused."""
        self.last_failure = printable(without_paths(reason), LONGEST_FAILURE)

    def lost_connection(self, reason: str, *, was_good: bool) -> None:
        """Takes note of a connection that was lost; only one that had never been good counts as a failure."""
        self.lost += 1
        if was_good:
            self.refused(reason)
        else:
            self.failed(reason)
