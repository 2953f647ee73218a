"""The loop of an ASGI server, asyncio or Trio, as far as the application has to wait in it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.bridges.trio_bridge import TrioBridge
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import ASGI_WATCH

__all__ = [
    "AsyncioSide",
    "Interruptible",
    "LoopSide",
    "LoopWaiter",
    "TrioSide",
    "current_bridge",
    "current_side",
]

# Seconds that a task of the server's may go on once it was cancelled; then it is not waited for any more.
CANCEL_TIME = 1.0
T = TypeVar("T")


def current_bridge() -> AsyncioBridge | TrioBridge | ThreadBridge:
    """Returns the bridge of the loop that runs in this thread, asyncio or Trio, or a new one where none runs.

    Raises:
        LocalProtocolError: This is the engine's own thread.
        EngineStopped: The interpreter exits.
    """
    if trio.lowlevel.in_trio_run():
        return TrioBridge.of_running_loop()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ThreadBridge()
    return AsyncioBridge.of_running_loop()


class LoopWaiter(Protocol):
    """Waits for one thing after the other. Both methods belong to the loop."""

    def set(self) -> None:
        """Ends the wait, or the next one if no task waits now."""

    async def wait(self) -> None:
        """Waits for `set`."""


class Interruptible(Protocol):
    """A block of the task that enters it, which `interrupt` ends."""

    is_interrupted: bool

    def interrupt(self) -> None:
        """Ends the block where it waits. Does nothing when it has ended."""

    def __enter__(self) -> Interruptible: ...

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...


class LoopSide(Protocol):
    """One loop of the program."""

    @property
    def bridge(self) -> AsyncioBridge | TrioBridge: ...

    @property
    def is_closed(self) -> bool:
        """Whether nothing will ever run there again."""

    def waiter(self) -> LoopWaiter:
        """Returns a new one."""

    def interruptible(self) -> Interruptible:
        """Returns a new one, for the running task."""

    async def within(self, seconds: float, fn: Callable[[], Awaitable[T]]) -> T:
        """Awaits ``fn()``. Raises `TimeoutError` when that takes longer."""

    def beside(self, fn: Callable[[], Awaitable[object]]) -> AbstractAsyncContextManager[None]:
        """Runs ``fn()``, which must not raise, in a task beside the block, which is cancelled where the block ends."""

    async def checkpoint(self) -> None:
        """Lets other tasks run."""

    def post_together(self, step: Callable[[], object]) -> None:
        """Runs ``step`` in the engine soon, with those that come at about the same time. As `EngineThread.post`."""


class _AsyncioWaiter:
    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        if not self._is_set:
            self._future = self._loop.create_future()
            await self._future
        self._is_set = False


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


@types.coroutine
def _rest_of(begun: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Goes on with a coroutine that was begun, and has yielded ``waits_for`` to the loop, as PEP 380 has it."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(sent)
    except StopIteration as ended:
        result: T = ended.value
        return result


class _AsyncioInterruptible:
    def __init__(self) -> None:
        self.is_interrupted = False
        self._task: asyncio.Task[Any] | None = None

    def interrupt(self) -> None:
        if self._task is not None and not self.is_interrupted:
            self.is_interrupted = True
            self._task.cancel()

    def __enter__(self) -> _AsyncioInterruptible:
        self._task = asyncio.current_task()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        # If the task was cancelled for another reason, that must not wait in vain.
        return (
            self.is_interrupted
            and task is not None
            and task.uncancel() == 0
            and isinstance(error, asyncio.CancelledError)
        )


class AsyncioSide:
    """A loop of asyncio, or of uvloop."""

    __slots__ = ("bridge",)

    def __init__(self, bridge: AsyncioBridge) -> None:
        self.bridge = bridge

    @property
    def is_closed(self) -> bool:
        return self.bridge.is_closed()

    def waiter(self) -> LoopWaiter:
        return _AsyncioWaiter(self.bridge.loop)

    def interruptible(self) -> Interruptible:
        return _AsyncioInterruptible()

    async def within(self, seconds: float, fn: Callable[[], Awaitable[T]]) -> T:
        # Nearly always the result is there already. A timer is made only for one that is not.
        awaitable = fn()
        begun = awaitable if isinstance(awaitable, types.CoroutineType) else _awaited(awaitable)
        try:
            waits_for = begun.send(None)
        except StopIteration as ended:
            result: T = ended.value
            return result
        async with asyncio.timeout(seconds):
            return await _rest_of(begun, waits_for)

    @asynccontextmanager
    async def beside(self, fn: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        task = asyncio.ensure_future(fn())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_TIME)

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    def post_together(self, step: Callable[[], object]) -> None:
        self.bridge.post_together(step)


class _TrioWaiter:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


class _TrioInterruptible:
    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self.is_interrupted = False

    def interrupt(self) -> None:
        self.is_interrupted = True
        self._scope.cancel(reason="the answer was cut off")

    def __enter__(self) -> _TrioInterruptible:
        self._scope.__enter__()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(self._scope.__exit__(cls, error, traceback))


class TrioSide:
    """A Trio loop that is not the engine's."""

    def __init__(self, bridge: TrioBridge) -> None:
        self.bridge = bridge

    @property
    def is_closed(self) -> bool:
        return self.bridge.is_closed()

    def waiter(self) -> LoopWaiter:
        return _TrioWaiter()

    def interruptible(self) -> Interruptible:
        return _TrioInterruptible()

    async def within(self, seconds: float, fn: Callable[[], Awaitable[T]]) -> T:
        """Awaits ``fn()``.

        Raises:
            TimeoutError: That takes longer.
        """
        try:
            with trio.fail_after(seconds):
                return await fn()
        except trio.TooSlowError:
            raise TimeoutError from None

    @asynccontextmanager
    async def beside(self, fn: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            # The departure of the client would go unnoticed: so the block ends, and its answer is cut off.
            start(
                nursery,
                ASGI_WATCH,
                fn,
                on_crash=lambda _: nursery.cancel_scope.cancel(reason="the watch failed"),
            )
            yield
            nursery.cancel_scope.cancel(reason="the answer is complete")

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    def post_together(self, step: Callable[[], object]) -> None:
        self.bridge.engine.post(step)


def current_side() -> LoopSide:
    """Returns the side of the loop that runs here.

    Raises:
        LocalProtocolError: No loop runs here, or it is the engine's own.
        EngineStopped: The interpreter exits.
    """
    bridge = current_bridge()
    if isinstance(bridge, AsyncioBridge):
        return AsyncioSide(bridge)
    if isinstance(bridge, ThreadBridge):
        raise LocalProtocolError(
            "an ASGI application runs in an event loop, asyncio or Trio, and none runs here"
        )
    return TrioSide(bridge)
