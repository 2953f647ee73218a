"""The client's side of subscriptions: a stream of changes, the same for both eras."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import trio

from mcp_actors._actors.event_bus import EventBus
from mcp_actors._eras.changes import Event, EventKind
from mcp_actors.errors import SubscriptionLost
from mcp_actors.types import SubscriptionFilter

__all__ = ["Listener"]


class Listener:
    """Changes that were asked for, as an async iterator of `Event` (``kind``, ``uri``).

    Changes that come while nobody looks are coalesced, so a slow reader sees the newest state and nothing grows. The
    iteration ends when the server ends the subscription in order; it raises `SubscriptionLost` when it broke off.
    """

    def __init__(self, filter: SubscriptionFilter) -> None:
        self.filter = filter
        self.acknowledged = trio.Event()
        self._bus = EventBus()
        self._subscription = self._bus.subscribe(filter)
        self._ready: deque[Event] = deque()
        self._lost: BaseException | None = None
        self._ended = False
        self.on_end: Callable[[], None] = lambda: None

    @property
    def uris(self) -> Sequence[str]:
        """The resources that are subscribed to."""
        return self.filter.resource_subscriptions or ()

    def deliver(self, kind: EventKind, uri: Any) -> None:
        """Takes one change; those that were not asked for are dropped."""
        if kind != "resource_updated":
            self._bus.publish(kind)
        elif isinstance(uri, str):
            self._bus.publish(kind, uri)

    def end(self, lost: BaseException | None = None) -> None:
        """No more changes will come; ``lost`` says why, unless the server ended it in order."""
        if not self._ended:
            self._ended = True
            self._lost = lost
            if lost is not None:
                self.acknowledged.set()
            self._bus.close()
            self.on_end()

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> Event:
        if not self._ready:
            try:
                self._ready.extend(await self._subscription.receive_many())
            except trio.EndOfChannel:
                self.raise_if_lost()
                raise StopAsyncIteration from None
        return self._ready.popleft()

    def raise_if_lost(self) -> None:
        """Raises `SubscriptionLost` if the subscription broke off."""
        if self._lost is not None:
            raise SubscriptionLost(f"the subscription broke off: {self._lost}") from self._lost
