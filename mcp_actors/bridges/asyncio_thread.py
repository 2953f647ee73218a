"""The asyncio loop of the engine's own, for functions that need asyncio in programs that have no such loop.

It runs in a daemon thread, which is started at first use and stopped at the interpreter's exit. A function that blocks
it stops the other functions in it, and nothing else.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.asyncio_call import AsyncioLoop
from mcp_actors.bridges.bridged_call import Bridge
from mcp_actors.bridges.step_queue import StepQueue
from mcp_actors.errors import LoopClosed

__all__ = ["AsyncioThread", "asyncio_loop_of"]

# Seconds that everything in the loop has to end when the interpreter exits.
STOP_TIME = 5.0

Step = Callable[[], object]


class AsyncioThread:
    """An asyncio loop in a daemon thread. Nothing but the end of the program ends it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.is_forked = False
        """Whether this process is a child of the one that has the thread."""
        self._steps = StepQueue(lambda *_: self.loop.call_soon_threadsafe(self._steps.take))
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="mcp-actors-asyncio", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "forked" if self.is_forked else "ended" if self.loop.is_closed() else "running"
        return f"<AsyncioThread {state}>"

    def post(self, step: Step) -> None:
        """Runs ``step``, which must not raise, in the loop soon. Legal from any thread.

        Raises:
            LoopClosed: The program ends, or this process is a fork of the one that has the loop.
        """
        if self.is_forked:
            raise LoopClosed("the asyncio loop belongs to the process that forked this one")
        try:
            self._steps.post(step)
        except RuntimeError:
            raise LoopClosed("the program ends, and the asyncio loop has stopped") from None

    def stop(self) -> None:
        """Cancels every task of the loop, and waits until it has ended, `STOP_TIME` seconds at most."""
        try:
            self.post(self._stop)
        except LoopClosed:
            return
        self._thread.join(STOP_TIME)

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        while not self._is_stopping:
            try:
                # A function may stop the loop, or raise SystemExit in a task of its own: others go on.
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue
        tasks = asyncio.all_tasks(loop)
        for each in tasks:
            each.cancel()
        loop.run_until_complete(_ended(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _stop(self) -> None:
        self._is_stopping = True
        self.loop.stop()


async def _ended(tasks: set[asyncio.Task[object]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_TIME)


def asyncio_loop_of(bridge: Bridge | None) -> AsyncioLoop:
    """Returns the loop for functions that need asyncio: that of the program, if it came over such a bridge, or ours."""
    return bridge if isinstance(bridge, AsyncioBridge) else _asyncio_thread()


_lock = threading.Lock()
_current: AsyncioThread | None = None


def _asyncio_thread() -> AsyncioThread:
    global _current
    thread = _current
    if thread is None:
        with _lock:
            thread = _current
            if thread is None:
                thread = _current = AsyncioThread()
                atexit.register(thread.stop)
    return thread


def _forget_after_fork() -> None:
    # The thread is in the parent alone, and the lock may be held by another thread of it.
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        atexit.unregister(_current.stop)
        _current.is_forked = True
        _current = None


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
