"""A subscriber's mailbox on the bus, in which events that say the same are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import attrs
import trio

from mcp_actors._actors.waiting_tasks import WaitingTasks
from mcp_actors._eras.changes import Event, EventKind
from mcp_actors._record import ValueRecord
from mcp_actors.budget import Account

__all__ = ["Subscription", "SubscriptionStatistics"]


class SubscriptionIndex(Protocol):
    """The bus, seen from a subscription."""

    def add_uri(self, subscription: Subscription, uri: str) -> None: ...

    def discard_uri(self, subscription: Subscription, uri: str) -> None: ...

    def add_key(self, subscription: Subscription, topic: str, key: str) -> None: ...

    def discard_key(self, subscription: Subscription, topic: str, key: str) -> None: ...

    def forget(self, subscription: Subscription) -> None: ...


@attrs.frozen(eq=False, repr=False)
class SubscriptionStatistics(ValueRecord):
    """A look at one subscription."""

    pending: int
    """Events that wait to be received."""
    uris: int
    """Resources that are subscribed to."""
    delivered: int
    """Events that were received so far."""
    coalesced: int
    """Events that needed no place of their own, since one that says the same was waiting."""
    waiting: bool
    """Whether a task waits in `Subscription.receive_many` now."""
    state: Literal["open", "ending", "closed"]
    """``ending``: no more events come, what is pending can still be received."""


class Subscription:
    """One subscriber's mailbox; made by `EventBus.subscribe`.

    One task at a time may wait in `receive_many`; or the subscriber has no task of its own, gives ``on_pending`` and
    calls `take` when it was called. Leaving ``with subscription:`` closes it.
    """

    def __init__(
        self,
        bus: SubscriptionIndex,
        kinds: frozenset[EventKind],
        on_pending: Callable[[], None] | None,
        account: Account | None,
    ) -> None:
        self._bus = bus
        self._kinds = kinds
        self.known_uris: dict[str, None] = {}
        # A dict, since an empty set is three times as large.
        self.known_keys: dict[tuple[str, str], None] = {}
        self._on_pending = on_pending
        self.account = account
        # The key of a list event is its kind, that of an update the subscribed uri: this is what bounds the mailbox.
        self._pending: dict[tuple[EventKind, str | None], Event] = {}
        self._pending_keys: dict[tuple[str, str], None] = {}
        self._parked = WaitingTasks()
        self._state: Literal["open", "ending", "closed"] = "open"
        self._delivered = 0
        self._coalesced = 0

    @property
    def kinds(self) -> frozenset[EventKind]:
        """The lists that this subscription hears of."""
        return self._kinds

    @property
    def is_open(self) -> bool:
        """Whether it was neither ended nor closed."""
        return self._state == "open"

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that it hears of, with what lies below them, in the order of subscribing."""
        return tuple(self.known_uris)

    def add_uri(self, uri: str) -> None:
        """Hears of ``uri`` from now on; nothing happens when it does already.

        Raises `RpcError` (-32602) beyond the bus's limits, `Overloaded` when the client, or all, make the server keep
        too many bytes, `LocalProtocolError` after the end, and what
        ``on_first_subscriber`` raises; then ``uri`` is not subscribed.
        """
        self._bus.add_uri(self, uri)

    def discard_uri(self, uri: str) -> None:
        """Hears no more of ``uri``, not even what was pending, unless another subscribed uri covers it.

        What was pending for several resources below ``uri`` goes to every subscribed uri there.
        """
        self._bus.discard_uri(self, uri)

    def add_key(self, topic: str, key: str) -> None:
        """Hears of ``key`` of a topic that an extension has; raises as `add_uri` does."""
        self._bus.add_key(self, topic, key)

    def discard_key(self, topic: str, key: str) -> None:
        """Hears no more of ``key`` of a topic, not even what was pending."""
        self._bus.discard_key(self, topic, key)

    async def receive_many(self) -> list[Event]:
        """Waits for at least one event or key, and returns all events that are pending, oldest first; see `take_keys`.

        Raises `trio.EndOfChannel` once it was ended and all was received, `trio.ClosedResourceError` when this
        subscription is or gets closed, `trio.BusyResourceError` when another task waits already. Cancelling it loses
        nothing.
        """
        if self._parked:
            raise trio.BusyResourceError("another task is receiving from this subscription")
        await trio.lowlevel.checkpoint()
        while not self._pending and not self._pending_keys:
            if self._state == "closed":
                raise trio.ClosedResourceError
            if self._state == "ending":
                raise trio.EndOfChannel
            await self._parked.park()
        return self.take()

    def take(self) -> list[Event]:
        """All events that are pending, oldest first; an empty list when there are none. Never waits."""
        events = list(self._pending.values())
        self._pending.clear()
        self._delivered += len(events)
        return events

    def take_keys(self) -> list[tuple[str, str]]:
        """The topics and keys of extensions that are pending, oldest first. Never waits."""
        keys = list(self._pending_keys)
        self._pending_keys.clear()
        self._delivered += len(keys)
        return keys

    def end(self) -> None:
        """No more events will come: `receive_many` gives what is pending, then raises `trio.EndOfChannel`.

        Legal from any task, any number of times.
        """
        if self._state == "open":
            self._state = "ending"
            self._bus.forget(self)
            self._parked.unpark_all()

    def close(self) -> None:
        """Ends it at once: nothing is received after this. Legal from any task, any number of times."""
        if self._state != "closed":
            self._state = "closed"
            self._pending.clear()
            self._pending_keys.clear()
            # Its owner has this subscription, and must not wait for the garbage collector.
            self._on_pending = None
            self._bus.forget(self)
            self._parked.unpark_all()

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            pending=len(self._pending) + len(self._pending_keys),
            uris=len(self.known_uris),
            delivered=self._delivered,
            coalesced=self._coalesced,
            waiting=bool(self._parked),
            state=self._state,
        )

    def withdraw_uri(self, uri: str) -> Event | None:
        """Takes out what is pending for a uri, and returns it."""
        return self._pending.pop(("resource_updated", uri), None)

    def withdraw_key(self, topic: str, key: str) -> None:
        """Takes out what is pending for a key."""
        self._pending_keys.pop((topic, key), None)

    def put_key(self, topic: str, key: str) -> None:
        """Makes a key of a topic pending."""
        if self._state != "open":
            return
        if (topic, key) in self._pending_keys:
            self._coalesced += 1
            return
        self._pending_keys[topic, key] = None
        self._parked.unpark()

    def put(self, event: Event, subscribed: str | None) -> None:
        """Makes an event pending, for the uri that was ``subscribed`` to."""
        if self._state != "open":  # a callback of a subscriber before us in the row closed this one
            return
        key = (event.kind, subscribed)
        waiting = self._pending.get(key)
        if waiting is None:
            was_empty = not self._pending
            self._pending[key] = event
            self._parked.unpark()
            if was_empty and self._on_pending is not None:
                self._on_pending()
            return
        self._coalesced += 1
        if waiting != event:
            self._pending[key] = Event(event.kind, subscribed)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kinds = ",".join(sorted(self._kinds)) or "no lists"
        return f"<Subscription {self._state}: {kinds}, {len(self.known_uris)} uris, {len(self._pending)} pending>"
