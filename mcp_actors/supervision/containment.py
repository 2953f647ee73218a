"""The table of every kind of task: its owner, the cost of a crash, who is notified, and whether it is started again.

`TASKS` is the table. Every task of the engine and of the bindings of this project has a row in it, and a task's name
in Trio begins with the name of its row. A task is started by `start`, `start_and_wait` or `start_again`, which apply
the row: they contain whatever the task raises, log it, and tell the owner.

What counts as a crash: every exception that leaves a task, `BaseException` and `SystemExit` included, and a
`trio.Cancelled` that no cancelled scope round the task accounts for (a stored one that was raised again). What does
not: being cancelled, `KeyboardInterrupt`, which belongs to the program, and the end of the interpreter.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Literal

import msgspec
import trio

from mcp_actors.supervision.logging import log
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "INNERMOST_SCOPE",
    "Containment",
    "Cost",
    "Crash",
    "CrashLog",
    "TaskKind",
    "crash_log",
    "http_refusals",
    "one_error",
    "outliving",
    "reraised",
    "sole_cause",
    "start",
    "start_again",
    "start_and_wait",
]


# -- exception groups of one exception, in which nurseries wrap what leaves them -----------------------------------


def sole_cause(error: BaseException) -> BaseException:
    """Returns the only exception inside nested groups, or the innermost group that holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class one_error:
    """Raises the sole cause of an exception group instead of the group, so that nurseries of the engine do not show.

    It is not a generator, whose frames would keep the group, and with it the cause and all frames, until the garbage
    collector runs.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        cause = sole_cause(error)
        if cause is error:
            return
        context = cause.__context__
        try:
            raise cause from cause.__cause__
        finally:
            # Python has made the group, which has the cause, the context of the cause.
            cause.__context__ = context
            del cause, context, error, traceback


# -- the last crashes of tasks in this process ---------------------------------------------------------------------
#
# A crash is contained and logged by `mcp_actors.supervision.containment`. It is also counted here, and the last ones
# are kept, so that metrics and a live view can say how often a kind of task has failed, and why it was started again.

# Crashes that are kept, and characters of each: what peers can cause must not fill the memory.
KEPT = 64
CHARACTERS = 200


@frozen_record(eq=False, repr=False)
class Crash(ValueRecord):
    """One crash of a task."""

    kind: str
    """The name of the task's row in `mcp_actors.supervision.task_kinds.TASKS`."""
    task: str
    """The name of the task, cut to `CHARACTERS`."""
    error: str
    """The exception, cut to `CHARACTERS`."""
    at: float
    """Seconds since the epoch."""
    restarted: bool
    """Whether the task was started again."""


class CrashLog:
    """Counts crashes by kind of task and keeps the last `KEPT` of them. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: tuple[Crash, ...] = ()
        """The last ones, the oldest first."""
        self.unlock()

    def unlock(self) -> None:
        """Makes the lock; called again in a forked child, because a thread of the parent may have held it."""
        # A handler of signals may take note of a crash while its thread does.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<CrashLog {self.counts.total()}>"

    def note(self, kind: str, task: str, error: BaseException, restarted: bool) -> None:
        """Takes note of a crash."""
        crash = Crash(kind, task[:CHARACTERS], _text(error), time.time(), restarted)
        # Without the interpreter's lock two threads would count one for two.
        with self._lock:
            self.counts[kind] += 1
            self.recent = (*self.recent, crash)[-KEPT:]


def _text(error: BaseException) -> str:
    try:
        return repr(error)[:CHARACTERS]
    except Exception:
        # The form of an exception is a program's own code, and what contains a crash must not fail by it.
        return type(error).__name__


crash_log = CrashLog()
"""The crashes of this process."""

if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=crash_log.unlock)


# -- the HTTP requests that listeners of this process refused before there was a call ------------------------------
#
# A peer that tries tokens, or calls a server by a name that it does not have, is not a caller yet: no other number
# and no line of the log at a usual level shows it.

http_refusals: Counter[int] = Counter()
"""Refusals by status. There are at most 200 of them, because a refusal has a status between 400 and 599."""


Cost = Literal["nothing", "member", "call", "session", "connection", "transport", "server"]
"""What ends when a task of a kind crashes; ``member`` is one of those that the task serves."""

# Seconds before a crashed task that serves many is started again: a defect that is always there must not spin.
RESTART_PAUSE = 0.1


class TaskKind(msgspec.Struct, frozen=True):
    """A row of `mcp_actors.supervision.task_kinds.TASKS`."""

    name: str
    """What the task's name in Trio begins with."""
    supervisor: str
    """Whose nursery owns the task."""
    cost: Cost
    """What a crash of the task ends."""
    notified: str
    """Who learns of the crash, beside the log."""
    restarted: bool = False
    """Whether the task is started again after a crash."""


class Containment(msgspec.Struct, frozen=True):
    """A context manager that contains what leaves its block, applies the row of ``kind`` and calls ``on_crash``.

    ``on_crash(error)`` tells the owner; it must not wait, and what it raises is contained as well. ``details`` are
    written to the log with the crash.
    """

    kind: TaskKind
    on_crash: Callable[[BaseException], object] | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        crash = crash_in(error)
        if crash is None:
            return False
        log.error(f"{self.kind.name} failed", costs=self.kind.cost, exc_info=crash, **self.details)
        crash_log.note(self.kind.name, str(self.details.get("task", "")), crash, self.kind.restarted)
        if self.on_crash is not None:
            try:
                self.on_crash(crash)
            except Exception as failure:
                log.error(f"{self.kind.name}: its owner could not be notified", exc_info=failure)
        if crash is not error:
            # Beside the crash the task was cancelled, which its nursery has to see.
            raise cancellation_in(error)
        return True


def crash_in(error: BaseException) -> BaseException | None:
    """Returns the part of what left a task that is a crash, or ``None``: see the head of this module."""
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup((KeyboardInterrupt, GeneratorExit)) is not None:
            return None
        if is_cancelled():
            return error.subgroup(lambda each: not isinstance(each, (BaseExceptionGroup, trio.Cancelled)))
        return error
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return None
    if isinstance(error, trio.Cancelled) and is_cancelled():
        return None
    return error


# What identifies the cancel scope that a task is in. Trio has no public name for it, and a scope of its own for each
# call would cost more than all else that is done for it. With a Trio that hides it elsewhere, nothing is noticed.
INNERMOST_SCOPE = "_cancel_status"


def is_cancelled() -> bool:
    """Whether a scope round the running task is cancelled, so that a `trio.Cancelled` may leave it."""
    return trio.current_effective_deadline() == -math.inf


def cancellation_in(error: BaseException) -> BaseException:
    """Returns what is left of a group when `crash_in` has found a crash in it that is not all of it."""
    assert isinstance(error, BaseExceptionGroup)
    cancelled = error.subgroup(trio.Cancelled)
    assert cancelled is not None
    return cancelled


def start(
    nursery: trio.Nursery,
    kind: TaskKind,
    fn: Callable[..., Awaitable[object]],
    *args: Any,
    about: str = "",
    on_crash: Callable[[BaseException], object] | None = None,
) -> None:
    """Starts ``fn(*args)`` in ``nursery`` as a task of ``kind``. ``about`` is what the task's name says behind it."""
    name = f"{kind.name} {about}" if about else kind.name
    nursery.start_soon(_contained, Containment(kind, on_crash, {"task": name}), fn, args, name=name)


async def _contained(
    containment: Containment, fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
) -> None:
    with containment:
        await fn(*args)


async def start_and_wait(
    nursery: trio.Nursery,
    kind: TaskKind,
    fn: Callable[..., Awaitable[object]],
    *args: Any,
    about: str = "",
    on_crash: Callable[[BaseException], object] | None = None,
) -> Any:
    """As `start`, and waits until ``fn`` calls ``task_status.started(value)``; returns that value.

    What ``fn`` raises before that is raised here, and is not a crash.
    """
    name = f"{kind.name} {about}" if about else kind.name
    return await nursery.start(
        _contained_once_started, Containment(kind, on_crash, {"task": name}), fn, args, name=name
    )


async def _contained_once_started(
    containment: Containment,
    fn: Callable[..., Awaitable[object]],
    args: tuple[Any, ...],
    *,
    task_status: trio.TaskStatus[Any],
) -> None:
    status = _Noted(task_status)
    try:
        await fn(*args, task_status=status)
    except BaseException as error:
        if not status.has_started:
            raise
        with containment:
            raise error


class _Noted:
    """A `trio.TaskStatus` that remembers whether the start was reported."""

    def __init__(self, inner: trio.TaskStatus[Any]) -> None:
        self._inner = inner
        self.has_started = False

    def started(self, value: Any = None) -> None:
        self.has_started = True
        self._inner.started(value)


def start_again(
    nursery: trio.Nursery,
    kind: TaskKind,
    fn: Callable[..., Awaitable[object]],
    *args: Any,
    about: str = "",
) -> None:
    """As `start`, for a task that serves many: when it crashes it is started again after `RESTART_PAUSE` seconds."""
    name = f"{kind.name} {about}" if about else kind.name
    nursery.start_soon(_again, Containment(kind, None, {"task": name}), fn, args, name=name)


async def _again(
    containment: Containment, fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
) -> None:
    while True:
        with containment:
            await fn(*args)
            return
        await trio.sleep(RESTART_PAUSE)


@contextmanager
def reraised() -> Iterator[AbstractContextManager[None]]:
    """Raises what leaves an inner block again where the outer one ends, so that a nursery between them makes no group.

    ::

        with reraised() as body:
            async with trio.open_nursery() as nursery:
                with body:
                    yield channel
                nursery.cancel_scope.cancel()
    """
    kept = _Kept()
    error: BaseException | None = None
    # The frames of the error's traceback have it as a local: unless they drop it, it waits for the garbage collector.
    try:
        yield kept
        error = kept.error
    finally:
        kept.error = None
    try:
        if error is not None:
            raise error
    finally:
        del error


@asynccontextmanager
async def outliving(kind: TaskKind) -> AsyncIterator[trio.Nursery]:
    """Yields a nursery whose tasks go on while the block is cancelled, until it has ended.

    For what the cleanup of a cancelled block still needs, which bounds itself. ``kind`` is the row of the task that
    owns the nursery.
    """
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            inner: trio.Nursery = await start_and_wait(nursery, kind, _own_nursery)
            try:
                with body:
                    yield inner
            finally:
                inner.cancel_scope.cancel(reason="the block has ended")


async def _own_nursery(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        # Where the start was cancelled, Trio lets nobody have the task: behind a shield it would never end.
        await trio.lowlevel.checkpoint_if_cancelled()
        nursery.cancel_scope.shield = True
        task_status.started(nursery)
        await trio.sleep_forever()


class _Kept:
    """The inner block of `reraised`."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return True
