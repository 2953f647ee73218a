"""The iterators and the blocks of the engine, as programs see them that do not run on Trio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mcp_actors.bridges.faces import AsyncioFace, Face, Opened, SyncFace
from mcp_actors.bridges.held_block import HeldBlock
from mcp_actors.errors import EngineStopped
from mcp_actors.types import SubscriptionFilter

__all__ = [
    "AsyncioBlock",
    "AsyncioIterator",
    "AsyncioListener",
    "AsyncioTaskHandle",
    "SyncBlock",
    "SyncIterator",
    "SyncListener",
    "SyncTaskHandle",
]


class IteratorFace(Face):
    """An async iterator of the engine. Whoever stops before its end has nothing to close."""

    def __init__(self, original: Any, opened: Opened) -> None:
        super().__init__(original, opened)
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


class AsyncioBlock(AsyncioFace):
    """A block of the engine for asyncio programs, such as that of a subscription."""

    async def __aenter__(self) -> Any:
        bridge = self._bridge()
        self._block = HeldBlock(lambda: self._original)
        try:
            return self._faced(await bridge.call(self._block.enter))
        except BaseException:
            # The engine may have entered it just before it was cancelled.
            await bridge.call(self._block.leave)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self._bridge().call(self._block.leave)


class SyncBlock(SyncFace):
    """A block of the engine for programs without a loop, such as that of a subscription."""

    def __enter__(self) -> Any:
        bridge = self._bridge()
        self._block = HeldBlock(lambda: self._original)
        try:
            return self._faced(bridge.call(self._block.enter))
        except BaseException:
            self._bridge().call(self._block.leave)
            raise

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
