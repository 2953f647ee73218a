"""How many calls may run at once, how many may wait for that, and what the rest is told."""

from __future__ import annotations

import attrs
import trio

from mcp_actors.errors import Overloaded

__all__ = ["Gate", "GateStatistics"]


@attrs.frozen
class GateStatistics:
    """A snapshot of a gate."""

    inside: int
    """Calls that run now."""
    waiting: int
    """Calls that wait for a place."""
    refused: int
    """Calls that were refused since the start."""


class Gate:
    """A counter with a bounded waiting room; entering costs nothing while there is room."""

    def __init__(self, scope: str, limit: int, waiting_limit: int, max_wait: float) -> None:
        self.scope = scope
        self.limit = limit
        self.waiting_limit = waiting_limit
        self.max_wait = max_wait
        self._inside = 0
        self._refused = 0
        self._room = trio.lowlevel.ParkingLot()
        self._expected = 0

    def try_enter(self) -> bool:
        """Takes a place if one is free now."""
        if self._inside < self.limit and not self._room:
            self._inside += 1
            return True
        return False

    def expect(self) -> None:
        """Announces a caller of `enter`; raises `Overloaded` when the waiting room is full."""
        if self._expected >= self.waiting_limit:
            raise self._refusal()
        self._expected += 1

    def unexpect(self) -> None:
        """Takes an announcement back."""
        self._expected -= 1

    async def enter(self) -> None:
        """Waits for a place, in order of arrival; raises `Overloaded` after ``max_wait`` seconds.

        Each call was announced with `expect`. Cancellation leaves the gate as it was.
        """
        try:
            if self._inside < self.limit:
                self._inside += 1
                return
            with trio.move_on_after(self.max_wait):
                # The place is handed over by `leave`, so it cannot be taken by somebody who came later.
                await self._room.park()
                return
            raise self._refusal()
        finally:
            self._expected -= 1

    def leave(self) -> None:
        """Gives the place to whoever waits longest, or back."""
        if self._room:
            self._room.unpark()
        else:
            self._inside -= 1

    def _refusal(self) -> Overloaded:
        self._refused += 1
        return Overloaded(self.scope, self.limit, self._expected)

    def statistics(self) -> GateStatistics:
        """Where the gate stands."""
        return GateStatistics(self._inside, self._expected, self._refused)

    def __repr__(self) -> str:
        return f"<Gate {self.scope} {self._inside}/{self.limit} waiting={self._expected}>"
