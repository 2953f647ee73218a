"""The iterators and the blocks of the engine, as programs see them that do not run on Trio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.faces import AsyncioFace, Face, Opened, SyncFace
from mcp_actors.bridges.held_block import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import EngineStopped
from mcp_actors.types import SubscriptionFilter

__all__ = [
    "AsyncioBlock",
    "AsyncioIterator",
    "AsyncioListener",
    "AsyncioTaskHandle",
    "EngineBlock",
    "SyncBlock",
    "SyncIterator",
    "SyncListener",
    "SyncTaskHandle",
]


class IteratorFace(Face):
    """An async iterator of the engine. Whoever stops before its end has nothing to close."""

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


class AsyncioIterator(IteratorFace, AsyncioFace):
    """An iterator for asyncio programs."""

    def __aiter__(self) -> AsyncioIterator:
        return self

    async def __anext__(self) -> Any:
        if not self._ready:
            self._ready.extend(await self._bridge().call(_next_of, self._original))
        return self._ready.popleft()


class SyncIterator(IteratorFace, SyncFace):
    """An iterator for programs without a loop."""

    def __iter__(self) -> SyncIterator:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            try:
                self._ready.extend(self._bridge().call(_next_of, self._original))
            except StopAsyncIteration:
                raise StopIteration from None
        return self._ready.popleft()


async def _next_of(iterator: Any) -> Iterable[Any]:
    """Returns the next items: one, or as many as are there already where the iterator can say so."""
    many = getattr(iterator, "next_many", None)
    return [await anext(iterator)] if many is None else await many()


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
        """Whether it was entered, and nobody has begun to leave it. Legal from any thread."""
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


class AsyncioBlock(AsyncioFace):
    """A block of the engine for asyncio programs, such as that of a subscription."""

    async def __aenter__(self) -> Any:
        bridge = self._bridge()
        self._block = EngineBlock(self._original)
        return self._faced(await self._block.enter_from_asyncio(bridge))

    async def __aexit__(self, *exc_info: object) -> None:
        await self._block.leave_from_asyncio(self._bridge())


class SyncBlock(SyncFace):
    """A block of the engine for programs without a loop, such as that of a subscription."""

    def __enter__(self) -> Any:
        bridge = self._bridge()
        self._block = EngineBlock(self._original)
        return self._faced(self._block.enter_from_thread(bridge))

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)


class ListenerFace(Face):
    """The changes that were subscribed to."""

    @property
    def filter(self) -> SubscriptionFilter:
        """The filter that was asked for."""
        asked: SubscriptionFilter = self._original.filter
        return asked

    @property
    def honored(self) -> SubscriptionFilter | None:
        """The part of it that the server has granted; in a session, which does not tell, all of it."""
        granted: SubscriptionFilter | None = self._original.honored
        return granted


class TaskHandleFace(Face):
    """A call of a tool that goes on at the server."""

    @property
    def id(self) -> str | None:
        """The task's id; ``None`` if the server answered at once, without a task."""
        id: str | None = self._original.id
        return id


class AsyncioListener(ListenerFace, AsyncioIterator):
    """A listener for asyncio programs."""


class SyncListener(ListenerFace, SyncIterator):
    """A listener for programs without a loop."""


class AsyncioTaskHandle(TaskHandleFace, AsyncioFace):
    """A task for asyncio programs."""


class SyncTaskHandle(TaskHandleFace, SyncFace):
    """A task for programs without a loop."""
