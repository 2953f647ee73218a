"""Telling subscribers about changes on the disk; nothing is watched while nobody listens."""

from __future__ import annotations

from collections.abc import Callable

import trio
from watchfiles import watch

from mcp_actors.examples.filesystem.root import RootFolder

LOOK_EVERY = 1_000  # ms: how often to look without being told, for file systems that tell nothing


class Watch:
    """Calls ``changed(uri)`` when the file or directory behind a subscribed URI changes, comes or goes.

    ``add`` and ``discard`` are called for the first and after the last subscriber of a URI.
    """

    def __init__(
        self, root: RootFolder, path_of: Callable[[str], str | None], changed: Callable[[str], None]
    ) -> None:
        self._root = root
        self._path_of = path_of
        self._changed = changed
        self._seen: dict[str, tuple[str, tuple[int, ...] | None]] = {}
        self._turn = trio.Lock()
        self._wanted = trio.Event()
        self._unwanted = trio.Event()

    def add(self, uri: str) -> None:
        """Remembers how it looks now: what changes before the watching has begun is noticed at the first look."""
        path = self._path_of(uri)
        if path is not None:
            self._seen[uri] = (path, self._root.signature(path))
            self._wanted.set()

    def discard(self, uri: str) -> None:
        """Forgets it; without anything left to look at, the watching ends."""
        self._seen.pop(uri, None)
        if not self._seen:
            self._unwanted.set()

    async def run(self) -> None:
        """Watches whenever there is something to watch; never returns. Run twice, the second is a spare."""
        async with self._turn:
            while True:
                await self._wanted.wait()
                self._unwanted = trio.Event()
                if self._seen:
                    await self._watch_until(self._unwanted)
                self._wanted = trio.Event()
                if self._seen:
                    self._wanted.set()

    async def _watch_until(self, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_when_cancelled, stop)
            try:
                # In a thread of our own for as long as it lasts: to begin means to visit every directory.
                await trio.to_thread.run_sync(self._look_when_told, stop, limiter=trio.CapacityLimiter(1))
            except (OSError, RuntimeError):  # no more watches allowed on this machine, or the root is gone
                await self._look_now_and_then(stop)
            nursery.cancel_scope.cancel()

    def _look_when_told(self, stop: trio.Event) -> None:
        for _ in watch(
            self._root.directory,
            watch_filter=None,
            debounce=200,
            stop_event=stop,
            rust_timeout=LOOK_EVERY,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        ):
            self._look()

    async def _look_now_and_then(self, stop: trio.Event) -> None:
        while not stop.is_set():
            await trio.to_thread.run_sync(self._look)
            with trio.move_on_after(LOOK_EVERY / 1_000):
                await stop.wait()

    def _look(self) -> None:
        for uri, (path, _) in list(self._seen.items()):
            trio.from_thread.run_sync(self._compare, uri, self._root.signature(path))

    def _compare(self, uri: str, now: tuple[int, ...] | None) -> None:
        if uri in self._seen and self._seen[uri][1] != now:
            self._seen[uri] = (self._seen[uri][0], now)
            self._changed(uri)


async def _set_when_cancelled(stop: trio.Event) -> None:
    """The thread of the watching library cannot be cancelled; it looks at this event instead."""
    try:
        await trio.sleep_forever()
    finally:
        stop.set()
