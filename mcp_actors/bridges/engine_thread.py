"""The thread in which the engine runs for programs that do not run on Trio: one for the whole process.

It is started at first use, and stopped at the interpreter's exit. It knows nothing of asyncio: a loop that is blocked,
closed or gone costs the engine nothing, and a program may have as many loops as it likes, one after the other or at
the same time.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

import trio

from mcp_actors.errors import EngineStopped
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import BRIDGED_STEP

__all__ = ["EngineThread", "engine_thread"]

# Seconds that everything in the engine has to end when the interpreter exits.
STOP_TIME = 5.0

Step = Callable[[], object]


class EngineThread:
    """A Trio loop in a daemon thread. `engine_thread` returns the one of this process."""

    nursery: trio.Nursery
    """Where calls run, and what they leave behind: clients and servers. For steps, which run in the engine's thread."""

    def __init__(self) -> None:
        self.is_forked = False
        """Whether this process is a child of the one that has the thread."""
        self._steps: deque[Step] = deque()
        self._is_woken = False
        self._has_begun = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="mcp-actors", daemon=True)
        self._thread.start()
        self._has_begun.wait()

    def __repr__(self) -> str:
        state = "forked" if self.is_forked else "ended" if self._has_ended else "running"
        return f"<EngineThread {state}>"

    @classmethod
    def of_this_run(cls) -> EngineThread:
        """Returns the engine that runs in this thread; raises ``LookupError`` in any other Trio loop."""
        return _of_run.get()

    @property
    def is_current(self) -> bool:
        """Whether the caller is in the engine's thread."""
        return threading.current_thread() is self._thread

    @property
    def has_ended(self) -> bool:
        """Whether nothing that is posted will ever run."""
        return self._has_ended or self.is_forked

    def post(self, step: Step) -> None:
        """Runs ``step`` in the engine's loop soon; steps run in the order of their posting. Legal from any thread.

        Steps that are posted while the engine is busy are run together, for the price of one wake-up.

        Raises:
            EngineStopped: The interpreter exits, or this process is a fork of the one that has the engine.
        """
        if self.has_ended:
            raise EngineStopped(self.is_forked)
        self._steps.append(step)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._token.run_sync_soon(self._take_steps)
            except trio.RunFinishedError:
                raise EngineStopped(self.is_forked) from None

    def stop(self) -> None:
        """Cancels everything in the engine, and waits until it has ended, `STOP_TIME` seconds at most."""
        try:
            self.post(lambda: self.nursery.cancel_scope.cancel(reason="the program ends"))
        except EngineStopped:
            return
        self._thread.join(STOP_TIME)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        finally:
            self._has_ended = True
            self._has_begun.set()

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        _of_run.set(self)
        async with trio.open_nursery() as self.nursery:
            self._has_begun.set()
            await trio.sleep_forever()

    def _take_steps(self) -> None:
        # Whoever appends from here on wakes the loop again, so that no step is left.
        self._is_woken = False
        steps = self._steps
        for _ in range(len(steps)):
            with Containment(BRIDGED_STEP):
                steps.popleft()()


_of_run: trio.lowlevel.RunVar[EngineThread] = trio.lowlevel.RunVar("mcp_actors engine")
_lock = threading.Lock()
_current: EngineThread | None = None


def engine_thread() -> EngineThread:
    """Returns the engine of this process, started if there is none yet. Legal from any thread.

    Raises:
        EngineStopped: The interpreter exits.
    """
    global _current
    engine = _current
    if engine is None:
        with _lock:
            engine = _current
            if engine is None:
                engine = _current = EngineThread()
                atexit.register(engine.stop)
    return engine


def _forget_after_fork() -> None:
    # The thread is in the parent alone, and the lock may be held by another thread of it.
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        atexit.unregister(_current.stop)
        _current.is_forked = True
        _current = None


os.register_at_fork(after_in_child=_forget_after_fork)
