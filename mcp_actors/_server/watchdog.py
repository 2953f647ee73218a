"""The watchdog: a thread that looks at event loops, and says which call blocks one, and at which line.

It costs the loop nothing while that waits: the thread looks where the loop is (`sys._current_frames`), and leaves it
alone if it waits for the system. If it runs something, the loop is asked to answer. What it runs is looked at again
until the answer is there, and after ``seconds`` without one the loop is blocked:

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
and is not looked at.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

__all__ = ["watched"]

# Looks at a loop that was asked, in the time after which it counts as blocked.
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
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class _LoopStep(NamedTuple):
    """A look at a loop: the call and the line that it runs at that moment."""

    call: InboundCall | None
    code: CodeType | None
    """The function of the program's own code."""
    place: str
    line: str


class _Loop:
    """One event loop, with the question that it was asked last.

    Args:
        kind: Whose it is.
        thread: The thread in which it runs.
        post: Has a function called in the loop soon; raises `RuntimeError` when the loop has ended.
        seconds: After how long it counts as blocked.
    """

    def __init__(
        self,
        kind: Literal["trio", "asyncio"],
        thread: int,
        post: Callable[[Callable[[], object]], object],
        seconds: float,
    ) -> None:
        self.kind: Literal["trio", "asyncio"] = kind
        self.thread = thread
        self._post = post
        self._seconds = seconds
        self._question: _Question | None = None
        self._seen: list[_LoopStep] = []
        self._blockage: OpenBlockage | None = None

    @property
    def waits_for_answer(self) -> bool:
        return self._question is not None

    def look(self, frame: FrameType | None, owner: Watchdog, late: float) -> None:
        """Looks at what the loop runs, and notes whether it is blocked.

        Args:
            frame: The innermost frame of its thread.
            owner: The watchdog.
            late: Seconds for which something has kept the interpreter's lock, so that nobody could look.
        """
        question = self._question
        if question is not None:
            if question.answered is not None:
                self._answered(question.asked, question.answered, owner)
            else:
                self._see(frame, owner, late)
                if time.perf_counter() - question.asked >= self._seconds:
                    self._note(question.asked, owner)
                return
        if frame is None or _waits(frame):
            return
        self._see(frame, owner, late)
        self._question = question = _Question(self)
        self._post(question)
        if late:
            question.asked -= late
            self._note(question.asked, owner)

    def _see(self, frame: FrameType | None, owner: Watchdog, late: float) -> None:
        if late:
            # What was seen before is no more than what ran before.
            self._seen.clear()
        self._seen = [*self._seen[1 - _LOOKS :], owner.seen(self, frame)]

    def shift(self, seconds: float) -> None:
        """Takes no time into account in which the whole process stood still."""
        if self._question is not None and self._blockage is None:
            self._question.asked += seconds

    def goes_on(self, at: float) -> None:
        """Is called in the loop, with its answer."""
        if self._blockage is not None:
            self._blockage.end(at)

    def _note(self, began: float, owner: Watchdog) -> None:
        if self._blockage is not None:
            return
        self._blockage = blockage = owner.note(self, self._seen, began)
        now = blockage.now
        log.warning(
            f"{now.loop_name} is blocked",
            **_details(now),
            seconds=round(now.seconds, 3),
            waiting=now.waiting,
        )

    def _answered(self, asked: float, answered: float, owner: Watchdog) -> None:
        self._question = None
        if answered - asked >= self._seconds:
            self._note(asked, owner)
        blockage, self._blockage, self._seen = self._blockage, None, []
        if blockage is not None:
            blockage.end(answered)
            now = blockage.now
            blockage_log.add_time(now)
            log.warning(f"{now.loop_name} goes on", **_details(now), seconds=round(now.seconds, 3))


class _Question:
    """Asks a loop whether it goes on: it is called there."""

    __slots__ = ("_loop", "answered", "asked")

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self.asked = time.perf_counter()
        self.answered: float | None = None

    def __call__(self) -> None:
        self.answered = time.perf_counter()
        self._loop.goes_on(self.answered)


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
        # Held until the end. A lock costs a sleeping thread less than an event does.
        self._running = threading.Lock()
        self._trio = _Loop("trio", threading.get_ident(), token.run_sync_soon, seconds)
        self._asyncio: dict[object, _Loop] = {}
        self._thread = threading.Thread(target=self._run, name="mcp-actors-watchdog", daemon=True)

    def __repr__(self) -> str:
        return f"<Watchdog of {self.seconds:g} s, {len(self._asyncio)} asyncio loops>"

    def start(self) -> None:
        """Begins to look."""
        self._running.acquire()
        self._thread.start()

    def stop(self) -> None:
        """Looks no more. Never waits."""
        self._running.release()

    def _run(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while not self._running.acquire(timeout=(pause := self._pause())):
            now, work = time.perf_counter(), time.process_time()
            late = now - last - pause
            if late < self.seconds:
                late = 0.0
            elif work - used < late / 2:
                # The machine slept, or the process was stopped: nothing that it does has taken this time. A function
                # that keeps the interpreter's lock holds this thread up too, and works.
                for each in (self._trio, *self._asyncio.values()):
                    each.shift(late)
                late = 0.0
            try:
                self._look(late)
            except RuntimeError:
                # The loop of Trio has ended, or the interpreter does.
                return
            last, used = time.perf_counter(), time.process_time()

    def _pause(self) -> float:
        """Seconds until the next look: a loop that has not answered is looked at again soon.

        A thread that wakes up while others run costs them more than all that it looks at.
        """
        is_asked = any(each.waits_for_answer for each in (self._trio, *self._asyncio.values()))
        return self.seconds / _LOOKS if is_asked else self.seconds

    def _look(self, late: float) -> None:
        frames = sys._current_frames()
        try:
            self._trio.look(frames.get(self._trio.thread), self, late)
            self._find_asyncio()
            for loop, each in tuple(self._asyncio.items()):
                try:
                    each.look(frames.get(each.thread), self, late)
                except RuntimeError:  # it is closed
                    del self._asyncio[loop]
        finally:
            # A frame that is kept keeps all that the functions had.
            frames.clear()

    def _find_asyncio(self) -> None:
        """Looks at the asyncio loops that have something to do, and no more at the others."""
        needed: dict[object, tuple[int, Any]] = {}
        for running, ctx in tuple(asyncio_calls.items()):
            if ctx._scope.token is self._token and running.thread is not None:
                needed[running.loop] = running.thread, running.loop.call_soon_threadsafe
        for loop, (thread, post) in needed.items():
            if loop not in self._asyncio:
                self._asyncio[loop] = _Loop("asyncio", thread, post, self.seconds)
        for loop in [each for each in self._asyncio if each not in needed]:
            if not self._asyncio[loop].waits_for_answer:
                del self._asyncio[loop]

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
            return _LoopStep(call, None, "", "")
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


@contextmanager
def watched(seconds: float | None, calls: Callable[[], int]) -> Iterator[None]:
    """Has a watchdog look at the event loop of this task, for the length of a ``with`` block.

    All servers in one loop share it, with the time of the first one.

    Args:
        seconds: After how long a loop counts as blocked; ``None`` for no watchdog.
        calls: Returns how many calls a server has in flight; it is called in the thread.
    """
    if seconds is None:
        yield
        return
    token = trio.lowlevel.current_trio_token()
    found = _of_loops.get(token)
    if found is None:
        found = _of_loops[token] = Watchdog(seconds, token)
        found.start()
    found.calls.append(calls)
    try:
        yield
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
