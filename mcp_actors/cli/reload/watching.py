"""Notices that files have changed: at once where the system tells, and once a second where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import trio
from watchfiles import DefaultFilter, watch

__all__ = ["FileWatch", "Signatures"]

# Milliseconds between two looks where nothing is told: network file systems, a folder that was deleted and made again.
LOOK_EVERY = 1000
# Milliseconds without a change after which changes are told, and the most for which they are collected before: an
# editor that saves makes several.
STEP, DEBOUNCE = 50, 400
# Python files of a folder that are looked at when it is not known which of them matter.
MOST_FILES = 1000

Signatures = Mapping[str, tuple[int, ...] | None]
"""The look of files: their time, size and inode, ``None`` for one that is not there."""
_Tell = Callable[[Signatures], None]


class FileWatch:
    """Watches the files that the target was imported from, and folders that the user names.

    Folders are watched rather than files, as editors put a new file in the place of the old one.

    Args:
        folder: The folder of the target.
        others: Folders in which every change counts, with all below them.
    """

    def __init__(self, folder: Path, others: Sequence[str]) -> None:
        self.others = others
        self._folder = str(folder)
        self._files: frozenset[str] = frozenset()
        self._all_python = False
        self._expected: Signatures = {}
        self._has_changed = trio.Event()
        self._stop = trio.Event()

    def __repr__(self) -> str:
        return f"<FileWatch of {len(self._files)} files>"

    def look(self) -> Signatures:
        """Returns how all files look that may matter to the next import. For a worker thread."""
        beside = (file for each in self._folders() for file in _python_files(each))
        return _signatures([*self._files, *beside])

    def expect(self, files: Iterable[str], before: Signatures, *, failed: bool) -> None:
        """Watches the files of an import from now on.

        Args:
            files: The files.
            before: The result of `look` before the import, so that a change during it counts.
            failed: Whether the import failed: then every Python file beside them may mend it.
        """
        self._files = frozenset(files)
        self._all_python = failed
        known = before if failed else {file: before[file] for file in self._files if file in before}
        self._expected = {**_signatures(self._files - before.keys()), **known}
        # The folders may be others now.
        self._stop.set()

    async def changed(self) -> None:
        """Waits until something has changed since this returned last."""
        await self._has_changed.wait()
        self._has_changed = trio.Event()

    async def watch_files(self) -> None:
        """Watches what the target was imported from; never returns."""
        while True:
            self._stop = stop = trio.Event()
            looked = partial(self._looked, stop)
            await _in_thread(partial(self._watch_files, self._folders()), stop, looked)

    async def watch_others(self) -> None:
        """Watches the other folders; never returns."""
        while True:
            await _in_thread(self._watch_others, trio.Event(), lambda _: self._has_changed.set())

    def _folders(self) -> list[str]:
        return sorted({self._folder, *(os.path.dirname(file) for file in self._files)})

    def _watch_files(self, folders: Sequence[str], stop: trio.Event, tell: _Tell) -> None:
        for _ in _looks(folders, stop, recursive=False):
            tell(self.look() if self._all_python else _signatures(self._files))

    def _looked(self, stop: trio.Event, seen: Signatures) -> None:
        if not stop.is_set() and seen != self._expected:
            self._expected = seen
            self._has_changed.set()

    def _watch_others(self, stop: trio.Event, tell: _Tell) -> None:
        accepts = DefaultFilter()
        for changes in _looks(self.others, stop, recursive=True):
            if any(accepts(*each) for each in changes):
                tell({})


async def _in_thread(function: Callable[[trio.Event, _Tell], None], stop: trio.Event, tell: _Tell) -> None:
    """Runs a function in a thread of its own until ``stop`` is set, which a cancellation does."""
    token = trio.lowlevel.current_trio_token()

    def tell_loop(seen: Signatures) -> None:
        try:
            token.run_sync_soon(tell, seen)
        except trio.RunFinishedError:
            stop.set()

    try:
        await trio.to_thread.run_sync(
            function, stop, tell_loop, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
    finally:
        stop.set()


def _looks(folders: Sequence[str], stop: trio.Event, *, recursive: bool) -> Iterator[set[tuple[Any, str]]]:
    """Yields the changes in some folders, or none of them when it is time to look; ends soon after ``stop`` is set.

    It also ends when a folder comes or goes, and looks only once a second where nothing can be watched.
    """
    yield set()
    there = [each for each in folders if os.path.isdir(each)]
    try:
        for changes in watch(
            *there,
            watch_filter=None,
            step=STEP,
            debounce=DEBOUNCE,
            stop_event=stop,
            rust_timeout=LOOK_EVERY,
            yield_on_timeout=True,
            raise_interrupt=False,
            ignore_permission_denied=True,
            recursive=recursive,
        ):
            yield changes
            if there != [each for each in folders if os.path.isdir(each)]:
                return
    except (OSError, RuntimeError):
        # No more watches are allowed on this machine, or a folder has gone meanwhile.
        sleep(LOOK_EVERY / 1000)


def _python_files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(each.path for each in entries if each.name.endswith(".py"))
    except OSError:
        return []
    return found[:MOST_FILES]


def _signatures(files: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    return {file: _signature(file) for file in files}


def _signature(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
