"""The user's end of a subscription: a stream of changes, the same for both eras."""

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
    """The changes that were subscribed to, as an async iterator of `Event`; made by `Client.listen`.

    Changes that arrive while nobody reads are coalesced, so a slow reader sees the newest state and nothing grows. The
    iteration ends when the subscription ended in order; it raises `SubscriptionLost` when it broke off.
    """

    def __init__(self, filter: SubscriptionFilter) -> None:
        self.filter = filter
        """What was asked for."""
        self.honored: SubscriptionFilter | None = None
        """What the server has granted of it, which may be less; in a session, which does not tell, what was asked."""
        self.acknowledged = trio.Event()
        """Set when the server says that the subscription is in force, or when it is lost."""
        self.on_end: Callable[[], None] = lambda: None
        self._bus = EventBus()
        self._subscription = self._bus.subscribe(filter)
        self._ready: deque[Event] = deque()
        self._lost: BaseException | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<Listener {'ended' if self._ended else 'open'} ready={len(self._ready)}>"

    @property
    def uris(self) -> Sequence[str]:
        """The resources that are subscribed to."""
        return self.filter.resource_subscriptions or ()

    def deliver(self, kind: EventKind, uri: Any) -> None:
        """Takes one change; those that were not subscribed to are dropped."""
        if kind != "resource_updated":
            self._bus.publish(kind)
        elif isinstance(uri, str):
            self._bus.publish(kind, uri)

    def end(self, lost: BaseException | None = None) -> None:
        """Ends the iteration; ``lost`` says why, unless the subscription ended in order. Only the first call counts."""
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
