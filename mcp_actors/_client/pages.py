"""Every entry of a list of the server, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from mcp_actors.errors import RemoteProtocolError

__all__ = ["AllPages"]

T = TypeVar("T")


class AllPages(AsyncIterator[T], Generic[T]):
    """Iterates over every entry of a list; the next page is asked for when it is needed.

    Raises `RemoteProtocolError` when the cursors go round in a circle, which would never end. One cursor is remembered
    and compared with those that follow, and replaced after 1, 2, 4, 8… pages: that finds a circle of any length.

    It is no generator: one that is left before its end would have to be closed.
    """

    def __init__(
        self, list_page: Callable[[str | None], Awaitable[Any]], entries: Callable[[Any], list[T]]
    ) -> None:
        self._list_page = list_page
        self._entries = entries
        self._ready: deque[T] = deque()
        self._cursor: str | None = None
        self._remembered: str | None = None
        self._pages, self._replaced_at = 0, 1
        self._has_more = True
        self._is_circle = False

    async def __anext__(self) -> T:
        if not self._ready:
            self._ready.extend(await self.next_many())
        return self._ready.popleft()

    async def next_many(self) -> list[T]:
        """Returns the entries of the next page that has any; raises `StopAsyncIteration` after the last page."""
        while self._has_more:
            # Whatever ends this, nothing follows.
            self._has_more = False
            if self._is_circle:
                raise RemoteProtocolError("the server's cursors go round in a circle: its list never ends")
            page = await self._list_page(self._cursor)
            self._note(page.next_cursor)
            entries = self._entries(page)
            if entries:
                return entries
        raise StopAsyncIteration

    def _note(self, cursor: str | None) -> None:
        # An empty string is a cursor like any other; only its absence ends the list.
        self._cursor, self._has_more = cursor, cursor is not None
        self._is_circle = cursor is not None and cursor == self._remembered
        self._pages += 1
        if self._pages == self._replaced_at:
            self._remembered, self._replaced_at = cursor, 2 * self._replaced_at
