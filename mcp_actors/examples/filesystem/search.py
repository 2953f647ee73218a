"""Looking for files by name and content, a slice at a time so that it can report and be cancelled in between."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from mcp_actors.errors import ToolError
from mcp_actors.examples.filesystem.root import Found, RootFolder

SLICE_SECONDS = (
    0.1  # of work in a thread between two reports; a cancelled search ends after the slice that runs
)
MAX_LOOKED_AT = 250_000  # files and directories in one search; their names are held
MAX_MATCHED_BYTES = 1_000_000  # of the paths in one answer
MAX_SEARCHES = 4  # at once; further ones wait for their turn

Progress = Callable[[float, float | None, str | None], Awaitable[None]]


@dataclass(frozen=True)
class SearchResult:
    """Paths relative to the root. ``truncated`` says that the search stopped before it had seen everything."""

    matches: list[Found]
    looked_at: int
    truncated: bool


class Search:
    """One search under ``directory``: names that fit ``pattern``, and of those, files that contain ``text``."""

    def __init__(self, root: RootFolder, pattern: str, text: str, directory: str, max_results: int) -> None:
        self.matches: list[Found] = []
        self.looked_at = 0
        self._root = root
        self._fits = re.compile(fnmatch.translate(pattern)).match
        self._by_path = "/" in pattern
        self._text = text.encode("utf-8", "surrogatepass")
        self._walk = root.walk(directory, MAX_LOOKED_AT + 1)
        self._max_results = max_results
        self._bytes_left = MAX_MATCHED_BYTES
        self._finished = False
        self._truncated = False

    async def run(self, progress: Progress) -> SearchResult:
        """Searches to the end; reports how many files and directories were looked at."""
        while not self._finished:
            await trio.to_thread.run_sync(self._slice)
            await progress(self.looked_at, None, f"{len(self.matches)} found")
        return SearchResult(self.matches, self.looked_at, self._truncated)

    def _slice(self) -> None:
        end = time.monotonic() + SLICE_SECONDS
        for found in self._walk:
            if (
                len(self.matches) == self._max_results
                or self.looked_at == MAX_LOOKED_AT
                or self._bytes_left < 0
            ):
                self._finished = self._truncated = True
                return
            self.looked_at += 1
            if self._matches(found):
                self._bytes_left -= len(found.path) + 40
                self.matches.append(found)
            if time.monotonic() > end:
                return
        self._finished = True

    def _matches(self, found: Found) -> bool:
        if not self._fits(found.path if self._by_path else found.path.rpartition("/")[2]):
            return False
        if not self._text:
            return True
        try:
            return found.kind == "file" and self._text in self._root.read(found.path)
        except ToolError:  # too large, gone, not ours to read
            return False
