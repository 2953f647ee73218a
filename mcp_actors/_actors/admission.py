"""The bounds on calls: a number of them runs at once, a number waits for that, and the others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from mcp_actors._actors.budgets import ClientMemory
from mcp_actors._eras.era import Invocation
from mcp_actors._record import ValueRecord
from mcp_actors.errors import Overloaded

__all__ = ["Admission", "ConcurrencyLimiter", "LimiterStatistics", "Limiters"]


@attrs.frozen(eq=False, repr=False)
class LimiterStatistics(ValueRecord):
    """A snapshot of a `ConcurrencyLimiter`."""

    inside: int
    """Calls that run now."""
    waiting: int
    """Calls that wait until another call ends."""
    refused: int
    """Calls that were refused since the start."""


class ConcurrencyLimiter:
    """A counter of running calls with a bounded queue of waiting ones; entering costs next to nothing while there is
    room.

    A call that waits has a ticket, an event that is set when its turn comes. Tickets are issued in the read path, so
    their order is that of arrival, whatever order the waiting tasks are scheduled in.
    """

    def __init__(self, scope: str, limit: int, waiting_limit: int, max_wait: float) -> None:
        self.scope = scope
        self.limit = limit
        self.waiting_limit = waiting_limit
        self.max_wait = max_wait
        self._inside = 0
        self._refused = 0
        # Empty while there is room: a call that ends hands its place to the first one that waits.
        self._waiting: dict[trio.Event, None] = {}

    def try_enter(self) -> bool:
        """Enters if there is room now."""
        if self._inside < self.limit:
            self._inside += 1
            return True
        return False

    def issue_ticket(self) -> trio.Event:
        """Issues a ticket for `enter`; raises `Overloaded` when too many calls wait already."""
        if len(self._waiting) >= self.waiting_limit:
            raise self._refusal()
        ticket = trio.Event()
        self._waiting[ticket] = None
        return ticket

    async def enter(self, ticket: trio.Event) -> None:
        """Waits for room, in the order of the tickets; raises `Overloaded` after ``max_wait`` seconds.

        Each ticket must be brought here, by a task that may be cancelled already. Cancelled while it waits, the call
        has left the queue.
        """
        # A set ticket means that this call has entered: no checkpoint may come between it and our caller.
        if not ticket.is_set():
            try:
                with trio.move_on_after(self.max_wait):
                    await ticket.wait()
            except trio.Cancelled:
                # The place was handed over after the cancellation and before the task noticed it.
                if ticket.is_set():
                    self.leave()
                raise
            finally:
                self._waiting.pop(ticket, None)
            if not ticket.is_set():
                raise self._refusal()

    def leave(self) -> None:
        """Hands the place to the call that waits longest, or gives it back."""
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
        """Returns the counts of the moment."""
        return LimiterStatistics(self._inside, len(self._waiting), self._refused)

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.scope} {self._inside}/{self.limit} waiting={len(self._waiting)}>"


class Left(Protocol):
    """A limiter that a call has entered, or bytes that it holds: the call leaves it at its end."""

    def leave(self) -> None: ...


class Admission:
    """The limiters that one call has entered and has still to enter; `release` is called once, when it has ended."""

    __slots__ = ("_entered", "_ticket", "ahead")

    def __init__(
        self,
        entered: Sequence[Left],
        ahead: Sequence[ConcurrencyLimiter] = (),
        ticket: trio.Event | None = None,
    ) -> None:
        self._entered = entered
        self.ahead = ahead
        """What the call has still to enter before it may run."""
        self._ticket = ticket

    async def wait(self) -> None:
        """Enters what is ahead; raises `Overloaded` when that takes too long. Cancelled, it keeps what it entered."""
        entered: list[Left] = list(self._entered)
        ahead = self.ahead
        ticket, self._ticket = self._ticket, None
        self._entered, self.ahead = entered, ()
        for limiter in ahead:
            if ticket is None and not limiter.try_enter():
                ticket = limiter.issue_ticket()
            if ticket is not None:
                await limiter.enter(ticket)
                ticket = None
            entered.append(limiter)

    def holding(self, held: Left) -> Admission:
        """Returns this admission, with something more that is left at the end of the call."""
        return Admission((*self._entered, held), self.ahead, self._ticket)

    def release(self) -> None:
        """Leaves every limiter that was entered."""
        for limiter in self._entered:
            limiter.leave()


class Limiters:
    """The limiters that a call of one session has to enter, in order."""

    def __init__(self, *limiters: ConcurrencyLimiter, memory: ClientMemory | None = None) -> None:
        self.limiters = limiters
        self.memory = memory
        """The memory that the calls take, and what else the peer makes this side keep; clients have none."""
        # Shared by all calls that need not wait: it has no state of its own then.
        self._complete = Admission(limiters)

    def admit(self) -> Admission:
        """Enters as many limiters as it can without waiting; raises `Overloaded` when not even waiting is possible."""
        for number, limiter in enumerate(self.limiters):
            if not limiter.try_enter():
                return self._partial(number)
        return self._complete

    def admit_weighed(self, invocation: Invocation, size: int) -> Admission:
        """As `admit`, for a call with ``size`` bytes of params; raises `Overloaded` for too many bytes too."""
        if self.memory is None:
            return self.admit()
        held = self.memory.hold(invocation, size)
        try:
            return self.admit().holding(held)
        except Overloaded:
            held.leave()
            raise

    def _partial(self, number: int) -> Admission:
        entered = self.limiters[:number]
        try:
            ticket = self.limiters[number].issue_ticket()
        except Overloaded:
            for limiter in entered:
                limiter.leave()
            raise
        # The limiters behind this one are entered from the call's own task: a call that waits here takes no room there.
        return Admission(entered, self.limiters[number:], ticket)
