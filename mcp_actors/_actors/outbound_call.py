"""An outbound call: a request of ours that waits for its answer, with its options and its two clocks."""

from __future__ import annotations

import inspect
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, Self

import msgspec
import trio

from mcp_actors._wire.codec import JsonRpcError, JsonRpcResult, RequestId
from mcp_actors.abc import Frame
from mcp_actors.errors import CallTimeout
from mcp_actors.supervision.blockages import blockage_log
from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.task_kinds import SESSION_CLOCK
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "CallOptions",
    "Deadline",
    "DeadlineClock",
    "MessageCallback",
    "OutboundCall",
    "OutboundCallStatistics",
    "Progress",
    "ProgressCallback",
    "WaitingTasks",
]


class WaitingTasks:
    """Lets tasks wait until they are woken. It makes a `trio.lowlevel.ParkingLot` only when the first task waits."""

    __slots__ = ("_lot",)

    def __init__(self) -> None:
        self._lot: trio.lowlevel.ParkingLot | None = None

    def __repr__(self) -> str:
        return f"<WaitingTasks {0 if self._lot is None else len(self._lot)}>"

    def __bool__(self) -> bool:
        return bool(self._lot)

    async def park(self) -> None:
        """Waits until this task is woken."""
        if self._lot is None:
            self._lot = trio.lowlevel.ParkingLot()
        await self._lot.park()

    def unpark(self) -> None:
        """Wakes the task that has waited longest, if there is one."""
        if self._lot is not None:
            self._lot.unpark()

    def unpark_all(self) -> None:
        """Wakes every task that waits."""
        if self._lot is not None:
            self._lot.unpark_all()


# -- two clocks for every call of ours, ``min(now + idle, start + cap)``, and the one actor that watches them ------
#
# A cancel scope with a deadline for each call would cost more than sending it; one task per session that sleeps until
# the earliest deadline costs a comparison.


class Deadline(msgspec.Struct, eq=False, gc=False):
    """Progress moves the idle clock, nothing moves the cap. Seconds; `math.inf` switches a clock off.

    The engine of a server reports progress for calls that say nothing (`Limits.beat`). So the idle clock ends calls
    whose server or connection is gone, and the cap those that never end.
    """

    # Structs, since one of each is made for each call: msgspec fills them without a function of ours.
    started: float
    idle: float
    cap: float
    ends_at: float
    at: float
    _held: int = 0

    @classmethod
    def of(cls, idle: float, cap: float) -> Self:
        """Returns a deadline whose clocks start now."""
        now = trio.current_time()
        ends_at = now + cap
        return cls(now, idle, cap, ends_at, ends_at if cap < idle else now + idle)

    def touch(self) -> None:
        """A sign of life: the idle clock starts anew."""
        if not self._held:
            self.at = min(trio.current_time() + self.idle, self.ends_at)

    def hold(self) -> None:
        """Stops the idle clock, for while the peer waits for us and not we for it."""
        self._held += 1
        self.at = self.ends_at

    def release(self) -> None:
        """Starts the idle clock again after as many calls of this as of `hold`."""
        self._held -= 1
        self.touch()

    def move(self, seconds: float) -> None:
        """Moves both clocks, for while neither ran."""
        self.at += seconds
        self.ends_at += seconds

    @property
    def which(self) -> Literal["idle", "cap"]:
        """The name of the clock that runs out first, or has run out."""
        return "cap" if self.at >= self.ends_at else "idle"


class Watched(Protocol):
    """Something that a clock wakes when its time is over."""

    @property
    def deadline(self) -> Deadline: ...

    def expire(self) -> None:
        """The deadline has passed."""


class DeadlineClock:
    """Expires what is in ``watched`` when its time has come. Its task exists only once there was something."""

    def __init__(
        self,
        watched: Mapping[Any, Watched],
        start_task: Callable[[TaskKind, Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._watched = watched
        # It belongs to the session, which has this clock, so it is None once nothing will expire any more.
        self._start_task: Callable[[TaskKind, Callable[[], Awaitable[None]]], None] | None = start_task
        self._running = False
        self._wakes_at = math.inf
        self._stopped_at: float | None = None
        self._parked = WaitingTasks()

    def __repr__(self) -> str:
        return f"<DeadlineClock {'running' if self._running else 'idle'} watching={len(self._watched)}>"

    def watch(self, deadline: Deadline) -> None:
        """Takes note of a deadline that is new or was moved closer."""
        if deadline.at < self._wakes_at:
            # So that no second call of the same turn asks for the same again.
            self._wakes_at = deadline.at
            if self._running:
                self._parked.unpark_all()
            elif self._start_task is not None:
                self._running = True
                self._start_task(SESSION_CLOCK, self._run)

    @property
    def is_stopped(self) -> bool:
        """Whether no time passes, from `stop` to `go_on`."""
        return self._stopped_at is not None

    def stop(self) -> None:
        """Lets nothing expire until `go_on`: a person is asked, who may take any time."""
        if self._stopped_at is None:
            self._stopped_at = trio.current_time()

    def go_on(self) -> None:
        """Moves every deadline by as long as the clock stood still for it."""
        if self._stopped_at is None:
            return
        now, stopped_at, self._stopped_at = trio.current_time(), self._stopped_at, None
        for each in self._watched.values():
            each.deadline.move(now - max(stopped_at, each.deadline.started))
        self._parked.unpark_all()

    def end(self) -> None:
        """Nothing will expire any more."""
        self._start_task = None
        self._parked.unpark_all()

    async def _run(self) -> None:
        while self._start_task is not None:
            now = trio.current_time()
            earliest = math.inf
            for each in () if self.is_stopped else list(self._watched.values()):
                if each.deadline.at <= now:
                    each.expire()
                else:
                    earliest = min(earliest, each.deadline.at)
            self._wakes_at = earliest
            with trio.move_on_at(earliest):
                await self._parked.park()


@frozen_record(eq=False, repr=False)
class Progress(ValueRecord):
    """One report of a peer's progress."""

    progress: float
    """Grows with each report."""
    total: float | None = None
    """What ``progress`` will reach at the end, when the peer knows."""
    message: str | None = None


ProgressCallback = Callable[[Progress], Awaitable[None] | None]
"""A function, async or not, that is called with each `Progress` of a call."""
MessageCallback = Callable[[str, dict[str, Any]], bool]


@frozen_record(kw_only=True, eq=False, repr=False)
class CallOptions(ValueRecord):
    """The options of one request, created where the call is and passed on as one value."""

    idle: float
    """Seconds without an answer or a progress report after which the call fails; `math.inf` switches this off."""
    cap: float
    """Seconds after which the call fails whatever the peer reports; `math.inf` switches this off."""
    on_progress: ProgressCallback | None = None
    """Is called with each progress report, in the order of arrival, by the task that waits for the answer."""
    wants_progress: bool = False
    """Whether the peer is asked for reports although nothing is called with them: each one restarts ``idle``."""
    meta: Mapping[str, Any] | None = None
    """Members of the request's ``_meta``, beside those that every request of the session carries, which win."""
    cancellable: bool = True
    """Whether the peer may be sent ``notifications/cancelled`` for this request."""
    is_forwarded: bool = False
    """Whether ``meta`` is another client's, so that a trace of our own takes the place of the one in it."""
    envelope: Mapping[str, Any] | None = None
    """Replaces what every request of the session carries in its ``_meta``: for a request that is made on
    behalf of another client."""
    on_message: MessageCallback | None = None
    """Is called, in the read path, with each notification that came with this request, where the binding tells that,
    and returns whether it has taken it."""
    waits_for_server: bool = True
    """Whether it is sent again, within its time, to a server that cannot be reached or refuses it unbegun."""
    sends_deadline: bool = False
    """Whether the peer is sent, in ``_meta``, how much of its time is left: see `mcp_actors._actors.deadlines`."""


@frozen_record(eq=False, repr=False)
class OutboundCallStatistics(ValueRecord):
    """A snapshot of a pending call."""

    id: RequestId
    method: str
    age: float
    """Seconds since it was made."""
    progress_waiting: int
    """Progress reports that the callback has not seen yet."""
    remaining: float
    """Seconds until it fails if nothing comes; `math.inf` without a limit."""


class OutboundCall(msgspec.Struct, eq=False):
    """The waiting task runs the progress callbacks itself: in wire order, and all of them before the answer."""

    id: RequestId
    method: str
    idle: float
    cap: float
    on_progress: ProgressCallback | None = None
    _progress: deque[Progress] | None = None
    """The reports that `on_progress` has not seen yet."""
    on_message: MessageCallback | None = None
    unsent: Frame | None = None
    """The frame, as long as it has found no room."""
    never_sent: bool = False
    """Whether nothing of it was sent before the connection broke."""
    dropped: int = 0
    _answer: JsonRpcResult | JsonRpcError | BaseException | None = None
    _reporting: trio.CancelScope | None = None
    _task: trio.lowlevel.Task | None = None
    on_done: Callable[[], None] | None = None
    """Is called in place of a task that waits: see `when_done`."""
    clocks: Deadline | None = None
    """Its `deadline`, once that was asked for."""

    def __repr__(self) -> str:
        state = "answered" if self._answer is not None else "waiting"
        return f"<OutboundCall {self.id!r} {self.method} {state}>"

    @property
    def deadline(self) -> Deadline:
        """Its clocks, which start when something asks for them: a call that is answered while it is sent needs none."""
        if self.clocks is None:
            self.clocks = Deadline.of(self.idle, self.cap)
        return self.clocks

    def wait(self) -> Awaitable[object]:
        """Waits for the answer, which `taken` returns. Cancelled, it forgets what arrives later."""
        if self._progress is not None:
            return self._wait_and_report()
        if self._answer is not None:
            # A peer in this process may have answered before we came here.
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105
        # Nothing but the answer wakes the task, so nothing is left to be looked at afterwards.
        self._task = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._abort)  # noqa: ASYNC105

    async def _wait_and_report(self) -> None:
        if self._answer is not None:
            await trio.lowlevel.checkpoint()
        while True:
            if self._progress:
                await self._report(self._progress.popleft())
            elif self._answer is not None:
                return
            else:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    def when_done(self, done: Callable[[], None]) -> None:
        """Has ``done`` called, in the read path, in place of a task that waits: now, if it was answered already.

        It is called once, when the answer is there or progress that somebody has to be called with.
        """
        if self._answer is not None:
            done()
        else:
            self.on_done = done

    def taken(self) -> JsonRpcResult | JsonRpcError:
        """Returns the answer that `wait` or `when_done` has waited for; raises what `resolve` was given instead."""
        assert self._answer is not None
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _report(self, progress: Progress) -> None:
        assert self.on_progress is not None
        outcome = self.on_progress(progress)
        if inspect.isawaitable(outcome):
            with trio.CancelScope() as self._reporting:
                await outcome
            self._reporting = None

    def progressed(self, progress: Progress) -> None:
        """Takes one progress report; the idle clock starts anew. Reports after the answer are dropped."""
        if self._answer is not None:
            return
        self.deadline.touch()
        if self._progress is not None:
            if len(self._progress) == self._progress.maxlen:
                self.dropped += 1
            self._progress.append(progress)
            self._wake()

    def resolve(self, answer: JsonRpcResult | JsonRpcError | BaseException) -> None:
        """Takes the answer, or the reason why there will be none. Only the first one counts.

        An answer waits for the progress callbacks; a failure does not, or a callback that hangs would hold it up.
        """
        if self._answer is not None:
            return
        self._answer = answer
        if isinstance(answer, BaseException) and self._progress is not None:
            self._progress.clear()
            if self._reporting is not None:
                self._reporting.cancel(reason="the call has failed")
        self._wake()

    def expire(self) -> None:
        """A clock ran out before the answer came."""
        deadline = self.deadline
        clock = deadline.which
        seconds = deadline.idle if clock == "idle" else deadline.cap
        # A server in this loop may have kept the answer from being read.
        took = trio.current_time() - deadline.started
        blockage = blockage_log.within(took, threading.get_ident())
        blocked = "" if blockage is None else blockage.sentence()
        self.resolve(CallTimeout(self.method, clock, seconds, blocked))

    @property
    def is_open(self) -> bool:
        """Whether neither an answer has come nor a reason why there will be none."""
        return self._answer is None

    @property
    def answered(self) -> bool:
        """Whether the peer has nothing more to do for this call."""
        return isinstance(self._answer, (JsonRpcResult, JsonRpcError))

    def _wake(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        elif self.on_done is not None:
            done, self.on_done = self.on_done, None
            done()

    def statistics(self) -> OutboundCallStatistics:
        """Returns a snapshot of the call."""
        now, deadline = trio.current_time(), self.deadline
        return OutboundCallStatistics(
            self.id, self.method, now - deadline.started, len(self._progress or ()), deadline.at - now
        )
