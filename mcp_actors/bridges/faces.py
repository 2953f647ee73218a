"""Objects of the engine for programs that do not run on Trio: each face has one of the engine, and calls it there.

`mirror` makes the classes of faces from those of the engine, so that they cannot drift apart: each public member
becomes one that does the same over a bridge, with the same signature and docstring. The results of methods are put
into the classes that the same world has for them.

A block of the engine that a program holds open (`HeldBlock`) is entered and left by calls that come from elsewhere.
Trio demands that a cancel scope or a nursery is closed by the task that has opened it, and each bridged call is a
task of its own. So the block has a task of its own, in the engine's nursery.
"""

from __future__ import annotations

import inspect
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from types import FunctionType
from typing import Any, Generic, NoReturn, TypeVar

import outcome
import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import Bridge
from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import EngineStopped, LocalProtocolError
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import HELD_BLOCK

__all__ = [
    "AsyncioBlock",
    "AsyncioFace",
    "AsyncioIterator",
    "AsyncioListener",
    "AsyncioTaskHandle",
    "AsyncioToolStream",
    "EngineBlock",
    "Face",
    "HeldBlock",
    "Opened",
    "SyncBlock",
    "SyncFace",
    "SyncIterator",
    "SyncListener",
    "SyncTaskHandle",
    "SyncToolStream",
    "in_engine",
    "in_sync_words",
    "mirror",
]

# The words of the original's docstrings that are others where there is no loop.
SYNC_WORDS = (
    ("async with", "with"),
    ("async def", "def"),
    ("await ", ""),
    ("an async iterator", "an iterator"),
    ("aclose", "close"),
)

# Seconds that a block has to end once it was cancelled; then it is abandoned.
CANCEL_TIME = 5.0
# Seconds between two looks at whether the engine is still there, in a thread that waits for it.
LOOK_AGAIN = 1.0

T = TypeVar("T")


class Opened:
    """The engine that a client and all that came of it live in, and the bridge to where it was opened."""

    def __init__(self) -> None:
        self.engine: EngineThread | None = None
        self.bridge: Bridge | None = None

    def __repr__(self) -> str:
        return f"<Opened {self.engine!r} {self.bridge!r}>"


class Face:
    """An object of the engine as a program without Trio sees it.

    Args:
        original: The object of the engine.
        opened: Where it lives.
        source: The object that it came of.
    """

    _world: str
    """The name of the module that programs take it from."""
    _usage: str
    """How a client is opened there."""
    _faces: Mapping[type, type[Face]] = {}
    """The classes of the same world by the classes of the engine, for what methods return."""

    def __init__(self, original: Any, opened: Opened, source: Face | None = None) -> None:
        self._original = original
        self._opened = opened
        # A client lives as long as what came of it is in use.
        self._source = source

    def __repr__(self) -> str:
        return f"<{self._world}.{repr(self._original).removeprefix('<')}"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises `TypeError`: neither a copy nor a pickle could have the connection."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it belongs to this process")

    def _faced(self, value: Any) -> Any:
        """Returns what a program gets for a value of the engine."""
        face = self._faces.get(type(value))
        return value if face is None else face(value, self._opened, self)

    def _not_here(self) -> NoReturn:
        """Raises why there is nothing that could be called in the engine of this process."""
        engine = self._opened.engine
        if engine is None:
            raise LocalProtocolError(f"not connected: use '{self._usage}'")
        raise engine.stopped()


class AsyncioFace(Face):
    """An object of the engine as an asyncio program sees it."""

    _world = "asyncio"
    _usage = "async with Client(...) as client"

    def _bridge(self) -> AsyncioBridge:
        bridge = AsyncioBridge.of_running_loop()
        if self._opened.engine is not bridge.engine:
            self._not_here()
        return bridge


class SyncFace(Face):
    """An object of the engine as a program without a loop sees it."""

    _world = "sync"
    _usage = "with Client(...) as client"

    def _bridge(self) -> ThreadBridge:
        bridge = ThreadBridge()
        if self._opened.engine is not bridge.engine:
            self._not_here()
        return bridge


def in_engine(engine: EngineThread, function: Callable[[], T]) -> T:
    """Calls a function of the engine that does not wait, in its thread, and waits for what it returns.

    Raises:
        EngineStopped: The interpreter exits.
        Exception: What ``function`` raises.
    """
    if engine.is_current:
        return function()
    results: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()
    engine.post(lambda: results.put(outcome.capture(function)))
    while True:
        try:
            return results.get(timeout=LOOK_AGAIN).unwrap()
        except queue.Empty:
            if engine.has_ended:
                raise engine.stopped() from None


# -- mirrored classes ------------------------------------------------------------------------------------------------


def mirror(
    original: type, face: type[Face], about: str, *, module: str, without: Iterable[str] = (), **members: Any
) -> Any:
    """Returns a class with the name of ``original`` and its public members, for programs that do not run on Trio.

    Args:
        original: A class of the engine.
        face: What the new class has of its own, beside what is made of the original.
        about: The beginning of its docstring, which replaces that of the original down to the arguments.
        module: The module that it belongs to.
        without: The members that programs have no use for.
        members: More members of the class.
    """
    _, args, rest = (inspect.getdoc(original) or "").partition("\nArgs:")
    is_asyncio = issubclass(face, AsyncioFace)
    made = type(original.__name__, (face,), {"__module__": module, **members})
    made.__doc__ = f"{inspect.cleandoc(about)}\n{args + rest if is_asyncio else in_sync_words(args + rest)}"
    for name in dir(original):
        member = inspect.getattr_static(original, name)
        if name.startswith("_") or name in without:
            continue
        if not hasattr(face, name):
            setattr(made, name, _mirrored(name, member, is_asyncio))
        elif (getattr(face, name).__doc__ or "").startswith("See `"):
            setattr(made, name, _redocumented(getattr(face, name), member, is_asyncio))
    return made


def _mirrored(name: str, member: Any, is_asyncio: bool) -> Any:
    if isinstance(member, property):
        return _reading(name, member)
    if inspect.iscoroutinefunction(member):
        made = (_in_asyncio if is_asyncio else _in_thread)(member)
    elif inspect.isasyncgenfunction(inspect.unwrap(member)):
        made = _making(member, AsyncioBlock if is_asyncio else SyncBlock)
    elif str(inspect.signature(member).return_annotation).startswith("AsyncIterator["):
        made = _making(member, AsyncioIterator if is_asyncio else SyncIterator)
    else:
        made = _asking(member)
    if not is_asyncio:
        made.__doc__ = in_sync_words(member.__doc__)
    return made


def _redocumented(function: Callable[..., Any], member: Any, is_asyncio: bool) -> Any:
    """Returns a function that does the same, with the signature and the docstring of the original's."""
    copy = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    made = wraps(member)(copy)
    made.__doc__ = member.__doc__ if is_asyncio else in_sync_words(member.__doc__)
    return made


def in_sync_words(text: str) -> str:
    """Returns the text of a docstring as it is right for programs without a loop."""
    for asynchronous, sync in SYNC_WORDS:
        text = text.replace(asynchronous, sync)
    return text


def _in_asyncio(method: Callable[..., Any]) -> Any:
    reports = "on_progress" in inspect.signature(method).parameters

    @wraps(method)
    async def call(self: AsyncioFace, *args: Any, **options: Any) -> Any:
        bridge = self._bridge()
        if reports and options.get("on_progress") is not None:
            options["on_progress"] = partial(bridge.run, options["on_progress"])
        return self._faced(await bridge.call(partial(method, self._original, *args, **options)))

    return call


def _in_thread(method: Callable[..., Any]) -> Any:
    reports = "on_progress" in inspect.signature(method).parameters

    @wraps(method)
    def call(self: SyncFace, *args: Any, **options: Any) -> Any:
        bridge = self._bridge()
        if reports and options.get("on_progress") is not None:
            options["on_progress"] = partial(bridge.run, options["on_progress"])
        return self._faced(bridge.call(partial(method, self._original, *args, **options)))

    return call


def _making(method: Callable[..., Any], made: Callable[..., Any]) -> Any:
    """Makes a method that returns an iterator or a block at once, of which the program then makes use."""

    @wraps(method)
    def make(self: Face, *args: Any, **options: Any) -> Any:
        part = made(method(self._original, *args, **options), self._opened, self)
        part._faces = self._faces
        return part

    return make


def _asking(method: Callable[..., Any]) -> Any:
    """Makes a method of one that does not wait: that is called in the engine, where nothing it reads changes."""

    @wraps(method)
    def ask(self: Face, *args: Any, **options: Any) -> Any:
        engine = self._opened.engine
        function = partial(method, self._original, *args, **options)
        return self._faced(function() if engine is None else in_engine(engine, function))

    return ask


def _reading(name: str, original: property) -> property:
    def read(self: Face) -> Any:
        if self._opened.engine is None:
            self._not_here()
        return getattr(self._original, name)

    return property(read, doc=original.__doc__)


# -- iterators, tasks and blocks -------------------------------------------------------------------------------------


class IteratorFace(Face):
    """An async iterator of the engine. A program that stops before its end has nothing to close."""

    def __init__(self, original: Any, opened: Opened, source: Face | None = None) -> None:
        super().__init__(original, opened, source)
        self._ready: deque[Any] = deque()

    def __del__(self) -> None:
        # What the iterator leaves behind in the engine is taken back there, and not in whatever thread this is.
        held = [self.__dict__.pop("_original", None)]
        engine = self._opened.engine
        if engine is not None:
            with suppress(EngineStopped):
                engine.post(held.clear)

    async def _fetch(self) -> None:
        """Takes the next items, in the engine: what has come stays here if the program was cancelled meanwhile."""
        self._ready.extend(await _next_of(self._original))


class AsyncioIterator(IteratorFace, AsyncioFace):
    """An iterator for asyncio programs."""

    def __aiter__(self) -> AsyncioIterator:
        return self

    async def __anext__(self) -> Any:
        if not self._ready:
            await self._bridge().call(self._fetch)
        return self._ready.popleft()


class SyncIterator(IteratorFace, SyncFace):
    """An iterator for programs without a loop."""

    def __iter__(self) -> SyncIterator:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            try:
                self._bridge().call(self._fetch)
            except StopAsyncIteration:
                raise StopIteration from None
        return self._ready.popleft()


async def _next_of(iterator: Any) -> Iterable[Any]:
    """Returns the next items: one, or as many as are there already where the iterator can say so."""
    many = getattr(iterator, "next_many", None)
    return [await anext(iterator)] if many is None else await many()


class AsyncioListener(AsyncioIterator):
    """A listener for asyncio programs."""


class SyncListener(SyncIterator):
    """A listener for programs without a loop."""


class AsyncioToolStream(AsyncioIterator):
    """The parts of a result for asyncio programs."""


class SyncToolStream(SyncIterator):
    """The parts of a result for programs without a loop."""


class TaskHandleFace(Face):
    """A call of a tool that goes on at the server."""

    @property
    def id(self) -> str | None:
        """The task's id; ``None`` if the server answered at once, without a task."""
        id: str | None = self._original.id
        return id


class AsyncioTaskHandle(TaskHandleFace, AsyncioFace):
    """A task for asyncio programs."""


class SyncTaskHandle(TaskHandleFace, SyncFace):
    """A task for programs without a loop."""


class AsyncioBlock(AsyncioFace):
    """A block of the engine for asyncio programs, such as that of a subscription."""

    async def __aenter__(self) -> Any:
        bridge = self._bridge()
        self._block = EngineBlock(self._original)
        value = self._faced(await self._block.enter_from_asyncio(bridge))
        return AsyncioIterator(value, self._opened, self) if hasattr(value, "next_many") else value

    async def __aexit__(self, *exc_info: object) -> None:
        await self._block.leave_from_asyncio(self._bridge())


class SyncBlock(SyncFace):
    """A block of the engine for programs without a loop, such as that of a subscription."""

    def __enter__(self) -> Any:
        bridge = self._bridge()
        self._block = EngineBlock(self._original)
        value = self._faced(self._block.enter_from_thread(bridge))
        return SyncIterator(value, self._opened, self) if hasattr(value, "next_many") else value

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)


class EngineBlock:
    """A block of the engine that a program holds open, and that is left when the loop it was entered from is closed."""

    def __init__(self, original: Any) -> None:
        self._block = HeldBlock[Any](lambda: original)
        self._has_begun = False
        self._owner: AsyncioBridge | None = None

    def __repr__(self) -> str:
        return f"<EngineBlock {self._block!r}>"

    async def enter_from_asyncio(self, bridge: AsyncioBridge) -> Any:
        """Enters it, and returns and raises as entering it does; nothing is left of it if that fails."""
        bridge.own(self.leave)
        self._owner = bridge
        try:
            return await bridge.call(self._enter)
        except BaseException:
            # The engine may have entered it just before this was cancelled.
            await self.leave_from_asyncio(bridge)
            raise

    async def leave_from_asyncio(self, bridge: AsyncioBridge) -> None:
        """Leaves it, from any loop, and raises what leaving it raises; later calls only wait."""
        await bridge.call(self.leave)
        self.disown()

    def enter_from_thread(self, bridge: ThreadBridge) -> Any:
        """Enters it, and returns and raises as entering it does; nothing is left of it if that fails."""
        try:
            return bridge.call(self._enter)
        except BaseException:
            ThreadBridge().call(self.leave)
            raise

    @property
    def is_held(self) -> bool:
        """Whether it was entered and is not being left. Legal from any thread."""
        return self._has_begun and not self._block.is_left

    def begin_to_leave(self) -> None:
        """Begins to leave it, as a step of the engine."""
        self._block.begin_to_leave()

    def disown(self) -> None:
        """Has the loop that it was entered from forget it. Legal from any thread."""
        if self._owner is not None:
            self._owner.disown(self.leave)

    async def leave(self) -> None:
        """Leaves it, in the engine; nothing happens if it was not entered."""
        if self._has_begun:
            await self._block.leave()

    async def _enter(self) -> Any:
        self._has_begun = True
        return await self._block.enter()


class HeldBlock(Generic[T]):
    """A block of the engine that the program holds open: `enter` and `leave` are called through a bridge.

    Trio demands that a cancel scope or a nursery is closed by the task that has opened it, and each bridged call is a
    task of its own. So the block has a task of its own, in the engine's nursery.

    Args:
        open_block: Is called in that task; what it returns is entered there. It sees the context variables of
            the caller of `enter`.
    """

    def __init__(self, open_block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_block = open_block
        self._scope = trio.CancelScope()
        self._value: T
        self._failure: BaseException | None = None
        self._is_inside = False
        self._has_entered = trio.Event()
        self._is_left = trio.Event()
        self._has_ended = trio.Event()

    def __repr__(self) -> str:
        state = "ended" if self._has_ended.is_set() else "inside" if self._is_inside else "not entered"
        return f"<HeldBlock {state}>"

    async def enter(self) -> T:
        """Enters the block, and returns what it gives. Called once, in the engine. Cancelled, it leaves it again.

        Raises:
            EngineStopped: The engine ends.
            Exception: What entering the block raises.
        """
        start(EngineThread.of_this_run().nursery, HELD_BLOCK, self._hold)
        try:
            await self._has_entered.wait()
            if not self._is_inside:
                await self._has_ended.wait()
                raise self._taken_failure() or EngineStopped(False)
        except trio.Cancelled:
            await self._end_soon()
            raise
        return self._value

    @property
    def is_left(self) -> bool:
        """Whether the block is being left, or has ended. Legal from any thread."""
        return self._is_left.is_set() or self._has_ended.is_set()

    def begin_to_leave(self) -> None:
        """Begins to leave the block, for a step of the engine; `leave` waits for its end."""
        self._is_left.set()

    async def leave(self) -> None:
        """Leaves the block, in the engine, which does not learn what has ended its body.

        Idempotent; cancelled, the block is cancelled.

        Raises:
            Exception: What leaving the block raises, at the first call; so too what has ended the block before it
                was left.
        """
        self._is_left.set()
        try:
            await self._has_ended.wait()
        except trio.Cancelled:
            await self._end_soon()
            raise
        failure = self._taken_failure()
        try:
            if failure is not None:
                raise failure
        finally:
            # It is in its own traceback, whose frames would keep it.
            del failure

    async def _hold(self) -> None:
        try:
            with self._scope:
                async with self._open_block() as self._value:
                    self._is_inside = True
                    self._has_entered.set()
                    await self._is_left.wait()
        except trio.Cancelled:
            self._failure = EngineStopped(False)
            raise
        except BaseException as error:
            # It belongs to the caller that enters or leaves, whatever it is.
            self._failure = error
        finally:
            self._has_ended.set()
            self._has_entered.set()

    async def _end_soon(self) -> None:
        self._scope.cancel(reason="the caller was cancelled")
        with trio.move_on_after(CANCEL_TIME, shield=True):
            await self._has_ended.wait()

    def _taken_failure(self) -> BaseException | None:
        failure, self._failure = self._failure, None
        return failure
