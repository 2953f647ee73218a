"""The bus: what changed on the server, handed to whoever asked for it.

Publishing never waits and never fails because of a subscriber. Each subscription has a mailbox that coalesces: an
event that is already waiting there is not put a second time, because its reader will look at the newest state anyway.
A mailbox holds at most one event for each kind of list and one for each subscribed uri, so a slow reader holds
nobody up and nothing grows.

A subscribed uri also covers what lies below it (MCP 2025-11-25, Schema, ``notifications/resources/updated``):
``file:///a`` covers ``file:///a/b.txt``.
While an update of one resource below waits unread and another one changes, the waiting event becomes that of the
subscribed uri itself: something below it changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, get_args

import attrs
import trio

from mcp_actors._actors.covering import covering, covers
from mcp_actors._eras.changes import Event, EventKind
from mcp_actors._uri.template import LONGEST_URI
from mcp_actors.budget import Account
from mcp_actors.errors import LocalProtocolError, Overloaded, invalid_params
from mcp_actors.logging import log

__all__ = [
    "EventBus",
    "EventBusStatistics",
    "Filter",
    "Subscription",
    "SubscriptionStatistics",
]

_KINDS: frozenset[str] = frozenset(get_args(EventKind))

# What one subscriber may make the server remember. Far above honest use, and 100 subscribers stay within some 20 MB.
DEFAULT_MAX_URIS = 1024


class Filter(Protocol):
    """The events that a subscriber wants, in the form of `mcp_actors.types.SubscriptionFilter`."""

    @property
    def tools_list_changed(self) -> bool | None: ...
    @property
    def prompts_list_changed(self) -> bool | None: ...
    @property
    def resources_list_changed(self) -> bool | None: ...
    @property
    def resource_subscriptions(self) -> Sequence[str] | None: ...


@attrs.frozen
class SubscriptionStatistics:
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


@attrs.frozen
class EventBusStatistics:
    """A look at the bus."""

    subscriptions: int
    """Subscriptions that are open."""
    uris: int
    """Different resources that somebody subscribed to."""
    published: int
    """Events that were published so far, whether anybody wanted them or not."""
    pending: int
    """Events that wait in all mailboxes together."""


class Subscription:
    """One subscriber's mailbox; made by `EventBus.subscribe`.

    One task at a time may wait in `receive_many`; or the subscriber has no task of its own, gives ``on_pending`` and
    calls `take` when it was called. Leaving ``with subscription:`` closes it.
    """

    def __init__(
        self,
        bus: EventBus,
        kinds: frozenset[EventKind],
        on_pending: Callable[[], None] | None,
        account: Account | None,
    ) -> None:
        self._bus = bus
        self._kinds = kinds
        self._uris: dict[str, None] = {}
        self._on_pending = on_pending
        self._account = account
        # The key of a list event is its kind, that of an update the subscribed uri: this is what bounds the mailbox.
        self._pending: dict[tuple[EventKind, str | None], Event] = {}
        self._parked = trio.lowlevel.ParkingLot()
        self._state: Literal["open", "ending", "closed"] = "open"
        self._delivered = 0
        self._coalesced = 0

    @property
    def kinds(self) -> frozenset[EventKind]:
        """The lists that this subscription hears of."""
        return self._kinds

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that it hears of, with what lies below them, in the order of subscribing."""
        return tuple(self._uris)

    def add_uri(self, uri: str) -> None:
        """Hears of ``uri`` from now on; nothing happens when it does already.

        Raises `RpcError` (-32602) beyond the bus's limits, `Overloaded` when the client, or all, make the server keep
        too many bytes, `LocalProtocolError` after the end, and what
        ``on_first_subscriber`` raises; then ``uri`` is not subscribed.
        """
        self._bus._add_uri(self, uri)

    def discard_uri(self, uri: str) -> None:
        """Hears no more of ``uri``, not even what was pending, unless another subscribed uri covers it.

        What was pending for several resources below ``uri`` goes to every subscribed uri there.
        """
        self._bus._discard_uri(self, uri)

    async def receive_many(self) -> list[Event]:
        """Waits for at least one event and returns all that are pending, oldest first.

        Raises `trio.EndOfChannel` once it was ended and all was received, `trio.ClosedResourceError` when this
        subscription is or gets closed, `trio.BusyResourceError` when another task waits already. Cancelling it loses
        nothing.
        """
        if self._parked:
            raise trio.BusyResourceError("another task is receiving from this subscription")
        await trio.lowlevel.checkpoint()
        while not self._pending:
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

    def end(self) -> None:
        """No more events will come: `receive_many` gives what is pending, then raises `trio.EndOfChannel`.

        Legal from any task, any number of times.
        """
        if self._state == "open":
            self._state = "ending"
            self._bus._forget(self)
            self._parked.unpark_all()

    def close(self) -> None:
        """Ends it at once: nothing is received after this. Legal from any task, any number of times."""
        if self._state != "closed":
            self._state = "closed"
            self._pending.clear()
            # Its owner has this subscription, and must not wait for the garbage collector.
            self._on_pending = None
            self._bus._forget(self)
            self._parked.unpark_all()

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            pending=len(self._pending),
            uris=len(self._uris),
            delivered=self._delivered,
            coalesced=self._coalesced,
            waiting=bool(self._parked),
            state=self._state,
        )

    def _put(self, event: Event, subscribed: str | None) -> None:
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
        return f"<Subscription {self._state}: {kinds}, {len(self._uris)} uris, {len(self._pending)} pending>"


class EventBus:
    """Hands events from whoever changes something to whoever subscribed.

    ``on_first_subscriber(uri)`` is called before the first subscription to a uri begins, and whatever it raises
    refuses that subscription; ``on_last_unsubscribed(uri)`` is called after the last one ended. Both may be set
    later. ``max_uris`` is how many uris one subscription may hold.

    `publish` may be called from any thread; everything else from the thread that runs Trio.
    """

    def __init__(
        self,
        *,
        on_first_subscriber: Callable[[str], None] | None = None,
        on_last_unsubscribed: Callable[[str], None] | None = None,
        max_uris: int = DEFAULT_MAX_URIS,
    ) -> None:
        self.on_first_subscriber = on_first_subscriber
        self.on_last_unsubscribed = on_last_unsubscribed
        self._max_uris = max_uris
        # Dictionaries as ordered sets: delivery in the order of subscribing makes every run the same.
        self._subscriptions: dict[Subscription, None] = {}
        self._by_kind: dict[EventKind, dict[Subscription, None]] = {}
        self._by_uri: dict[str, dict[Subscription, None]] = {}
        self._published = 0
        self._loop: tuple[int, trio.lowlevel.TrioToken] | None = None

    def subscribe(
        self,
        filter: Filter,
        *,
        on_pending: Callable[[], None] | None = None,
        account: Account | None = None,
    ) -> Subscription:
        """Begins a subscription: everything published from now on that ``filter`` asks for is pending in it.

        ``on_pending`` is called, in the publisher's turn, when the mailbox stops being empty; it must neither block
        nor raise. ``account`` is charged for the uris. Raises what `Subscription.add_uri` raises; then nothing is
        subscribed.
        """
        self._loop = (threading.get_ident(), trio.lowlevel.current_trio_token())
        subscription = Subscription(self, frozenset(_wanted_kinds(filter)), on_pending, account)
        self._subscriptions[subscription] = None
        for kind in sorted(subscription.kinds):
            self._by_kind.setdefault(kind, {})[subscription] = None
        try:
            for uri in filter.resource_subscriptions or ():
                self._add_uri(subscription, uri)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def publish(self, kind: EventKind, uri: str | None = None) -> None:
        """Tells every subscriber that wants to know. Never waits; from another thread it takes effect soon after.

        Its cost is that of the subscribers that match, not of all. Raises `LocalProtocolError` for an unknown
        kind, or a uri where none belongs (``resource_updated`` needs one, the others have none).
        """
        if kind not in _KINDS or (uri is not None) != (kind == "resource_updated"):
            raise LocalProtocolError(f"no such event: {kind!r} with uri {uri!r}")
        if self._loop is not None and self._loop[0] != threading.get_ident():
            try:
                self._loop[1].run_sync_soon(self._deliver, kind, uri, idempotent=True)
            except trio.RunFinishedError:  # and with it every subscription
                self._published += 1
        else:
            self._deliver(kind, uri)

    def close(self) -> None:
        """Ends every subscription; see `Subscription.end`. Safe to repeat."""
        for subscription in tuple(self._subscriptions):
            subscription.end()

    def statistics(self) -> EventBusStatistics:
        return EventBusStatistics(
            subscriptions=len(self._subscriptions),
            uris=len(self._by_uri),
            published=self._published,
            pending=sum(len(each._pending) for each in self._subscriptions),
        )

    def _deliver(self, kind: EventKind, uri: str | None) -> None:
        self._published += 1
        event = Event(kind, uri)
        if uri is None:
            for subscription in tuple(self._by_kind.get(kind, ())):
                subscription._put(event, None)
            return
        served: set[Subscription] = set()
        for above in covering(uri, self._by_uri):
            for subscription in tuple(self._by_uri.get(above, ())):
                if subscription not in served:
                    served.add(subscription)
                    subscription._put(event, above)

    def _add_uri(self, subscription: Subscription, uri: str) -> None:
        if subscription._state != "open":
            raise LocalProtocolError("this subscription has ended")
        if uri in subscription._uris:
            return
        if len(uri) > LONGEST_URI:
            raise invalid_params(f"a uri has {len(uri)} characters, the limit is {LONGEST_URI}")
        if len(subscription._uris) >= self._max_uris:
            raise invalid_params(f"too many resource subscriptions: at most {self._max_uris}")
        account = subscription._account
        if account is not None and (over := account.charge(len(uri))) is not None:
            raise Overloaded.for_bytes("sessions", over, account.budget.limit_of(over))
        try:
            if uri not in self._by_uri and self.on_first_subscriber is not None:
                self.on_first_subscriber(uri)
        except BaseException:
            _release(account, uri)
            raise
        self._by_uri.setdefault(uri, {})[subscription] = None
        subscription._uris[uri] = None

    def _discard_uri(self, subscription: Subscription, uri: str) -> None:
        if uri not in subscription._uris:
            return
        orphan = subscription._pending.pop(("resource_updated", uri), None)
        self._unindex(subscription, uri)
        if orphan is None or orphan.uri is None:
            return
        for above in covering(orphan.uri, subscription._uris):
            subscription._put(orphan, above)
            return
        # The event may stand for several updates below its uri, and nobody knows which: all that is left there is told.
        for below in subscription._uris:
            if covers(orphan.uri, below):
                subscription._put(Event(orphan.kind, below), below)

    def _unindex(self, subscription: Subscription, uri: str) -> None:
        del subscription._uris[uri]
        _release(subscription._account, uri)
        subscribers = self._by_uri[uri]
        del subscribers[subscription]
        if not subscribers:
            del self._by_uri[uri]
            self._notify_unsubscribed(uri)

    def _notify_unsubscribed(self, uri: str) -> None:
        if self.on_last_unsubscribed is None:
            return
        try:
            self.on_last_unsubscribed(uri)
        except Exception:
            # Nobody is left who could be told, and the rest of the subscriptions must still be taken down.
            log.exception("on_unsubscribe failed", uri=uri)

    def _forget(self, subscription: Subscription) -> None:
        if subscription not in self._subscriptions:
            return
        del self._subscriptions[subscription]
        for kind in subscription.kinds:
            del self._by_kind[kind][subscription]
        for uri in subscription.uris:
            self._unindex(subscription, uri)

    def __repr__(self) -> str:
        return f"<EventBus: {len(self._subscriptions)} subscriptions, {len(self._by_uri)} uris>"


def _release(account: Account | None, uri: str) -> None:
    if account is not None:
        account.keep(max(0, account.held - len(uri)))


def _wanted_kinds(filter: Filter) -> Iterable[EventKind]:
    if filter.tools_list_changed:
        yield "tools"
    if filter.prompts_list_changed:
        yield "prompts"
    if filter.resources_list_changed:
        yield "resources"
