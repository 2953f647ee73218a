"""Reads a list of a server page by page, within bounds: a server may list without an end.

Whatever the client reads to its end is read by this, for the program and for itself (MCP 2026-07-28, Pagination).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import trio

from mcp_actors.errors import MethodNotFound, RemoteProtocolError

__all__ = ["FEW_PAGES", "AllPages"]

T = TypeVar("T")

# With the hundred entries that a page usually has, these are a hundred thousand, more than any server is known to list;
# and as many seconds as a person would wait at most.
MOST_PAGES = 1_000
MOST_CHARACTERS = 64 * 1024 * 1024
MOST_SECONDS = 600.0
# Where a call that only wants to know one entry would be kept.
FEW_PAGES = 100


class _Bounds(NamedTuple):
    """How far a list is read; ``is_cut`` says whether it ends there, or fails."""

    pages: int
    seconds: float
    is_cut: bool


class AllPages(AsyncIterator[T], Generic[T]):
    """Iterates over every entry of a list; the next page is asked for when it is needed.

    A server that has declared a list and then says that it has no such method has an empty one: several do so.

    Raises `RemoteProtocolError` when the list does not end: after so many pages, `MOST_CHARACTERS` or so many seconds,
    and when the cursors go round in a circle. One cursor is remembered and compared with those that follow, and
    replaced after 1, 2, 4, 8… pages: that finds a circle of any length.

    It is not a generator, because a generator that is left before its end would have to be closed.

    Args:
        list_page: Asks for the page with a cursor.
        entries: Returns the entries of a page.
        most_pages: Pages that are asked for.
        most_seconds: Seconds for which pages after the first one are waited for. A page that is being waited for is
            not given up: it has the time of any request.
        is_cut: Whether a list that goes on ends there, in place of the error.
    """

    def __init__(
        self,
        list_page: Callable[[str | None], Awaitable[Any]],
        entries: Callable[[Any], list[T]],
        *,
        most_pages: int = MOST_PAGES,
        most_seconds: float = MOST_SECONDS,
        is_cut: bool = False,
    ) -> None:
        self._list_page = list_page
        self._entries = entries
        self._bounds = _Bounds(most_pages, most_seconds, is_cut)
        self._ready: deque[T] = deque()
        self._cursor: str | None = None
        self._remembered: str | None = None
        self._pages, self._replaced_at = 0, 1
        self._has_more = True
        self._is_circle = False
        # What the server has sent so far, and the seconds for which it was waited for.
        self._characters = 0
        self._seconds = 0.0

    async def __anext__(self) -> T:
        if not self._ready:
            self._ready.extend(await self.next_many())
        return self._ready.popleft()

    async def next_many(self) -> list[T]:
        """Returns the entries of the next page that has any; raises `StopAsyncIteration` after the last page."""
        while self._has_more:
            # Whatever ends this, nothing follows.
            self._has_more = False
            if self._is_circle and not self._bounds.is_cut:
                raise RemoteProtocolError("the server's cursors go round in a circle: its list never ends")
            page = await (self._next_page() if self._pages else self._first_page())
            if page is None:
                break
            self._note(page.next_cursor)
            entries = self._entries(page)
            if self._has_more:
                self._characters += len(repr(entries))
            if entries:
                return entries
        raise StopAsyncIteration

    async def _first_page(self) -> Any:
        try:
            return await self._list_page(None)
        except MethodNotFound:
            return None

    async def _next_page(self) -> Any:
        if self._is_circle or self._goes_on():
            return None
        began = trio.current_time()
        page = await self._list_page(self._cursor)
        self._seconds += trio.current_time() - began
        return page

    def _goes_on(self) -> bool:
        """Whether the list is cut here; raises `RemoteProtocolError` where it may not be."""
        for so_far, most, unit in (
            (self._pages, self._bounds.pages, "pages"),
            (self._characters, MOST_CHARACTERS, "characters"),
            (self._seconds, self._bounds.seconds, "seconds"),
        ):
            if so_far >= most:
                if self._bounds.is_cut:
                    return True
                raise RemoteProtocolError(
                    f"the server's list goes on after {most:,} {unit}; ask for single pages, by their cursors, if it "
                    "is meant to be that long"
                )
        return False

    def _note(self, cursor: str | None) -> None:
        # An empty string is a cursor like any other; only its absence ends the list.
        self._cursor, self._has_more = cursor, cursor is not None
        self._is_circle = cursor is not None and cursor == self._remembered
        self._pages += 1
        if self._pages == self._replaced_at:
            self._remembered, self._replaced_at = cursor, 2 * self._replaced_at
