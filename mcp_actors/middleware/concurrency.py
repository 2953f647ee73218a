"""A bound on calls that run at once, with a fair share for each caller."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, ClassVar

import attrs
import trio

from mcp_actors._server.invoke import ThreadUse, thread_use
from mcp_actors.errors import Overloaded
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.logging import log

__all__ = ["ConcurrencyLimit", "ConcurrencyStatistics"]

# A subscription lasts, a client asks by the other whether the server is alive, and what begins with the prefix waits
# for tasks, which have places of their own: none of them has a place.
_WITHOUT_PLACE = frozenset({"subscriptions/listen", "server/discover"})
_OF_TASKS = "tasks/"
# Calls that a program may allow at once or let wait, and seconds that one may wait: a day.
MOST = 1_000_000
LONGEST_WAIT = 86_400.0
# Seconds that a refused caller is asked to wait, whatever the measured calls took.
SHORTEST_HINT = 0.1
LONGEST_HINT = 60.0
# The weight of the latest call in the mean of how long a call holds its place.
_WEIGHT = 0.1


@attrs.frozen
class ConcurrencyStatistics:
    """A snapshot of a `ConcurrencyLimit`."""

    running: int
    """Calls that have a place."""
    waiting: int
    """Calls that wait for one."""
    callers: int
    """Callers that have a call which runs or waits; nothing is kept of the others."""
    refused: int
    """Calls that were refused since the start."""


class _Caller:
    """The calls of one caller that run, and those that wait in the order of their arrival."""

    __slots__ = ("key", "running", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.running = 0
        # Empty while the caller may begin calls: a set ticket has a place.
        self.waiting: dict[trio.Event, None] = {}


class ConcurrencyLimit:
    """Middleware of a server: so many calls run at once, and callers that wait take turns.

    A free place goes to the caller whose turn it is, not to the call that has waited longest: a caller of a thousand
    calls waits behind itself alone. ``per_caller`` keeps places for others where calls take long. A call that finds no
    place waits; when ``waiting`` calls of its caller wait already, or after ``max_wait`` seconds, it is refused with
    `Overloaded`, which says when to come again. Cancelled, it leaves its place or the queue at once, but for a plain
    function, which keeps the place until its thread has ended. ``ping``,
    ``initialize``, ``server/discover``, subscriptions and the requests about tasks need no place; a task that runs has
    one. Functions of notifications count as calls, and are dropped where these are refused. `caller_of` says who is a
    caller.

    Args:
        places: Calls that run at once.
        per_caller: How many of them one caller may have; by default half of them, so that the other half is for others.
        waiting: Calls of one caller that wait; 100 are a burst that an honest client has, and cost some 100 KiB.
        max_wait: Seconds that a call waits, by default as long as a client waits for a sign of life.

    Raises:
        ValueError: A number is out of range.
        TypeError: One of them is not a number.
    """

    for_side: ClassVar = "server"

    def __init__(
        self, places: int, *, per_caller: int | None = None, waiting: int = 100, max_wait: float = 30.0
    ) -> None:
        require_number("ConcurrencyLimit(places=)", places, 1, MOST, whole=True)
        share = max(1, places // 2) if per_caller is None else per_caller
        require_number("ConcurrencyLimit(per_caller=)", share, 1, places, whole=True)
        require_number("ConcurrencyLimit(waiting=)", waiting, 0, MOST, whole=True)
        require_number("ConcurrencyLimit(max_wait=)", max_wait, 0.001, LONGEST_WAIT)
        self.places = places
        self.per_caller = share
        self.waiting = waiting
        self.max_wait = max_wait
        self._running = 0
        self._refused = 0
        self._callers: dict[str, _Caller] = {}
        # Callers with calls that wait for nothing but a place, the next one first. Empty while there is a place.
        self._turns: dict[_Caller, None] = {}
        # Seconds that a call holds its place, the mean of the last ones.
        self._mean = 0.0

    def __repr__(self) -> str:
        return f"<ConcurrencyLimit {self._running}/{self.places} callers={len(self._callers)}>"

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Runs a call in a place.

        Raises:
            Overloaded: Too many calls of this caller wait, or this one has waited too long.
        """
        if ctx.method in _WITHOUT_PLACE or ctx.method.startswith(_OF_TASKS):
            return await call_next()
        caller = await self._entered(caller_of(ctx))
        began = trio.current_time()
        use = ThreadUse.of(ctx.call)
        former = thread_use.set(use)
        try:
            return await call_next()
        finally:
            thread_use.reset(former)
            self._mean += (trio.current_time() - began - self._mean) * _WEIGHT
            # A plain function runs on in its thread when its call was cancelled: until its end the place is taken.
            use.when_over(partial(self._leave, caller))

    async def notification(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Runs the function of a notification in a place, or drops the notification."""
        try:
            await self(ctx, call_next)
        except Overloaded as error:
            log.debug("notification dropped", method=ctx.method, error=str(error))

    def statistics(self) -> ConcurrencyStatistics:
        """Returns the counts of the moment."""
        waiting = sum(len(each.waiting) for each in self._callers.values())
        return ConcurrencyStatistics(self._running, waiting, len(self._callers), self._refused)

    async def _entered(self, key: str) -> _Caller:
        """Returns the caller, when its call has a place."""
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = _Caller(key)
        if self._running < self.places and caller.running < self.per_caller:
            self._running += 1
            caller.running += 1
        else:
            await self._wait(caller)
        return caller

    async def _wait(self, caller: _Caller) -> None:
        if len(caller.waiting) >= self.waiting:
            self._sort(caller)
            raise self._refusal(caller)
        ticket = trio.Event()
        caller.waiting[ticket] = None
        self._sort(caller)
        try:
            with trio.move_on_after(self.max_wait):
                await ticket.wait()
        except BaseException:
            # The place was handed over after the cancellation and before the task noticed it.
            if ticket.is_set():
                self._leave(caller)
            raise
        finally:
            if not ticket.is_set():
                del caller.waiting[ticket]
                self._sort(caller)
        if not ticket.is_set():
            raise self._refusal(caller)

    def _leave(self, caller: _Caller) -> None:
        """Gives a place back, and hands it to the caller whose turn it is."""
        self._running -= 1
        caller.running -= 1
        self._sort(caller)
        while self._turns and self._running < self.places:
            following = next(iter(self._turns))
            # Behind the others, if it waits for another place.
            del self._turns[following]
            ticket = next(iter(following.waiting))
            del following.waiting[ticket]
            self._running += 1
            following.running += 1
            self._sort(following)
            ticket.set()

    def _sort(self, caller: _Caller) -> None:
        """Puts a caller among those that take turns, or takes it out; forgets one that has no calls."""
        if caller.waiting and caller.running < self.per_caller:
            self._turns.setdefault(caller)
        else:
            self._turns.pop(caller, None)
            if not caller.running and not caller.waiting:
                self._callers.pop(caller.key, None)

    def _refusal(self, caller: _Caller) -> Overloaded:
        self._refused += 1
        hint = self._mean * (len(caller.waiting) + 1) / self.per_caller
        # With a random part, so that all that are refused together do not come back together.
        hint = min(max(hint, SHORTEST_HINT) * random.uniform(1.0, 2.0), LONGEST_HINT)
        return Overloaded.for_caller("calls that run or wait", self.per_caller + self.waiting, hint)
