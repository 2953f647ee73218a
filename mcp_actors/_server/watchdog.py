"""The watchdog: a thread that looks at event loops, and says which call blocks one, and at which line.

Each loop has a beat, once in ``seconds``, which winds up the alarm that the thread waits for. While the beats come, the
thread sleeps, and wants neither the processor nor the interpreter's lock, for which it would have to compete with a
loop that never waits. When a beat is late, the alarm goes off, and the thread looks what the loop runs
(`sys._current_frames`) until the beat is there; after ``seconds`` without it the loop is blocked:

=========================================  ===========================================================================
what every look has seen                   what is named
=========================================  ===========================================================================
a step of one call                         that call, and the innermost line of the program's own code
the same function outside of any call      that line, such as one of a task of the lifespan
steps of different calls                   no call: the loop has more to do than it can, and nobody blocks it alone
=========================================  ===========================================================================

A line of the program's own code is one in neither the engine, nor Trio, nor the standard library, and if there is such
a line, in no installed package either.

Asyncio loops are looked at while functions with ``loop="asyncio"`` run in them. A blocked worker thread blocks no loop,
and is not looked at. A loop that waits for the system is not blocked, however late its beat is: the clock of a test may
stand still.
"""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import shown_target
from mcp_actors._server.context import Context
from mcp_actors._server.invoke import asyncio_calls, current
from mcp_actors.supervision.blockages import Blockage, OpenBlockage, blockage_log
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.supervision.tracebacks import is_users_module

__all__ = ["watch_loop"]

# Looks at a loop whose beat is late, in the time after which it counts as blocked.
_LOOKS = 2
# Characters of the names and the line that are shown.
_LONGEST = 200
# Frames that are looked at from the innermost one on: a recursion may be as deep as it likes.
_DEEPEST = 400
# Where loops wait for the system: Trio's and asyncio's, by the beginnings of the names of their modules.
_WAITING = ("trio._core._io_", "selectors", "asyncio.windows_events", "asyncio.selector_events")
# Where each step of a call passes through.
_STEPS: frozenset[CodeType] = frozenset(
    each.__code__
    for each in (InboundCall.answer_now, InboundCall.begin, InboundCall.run, InboundCall._outcome)
)
# The flag of a timer that goes off at a time of its clock, and not after so many seconds.
_AT_A_TIME = 1
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class _LoopStep(NamedTuple):
    """A look at a loop: the call and the line that it runs at that moment."""

    call: InboundCall | None
    code: CodeType | None
    """The function of the program's own code."""
    place: str
    line: str


# Of a loop that was blocked while the thread did not get to look at it.
_NOTHING = _LoopStep(None, None, "", "")


class _Loop:
    """One event loop, with what was seen of it since its beat is late.

    Args:
        kind: Whose it is.
        thread: The thread in which it runs.
        seconds: After how long it counts as blocked.
    """

    def __init__(self, kind: Literal["trio", "asyncio"], thread: int, seconds: float) -> None:
        self.kind: Literal["trio", "asyncio"] = kind
        self.thread = thread
        self.due = time.perf_counter()
        """When the next beat is due."""
        self._seconds = seconds
        self._seen: list[_LoopStep] = []
        self._blockage: OpenBlockage | None = None
        # When it was blocked from and to, until the thread has taken note of that.
        self._over: tuple[float, float] | None = None

    def beat(self, now: float, stood_still: bool) -> None:
        """Is called in the loop.

        Args:
            now: The time.
            stood_still: Whether the whole process did, so that nothing in it is what the beat has waited for.
        """
        due, self.due = self.due, now + self._seconds
        if self._blockage is not None:
            # Here, and not in the thread: a call that is late because of it may say so at once.
            self._blockage.end(now)
        elif stood_still or now - due < self._seconds:
            return
        self._over = due, now

    def look(self, frame: FrameType | None, owner: Watchdog, now: float, late: bool) -> None:
        """Looks at what the loop runs if its beat is late, and notes whether it is blocked.

        Args:
            frame: The innermost frame of its thread.
            owner: The watchdog.
            now: The time.
            late: Whether something has kept the interpreter's lock, so that nobody could look.
        """
        over, self._over = self._over, None
        if over is not None:
            self._end(*over, owner)
        elif now < self.due:
            self._seen.clear()
        elif frame is not None and not _waits(frame):
            if late:
                # What was seen before is no more than what ran before.
                self._seen.clear()
            self._seen = [*self._seen[1 - _LOOKS :], owner.seen(self, frame)]
            if now - self.due >= self._seconds:
                self._note(self.due, owner)

    def next_look(self, now: float) -> float:
        """Returns when the thread is to look at it, if it has no other beat until then."""
        if self._over is not None:
            return now
        pause = self._seconds / _LOOKS
        return self.due + pause if self.due + pause > now else now + pause

    @property
    def is_well(self) -> bool:
        """Whether it is not known to be blocked, and nothing is left to say of it."""
        return self._blockage is None and self._over is None

    def shift(self, seconds: float) -> None:
        """Takes no time into account in which the whole process stood still."""
        if self._blockage is None:
            self.due += seconds

    def _note(self, began: float, owner: Watchdog) -> None:
        if self._blockage is not None:
            return
        self._blockage = blockage = owner.note(self, self._seen or [_NOTHING], began)
        now = blockage.now
        log.warning(
            f"{now.loop_name} is blocked",
            **_details(now),
            seconds=round(now.seconds, 3),
            waiting=now.waiting,
        )

    def _end(self, began: float, ended: float, owner: Watchdog) -> None:
        self._note(began, owner)
        blockage, self._blockage, self._seen = self._blockage, None, []
        if blockage is not None:
            blockage.end(ended)
            now = blockage.now
            blockage_log.add_time(now)
            log.warning(f"{now.loop_name} goes on", **_details(now), seconds=round(now.seconds, 3))


class _Alarm:
    """Something that a thread waits for, and that other threads wind up again and again without waking that thread.

    This one is for all systems: the thread wakes when the time is over that was given first, and sleeps on.
    """

    def __init__(self) -> None:
        self.at = 0.0
        """When it goes off."""
        self._running = threading.Lock()
        self._running.acquire()

    def wind(self, at: float) -> None:
        """Has it go off at a time, and no more at the one before. Legal in any thread, also after its end."""
        self.at = at

    def wait(self) -> bool:
        """Waits until it goes off; returns whether it has, and has not been ended."""
        while (left := self.at - time.perf_counter()) > 0:
            if self._running.acquire(timeout=left):
                return False
        return True

    def end(self) -> None:
        """Ends whoever waits. Never waits itself."""
        self._running.release()

    def close(self) -> None:
        """Gives back what it has of the system. Nobody waits for it any more, or yet."""


class _TimerAlarm(_Alarm):
    """One of Linux: its thread sleeps in the system until a timer goes off, whoever winds that up meanwhile.

    Args:
        clock: The system's number for the clock of `time.perf_counter`.
        flags: Those of the timer's descriptor.

    Raises:
        AttributeError: The system's library has no such timers.
        OSError: The process may have no more descriptors.
    """

    def __init__(self, clock: int, flags: int) -> None:
        super().__init__()
        # By `ctypes`, since `os` has the functions from Python 3.13 on.
        self._ctypes: Any = importlib.import_module("ctypes")
        self._library = self._ctypes.CDLL(None, use_errno=True)
        self._lock = threading.Lock()
        self._is_ended = False
        self._settime = self._library.timerfd_settime
        self._fd = self._library.timerfd_create(clock, flags)
        if self._fd < 0:
            raise OSError(self._ctypes.get_errno(), "timerfd_create")

    def wind(self, at: float) -> None:
        self.at = at
        seconds, part = divmod(max(at, 1e-9), 1)
        # An interval of nothing, since it goes off once; then when, on the clock.
        when = (self._ctypes.c_long * 4)(0, 0, int(seconds), int(part * 1e9))
        with self._lock:
            if self._fd >= 0:
                self._settime(self._fd, _AT_A_TIME, when, None)

    def wait(self) -> bool:
        if not self._is_ended:
            os.read(self._fd, 8)
        return not self._is_ended

    def end(self) -> None:
        self._is_ended = True
        self.wind(0.0)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _alarm() -> _Alarm:
    if sys.platform == "linux":
        with suppress(AttributeError, ImportError, OSError):
            return _TimerAlarm(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
    return _Alarm()


class Watchdog:
    """The thread, for one loop of Trio and the asyncio loops in which it has functions run.

    Args:
        seconds: After how long a loop counts as blocked.
        token: The loop of Trio, in whose thread this is made.
    """

    def __init__(self, seconds: float, token: trio.lowlevel.TrioToken) -> None:
        self.seconds = seconds
        self.calls: list[Callable[[], int]] = []
        """Return how many calls each server of the loop has in flight."""
        self._token = token
        self._used = time.process_time()
        self._trio = _Loop("trio", threading.get_ident(), seconds)
        self._asyncio: dict[Any, _Loop] = {}
        self._alarm = _alarm()
        self._thread = threading.Thread(target=self._run, name="mcp-actors-watchdog", daemon=True)

    def __repr__(self) -> str:
        return f"<Watchdog of {self.seconds:g} s, {len(self._asyncio)} asyncio loops>"

    def start(self) -> None:
        """Begins to look. Raises `RuntimeError` where the process may have no more threads."""
        self.beat()
        try:
            self._thread.start()
        except RuntimeError:
            self._alarm.close()
            raise

    def stop(self) -> None:
        """Looks no more. Never waits."""
        self._asyncio.clear()
        self._alarm.end()

    # -- in the loops ------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Says that the loop of Trio goes on. It is called there, once in `seconds`."""
        self._beat(self._trio)
        self._find_asyncio()

    def _beat(self, loop: _Loop) -> None:
        now = time.perf_counter()
        loop.beat(now, stood_still=self._stood_still(now - loop.due))
        self._wind(now)

    def _beat_asyncio(self, loop: Any, found: _Loop) -> None:
        """Says that an asyncio loop goes on, as long as it is looked at."""
        if self._asyncio.get(loop) is found:
            self._beat(found)
            loop.call_later(self.seconds, self._beat_asyncio, loop, found)

    def _find_asyncio(self) -> None:
        """Looks at the asyncio loops that have something to do, and no more at the others."""
        needed: dict[Any, int] = {}
        for running, ctx in tuple(asyncio_calls.items()):
            if ctx._scope.token is self._token and running.thread is not None:
                needed[running.loop] = running.thread
        for loop, thread in needed.items():
            if loop not in self._asyncio:
                self._asyncio[loop] = found = _Loop("asyncio", thread, self.seconds)
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._beat_asyncio, loop, found)
        for idle in [each for each in self._asyncio if each not in needed]:
            if self._asyncio[idle].is_well:
                del self._asyncio[idle]
            elif idle.is_closed():
                self._beat(self._asyncio[idle])

    def _wind(self, now: float) -> None:
        """Has the thread look when that is due, if no loop has another beat until then."""
        self._used = time.process_time()
        self._alarm.wind(min(each.next_look(now) for each in self._loops()))

    def _loops(self) -> tuple[_Loop, ...]:
        return (self._trio, *self._asyncio.values())

    def _stood_still(self, seconds: float) -> bool:
        """Returns whether the machine slept, or the process was stopped, where ``seconds`` too many have passed.

        Nothing that the process does has taken this time then. A function that keeps the interpreter's lock holds
        all threads up, and works.
        """
        return seconds >= self.seconds and time.process_time() - self._used < seconds / 2

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._alarm.wait():
                self._look(time.perf_counter())
        finally:
            self._alarm.close()

    def _look(self, now: float) -> None:
        late = now - self._alarm.at
        if self._stood_still(late):
            for each in self._loops():
                each.shift(late)
            late = 0.0
        frames = sys._current_frames()
        try:
            for each in self._loops():
                each.look(frames.get(each.thread), self, now, late >= self.seconds)
        finally:
            # A frame that is kept keeps all that the functions had.
            frames.clear()
        self._wind(now)

    # -- what a loop runs --------------------------------------------------------------------------------------------

    def seen(self, loop: _Loop, frame: FrameType | None) -> _LoopStep:
        """Returns what a loop runs, by its innermost frame."""
        call = _call_in_asyncio(loop.thread) if loop.kind == "asyncio" else None
        user: FrameType | None = None
        depth = 0
        while frame is not None and depth < _DEEPEST:
            code, depth = frame.f_code, depth + 1
            if call is None and loop.kind == "trio":
                call = _call_of(frame)
            # Of what an installed package does, the line that wanted it says more.
            is_better = user is None or (_is_installed(user) and not _is_installed(frame))
            if is_better and is_users_module(str(frame.f_globals.get("__name__", ""))):
                user = frame
            if code in _STEPS and call is not None:
                break
            frame = frame.f_back
        if user is None:
            return _NOTHING._replace(call=call)
        file, number = user.f_code.co_filename, user.f_lineno
        return _LoopStep(call, user.f_code, f"{os.path.basename(file)}:{number}", _line(file, number))

    def note(self, loop: _Loop, seen: list[_LoopStep], began: float) -> OpenBlockage:
        """Takes note of a blockage, of which the looks have seen something each."""
        last = seen[-1]
        is_one = all(each.call is last.call and (last.call or each.code is last.code) for each in seen)
        call = last.call if is_one else None
        invocation = None if call is None else call.invocation
        principal = None if invocation is None else invocation.principal
        target = None if invocation is None else shown_target(invocation)
        first = Blockage(
            loop=loop.kind,
            method=None if invocation is None else invocation.method.name,
            target=None if target is None else printable(target, _LONGEST),
            session=None if call is None or not call.owner.rules.session else call.owner.name,
            principal=None if principal is None else principal.subject,
            place=last.place if is_one else "",
            line=last.line if is_one else "",
            waiting=max(0, self._calls_in_flight() - (call is not None)),
            at=time.time(),
        )
        return blockage_log.begin(first, began, loop.thread)

    def _calls_in_flight(self) -> int:
        # They are counted in another thread than that which has them: a loop that goes on may change them meanwhile.
        with suppress(RuntimeError):
            return sum(each() for each in tuple(self.calls))
        return 0


def _details(now: Blockage) -> dict[str, Any]:
    """The members of the log lines on a blockage."""
    is_tool = now.method == "tools/call"
    said = {
        "tool": now.target if is_tool else None,
        "method": None if is_tool else now.method,
        "target": None if is_tool else now.target,
        "session": now.session,
        "principal": now.principal,
        "at": now.place,
        "line": now.line,
    }
    return {member: text for member, text in said.items() if text}


def _waits(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_WAITING)


def _is_installed(frame: FrameType) -> bool:
    return any(each in frame.f_code.co_filename for each in _INSTALLED)


def _call_of(frame: FrameType) -> InboundCall | None:
    """Returns the call whose step a frame is; of a task that a call has started, the call that started it."""
    if frame.f_code in _STEPS:
        found = frame.f_locals.get("self")
    elif frame.f_code.co_name == "unrolled_run" and frame.f_globals.get("__name__") == "trio._core._run":
        task: Any = frame.f_locals.get("task")
        context = getattr(task, "context", None)
        found = _call_of_context(None if context is None else context.get(current))
    else:
        return None
    return found if isinstance(found, InboundCall) else None


def _call_of_context(ctx: Any) -> InboundCall | None:
    """Returns the call of what `current` has in a task, which is one for each way in which a function runs."""
    if isinstance(ctx, tuple):
        ctx = ctx[-1]
    return ctx.call if isinstance(ctx, Context) else None


def _call_in_asyncio(thread: int) -> InboundCall | None:
    """Returns the call whose function the asyncio loop of a thread runs."""
    there = [(running, ctx) for running, ctx in tuple(asyncio_calls.items()) if running.thread == thread]
    for running, ctx in there:
        if running.is_current:
            return _call_of_context(ctx)
    # A task that a function has started does not say whose it is; with one call there is no doubt.
    return _call_of_context(there[0][1]) if len(there) == 1 else None


def _line(file: str, number: int) -> str:
    return printable(linecache.getline(file, number).strip(), _LONGEST)


# -- one watchdog for all servers of a loop ------------------------------------------------------------------------

_of_loops: dict[trio.lowlevel.TrioToken, Watchdog] = {}


async def watch_loop(seconds: float, calls: Callable[[], int]) -> None:
    """Has a watchdog look at the event loop of this task, until it is cancelled.

    All servers in one loop share it, with the time of the first one.

    Args:
        seconds: After how long a loop counts as blocked.
        calls: Returns how many calls a server has in flight; it is called in the thread.
    """
    token = trio.lowlevel.current_trio_token()
    found = _of_loops.get(token)
    if found is None:
        found = Watchdog(seconds, token)
        found.start()
        _of_loops[token] = found
    found.calls.append(calls)
    try:
        while True:
            await trio.sleep(found.seconds)
            found.beat()
    finally:
        found.calls.remove(calls)
        if not found.calls:
            found.stop()
            del _of_loops[token]


def _forget_after_fork() -> None:
    # The threads are in the parent alone.
    _of_loops.clear()


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
