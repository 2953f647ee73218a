"""Every bound of the engine, named, with its default and the reason for it, and the limiters that keep the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from mcp_actors._eras.era import Invocation
from mcp_actors.errors import Overloaded
from mcp_actors.supervision.budget import Account, Budget, BudgetStatistics, holder_of
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "WEIGHED_BYTES",
    "Admission",
    "Budgets",
    "ClientMemory",
    "ConcurrencyLimiter",
    "HeldBytes",
    "LimiterStatistics",
    "Limiters",
    "Limits",
    "MemoryStatistics",
]


MIB = 1024 * 1024


@frozen_record(kw_only=True, eq=False, repr=False)
class Limits(ValueRecord):
    """Bounds of one connection and, where the name says so, of one server: frames, calls, seconds.

    Raises:
        ValueError: One is negative or NaN, or is 0 where nothing would ever be served then.
    """

    max_in_flight: int = 1024
    """Calls that run at once on one connection: more than any honest peer keeps open."""

    max_waiting: int = 1024
    """Calls that may wait for one of those places; the next one is refused with `Overloaded`."""

    max_wait: float = 30.0
    """How long a call may wait for its place before it is refused."""

    server_max_in_flight: int = 10_000
    """Calls that run at once on all connections of one server; each costs about 10 KiB."""

    in_flight_bytes: int = 256 * MIB
    """Bytes of params of the calls in flight of one principal or, without one, of one address: sixteen of the longest.
    Those with less than 16 KiB are not weighed: their number is limited. Over it a call is refused: `Overloaded`."""

    server_in_flight_bytes: int = 1024 * MIB
    """The same for all clients."""

    kept_bytes: int = 64 * MIB
    """What all sessions of one principal or address, and its open ``subscriptions/listen``, make the server remember:
    the description of the client, at most 128 KiB a session, and the URIs that are subscribed to."""

    server_kept_bytes: int = 256 * MIB
    """The same for all clients."""

    isolated_processes: int = 4
    """Processes for the functions of tools with ``isolate="process"``, each of 50 MiB and more, of a server that has
    any: as many of them run at once. Up to ``max_waiting`` calls wait for one, ``max_wait`` seconds at most."""

    idle_tasks: int = 64
    """Tasks that one connection keeps for calls to come, each of some 4 KiB; a quiet connection never made them."""

    outbox: int = 1024
    """Frames queued for the peer; a sender waits when it is full. An answer to each call that may be in flight: when
    all of them answer in one turn, none waits for the writer."""

    progress_queue: int = 16_384
    """Progress reports that wait for a slow callback; beyond it the oldest are dropped and counted."""

    beat: float = 15.0
    """Silence after which a server reports progress itself for a call that was made with a progress token: a quarter of
    the minute after which other clients give up, and half of our own clients' 30 s. 0 switches this off."""

    stall_timeout: float = 30.0
    """How long a full outbox may stay full without one write getting through; then the connection counts as broken."""

    cache_bytes: int = 16 * MIB
    """Bytes of answers that a client keeps because the server said how long they are good for; the oldest go first."""

    drain_delay: float = 0.0
    """How long a server that is to stop serves on, unready, so that proxies send nothing more: longer than two of their
    checks. Nobody asks for it where there is no proxy."""

    drain_grace: float = 5.0
    """How long calls in flight may go on after that. What is left then is answered with `ServerStopping`."""

    end_grace: float = 0.8
    """How long calls in flight may go on after the peer has ended its input, if ``drain_grace`` is not shorter: with
    ``close_timeout`` inside of the 2 s after which the official clients signal a server over stdio."""

    close_timeout: float = 1.0
    """How long closing may take to write what is queued."""

    ask_timeout: float = 600.0
    """How long a question to the client may take: a person may have to read it."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Limits):
            value, least = getattr(self, field.name), 1 if field.name in _NEEDED else 0
            # NaN is not at least anything.
            if not value >= least:
                raise ValueError(f"{field.name} is at least {least}, not {value!r}")


# Without one of these, nothing would ever be served.
_NEEDED = frozenset(
    {"max_in_flight", "server_max_in_flight", "isolated_processes", "outbox", "progress_queue"}
)


# -- the budgets of a server: the bytes that its clients make it hold ----------------------------------------------

# Bytes of params from which on a call is weighed: below it, the limit on the number of calls is enough.
WEIGHED_BYTES = 16 * 1024


@frozen_record(eq=False, repr=False)
class MemoryStatistics(ValueRecord):
    """The bytes that clients make a server hold, by principal or address."""

    in_flight: BudgetStatistics
    """Params of calls in flight, where they are long enough to be weighed."""
    kept: BudgetStatistics
    """What sessions and subscriptions make the server remember."""


class HeldBytes:
    """The bytes of one call in flight, which a call leaves at its end, as it leaves a limiter."""

    __slots__ = ("_budget", "_holder", "_size")

    def __init__(self, budget: Budget, holder: str | None, size: int) -> None:
        self._budget = budget
        self._holder = holder
        self._size = size

    def leave(self) -> None:
        """Takes back the charge."""
        self._budget.release(self._holder, self._size)


class Budgets:
    """The two budgets of one server, to which its clients are charged."""

    __slots__ = ("in_flight", "kept")

    def __init__(self, limits: Limits) -> None:
        self.in_flight = Budget(limits.server_in_flight_bytes, limits.in_flight_bytes)
        self.kept = Budget(limits.server_kept_bytes, limits.kept_bytes)

    def statistics(self) -> MemoryStatistics:
        """Returns a snapshot."""
        return MemoryStatistics(self.in_flight.statistics(), self.kept.statistics())


class ClientMemory:
    """The memory that one session, or all requests that came by themselves, take on the server.

    Args:
        account: What the session is charged for; ``None`` for requests that came by themselves.
    """

    __slots__ = ("_budgets", "account")

    def __init__(self, budgets: Budgets, account: Account | None) -> None:
        self._budgets = budgets
        self.account = account

    @property
    def kept(self) -> int:
        """Bytes that the session makes the server remember."""
        return 0 if self.account is None else self.account.held

    def hold(self, invocation: Invocation, size: int) -> HeldBytes:
        """Charges a call whose params have ``size`` bytes.

        Raises:
            Overloaded: Too many bytes of calls are in flight, of this client or of all.
        """
        budget, holder = self._budgets.in_flight, self.holder(invocation)
        over = budget.charge(holder, size)
        if over is not None:
            raise Overloaded.for_bytes("calls in flight", over, budget.limit_of(over))
        return HeldBytes(budget, holder, size)

    def new_account(self, invocation: Invocation) -> Account:
        """Returns an account for what one call makes the server keep; its user takes everything back."""
        return Account(self._budgets.kept, self.holder(invocation))

    def forget(self) -> None:
        """Takes back what is kept, because the session has ended."""
        if self.account is not None:
            self.account.keep(0)

    def holder(self, invocation: Invocation) -> str | None:
        """Returns who is charged for a call: its principal or, without one, its address."""
        if self.account is not None:
            return self.account.holder
        return holder_of(invocation.address, invocation.principal)


# -- the bounds on calls: some run at once, some wait, and the others are refused ----------------------------------


@frozen_record(eq=False, repr=False)
class LimiterStatistics(ValueRecord):
    """A snapshot of a `ConcurrencyLimiter`."""

    inside: int
    """Calls that run now."""
    waiting: int
    """Calls that wait until another call ends."""
    refused: int
    """Calls that were refused since the start."""
    limit: int = 0
    """Calls that may run at a time."""


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
        self.inside = 0
        self._refused = 0
        self.waiting: dict[trio.Event, None] = {}
        """Empty while there is room: a call that ends hands its place to the first one that waits."""

    def try_enter(self) -> bool:
        """Enters if there is room now."""
        if self.inside < self.limit:
            self.inside += 1
            return True
        return False

    def issue_ticket(self) -> trio.Event:
        """Issues a ticket for `enter`; raises `Overloaded` when too many calls wait already."""
        if len(self.waiting) >= self.waiting_limit:
            raise self._refusal()
        ticket = trio.Event()
        self.waiting[ticket] = None
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
                self.waiting.pop(ticket, None)
            if not ticket.is_set():
                raise self._refusal()

    def leave(self) -> None:
        """Hands the place to the call that waits longest, or gives it back."""
        if self.waiting:
            ticket = next(iter(self.waiting))
            del self.waiting[ticket]
            ticket.set()
        else:
            self.inside -= 1

    def _refusal(self) -> Overloaded:
        self._refused += 1
        return Overloaded(self.scope, self.limit, len(self.waiting))

    def statistics(self) -> LimiterStatistics:
        """Returns the counts of the moment."""
        return LimiterStatistics(self.inside, len(self.waiting), self._refused, self.limit)

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.scope} {self.inside}/{self.limit} waiting={len(self.waiting)}>"


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


class CompleteAdmission(Admission):
    """The admission that all calls share which need not wait. It has no state of its own.

    Entering and leaving are written out here, since most calls do no more than that with a limiter.
    """

    __slots__ = ("_limiters",)

    def __init__(self, limiters: Sequence[ConcurrencyLimiter]) -> None:
        super().__init__(limiters)
        self._limiters = limiters

    def release(self) -> None:
        for limiter in self._limiters:
            if limiter.waiting:
                limiter.leave()
            else:
                limiter.inside -= 1


class Limiters:
    """The limiters that a call of one session has to enter, in order."""

    def __init__(self, *limiters: ConcurrencyLimiter, memory: ClientMemory | None = None) -> None:
        self.limiters = limiters
        self.memory = memory
        """The memory that the calls take, and what else the peer makes this side keep; clients have none."""
        self._complete = CompleteAdmission(limiters)

    def admit(self) -> Admission:
        """Enters as many limiters as it can without waiting; raises `Overloaded` when not even waiting is possible."""
        for limiter in self.limiters:
            if limiter.inside >= limiter.limit:
                return self._partial(self.limiters.index(limiter))
            limiter.inside += 1
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
