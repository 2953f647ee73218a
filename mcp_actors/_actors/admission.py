"""How many calls may run at once, how many may wait for that, and what the rest is told."""

from __future__ import annotations

import attrs
import trio

from mcp_actors.errors import Overloaded

__all__ = ["ConcurrencyLimiter", "LimiterStatistics"]


@attrs.frozen
class LimiterStatistics:
    """A snapshot of a limiter."""

    inside: int
    """Calls that run now."""
    waiting: int
    """Calls that wait for a place."""
    refused: int
    """Calls that were refused since the start."""


class ConcurrencyLimiter:
    """A counter with a bounded waiting room; entering costs nothing while there is room.

    Whoever waits has a ticket, an event that is set when it is its turn. Tickets are given out in the read path, so
    their order is that of arrival, whatever order the tasks that wait are run in.
    """

    def __init__(self, scope: str, limit: int, waiting_limit: int, max_wait: float) -> None:
        self.scope = scope
        self.limit = limit
        self.waiting_limit = waiting_limit
        self.max_wait = max_wait
        self._inside = 0
        self._refused = 0
        # Nobody waits while there is room: a place is handed over by whoever leaves it.
        self._waiting: dict[trio.Event, None] = {}

    def try_enter(self) -> bool:
        """Takes a place if one is free now."""
        if self._inside < self.limit:
            self._inside += 1
            return True
        return False

    def expect(self) -> trio.Event:
        """Gives out a ticket for `enter`; raises `Overloaded` when the waiting room is full."""
        if len(self._waiting) >= self.waiting_limit:
            raise self._refusal()
        ticket = trio.Event()
        self._waiting[ticket] = None
        return ticket

    async def enter(self, ticket: trio.Event) -> None:
        """Waits for a place, in order of the tickets; raises `Overloaded` after ``max_wait`` seconds.

        Each ticket must be brought here, by a task that may be cancelled already. Cancelled while it waits, it has
        left the waiting room.
        """
        # A set ticket is a place already taken: no checkpoint may come between it and our caller.
        if not ticket.is_set():
            try:
                with trio.move_on_after(self.max_wait):
                    await ticket.wait()
            except trio.Cancelled:
                # The place was handed over after the cancellation and before it was noticed.
                if ticket.is_set():
                    self.leave()
                raise
            finally:
                self._waiting.pop(ticket, None)
            if not ticket.is_set():
                raise self._refusal()

    def leave(self) -> None:
        """Gives the place to whoever waits longest, or back."""
        if self._waiting:
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            ticket.set()
        else:
            self._inside -= 1

    def _refusal(self) -> Overloaded:
        self._refused += 1
        return Overloaded(self.scope, self.limit, len(self._waiting))

    def statistics(self) -> LimiterStatistics:
        """Where the limiter stands."""
        return LimiterStatistics(self._inside, len(self._waiting), self._refused)

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.scope} {self._inside}/{self.limit} waiting={len(self._waiting)}>"
