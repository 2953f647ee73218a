"""Publishes the changes of upstreams on the gateway's bus, no faster than clients can make use of them.

An upstream that reports changes without a pause would make every client list again and again. So what says the same is
put together: a list has changed at most once in `LIST_PAUSE` seconds, and each resource once in `PAUSE`. The first
report of a change waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors._eras.changes import Event, EventKind

__all__ = ["LIST_PAUSE", "MOST_PENDING", "PAUSE", "ChangeDelivery"]

# Seconds between two rounds of reports.
PAUSE = 0.1
# Seconds between two reports of one list.
LIST_PAUSE = 1.0
# Resources that wait to be reported, beyond those that are subscribed to themselves.
MOST_PENDING = 4096


class ChangeDelivery:
    """The changes of all upstreams that were not published yet.

    Args:
        publish: Publishes one change: `EventBus.publish`.
    """

    def __init__(self, publish: Callable[[EventKind, str | None], None]) -> None:
        self._publish = publish
        self._pending: dict[Event, None] = {}
        self._not_before: dict[EventKind, float] = {}
        self._parked = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<ChangeDelivery {len(self._pending)} pending>"

    @property
    def is_full(self) -> bool:
        """Whether no more resources are taken one by one."""
        return len(self._pending) >= MOST_PENDING

    def put(self, kind: EventKind, uri: str | None = None) -> None:
        """Takes a change; never waits."""
        self._pending[Event(kind, uri)] = None
        self._parked.unpark()

    async def run(self) -> None:
        """Publishes what is put. Never returns."""
        while True:
            while not self._pending:
                await self._parked.park()
            now = trio.current_time()
            for event in list(self._pending):
                if event.uri is None:
                    if now < self._not_before.get(event.kind, now):
                        continue
                    self._not_before[event.kind] = now + LIST_PAUSE
                del self._pending[event]
                self._publish(event.kind, event.uri)
            await trio.sleep(PAUSE)
