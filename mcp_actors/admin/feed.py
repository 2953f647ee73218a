"""One snapshot an interval for all watchers together, with rates."""

from __future__ import annotations

import time
from typing import Protocol

import msgspec
import trio

from mcp_actors.admin.actions import LiveView
from mcp_actors.admin.snapshot import Counts, NodeSnapshot, Rates, SessionRow, Snapshot

__all__ = ["Feed", "Watcher"]

# A snapshot may take this part of the time of an event loop; a larger server is looked at less often.
SHARE = 0.02
# Seconds between two snapshots at most: a watcher that hears nothing for a minute takes the server for dead, and the
# time that a snapshot took is what a node says of itself.
LONGEST_PAUSE = 30.0
# Seconds from which on a difference is a rate: of a shorter time, it would say nothing.
SHORTEST = 0.2


class Watcher(Protocol):
    """Somebody who is shown every snapshot."""

    def show(self, snapshot: bytes) -> None:
        """Takes a snapshot as JSON. Must neither wait nor raise."""


class Feed:
    """Takes snapshots as long as anybody watches.

    Args:
        watch: What is looked at.
        interval: Seconds between two snapshots. They are longer apart where one takes more than 2 % of that.
    """

    def __init__(self, watch: LiveView, interval: float = 1.0) -> None:
        self.watch = watch
        self.interval = interval
        self.watchers: set[Watcher] = set()
        self._wanted = trio.Event()
        self._taking = trio.Lock()
        self._last = b""
        self._last_at = float("-inf")
        self._pause = interval
        self._before: dict[str, NodeSnapshot] = {}

    def __repr__(self) -> str:
        return f"<Feed {len(self.watchers)} watchers>"

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if not self.watchers:
                self._wanted = trio.Event()
                await self._wanted.wait()
            data = await self.latest()
            for watcher in tuple(self.watchers):
                watcher.show(data)
            await trio.sleep(self._pause)

    def add(self, watcher: Watcher) -> None:
        """Shows snapshots to ``watcher`` from now on; the last one at once, if it is young enough."""
        self.watchers.add(watcher)
        if self._is_young(self._pause):
            watcher.show(self._last)
        self._wanted.set()

    def remove(self, watcher: Watcher) -> None:
        """Shows nothing more to ``watcher``. Legal any number of times."""
        self.watchers.discard(watcher)

    async def latest(self) -> bytes:
        """Returns a snapshot as JSON, at most half an interval old: however many ask, few are taken.

        Raises:
            Exception: What the watch raises.
        """
        async with self._taking:
            if not self._is_young(self._pause / 2):
                nodes = await self.watch.snapshot()
                took = max((each.took for each in nodes), default=0.0)
                self._pause = max(self.interval, min(took / SHARE, LONGEST_PAUSE))
                nodes = [_rated(each, self._before.get(each.node)) for each in nodes]
                self._before = {each.node: each for each in nodes}
                snapshot = Snapshot(
                    at=time.time(), interval=self._pause, watchers=len(self.watchers), nodes=nodes
                )
                self._last, self._last_at = msgspec.json.encode(snapshot), trio.current_time()
            return self._last

    def _is_young(self, seconds: float) -> bool:
        return trio.current_time() - self._last_at < seconds


def _rated(now: NodeSnapshot, before: NodeSnapshot | None) -> NodeSnapshot:
    """Returns a snapshot with the rates since the one before."""
    seconds = 0.0 if before is None else now.uptime - before.uptime
    if before is None or seconds < SHORTEST:
        if before is not None:
            return msgspec.structs.replace(now, rates=before.rates)
        return now
    requests = {each.name: each.requests for each in before.sessions}
    return msgspec.structs.replace(
        now,
        rates=_rates(now.totals, before.totals, seconds),
        sessions=[_session_rated(each, requests.get(each.name), seconds) for each in now.sessions],
    )


def _rates(now: Counts, before: Counts, seconds: float) -> Rates:
    return Rates(
        requests=(now.requests - before.requests) / seconds,
        cancelled=(now.cancelled - before.cancelled) / seconds,
        malformed=(now.malformed - before.malformed) / seconds,
        refused=(now.refused - before.refused) / seconds,
        events=(now.events - before.events) / seconds,
    )


def _session_rated(now: SessionRow, before: int | None, seconds: float) -> SessionRow:
    since = now.requests - before if before is not None else now.requests if now.age < seconds else None
    return now if since is None else msgspec.structs.replace(now, rate=since / seconds)
