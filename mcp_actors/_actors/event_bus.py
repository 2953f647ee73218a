"""The bus: changes on the server, delivered to the subscribers that asked for them.

Publishing never waits and never fails because of a subscriber. Each subscription has a mailbox that coalesces: an
event that is already waiting there is not put a second time, because its reader will look at the newest state anyway.
A mailbox holds at most one event for each kind of list and one for each subscribed uri, so a slow reader delays
no one and nothing grows.

A subscribed uri also covers what lies below it (MCP 2025-11-25, Schema, ``notifications/resources/updated``):
``file:///a`` covers ``file:///a/b.txt``.
While an update of one resource below waits unread and another one changes, the waiting event becomes that of the
subscribed uri itself: something below it changed.

Extensions have topics of their own, whose keys are subscribed to one by one and cover nothing but themselves.

While the bus is attached to that of several nodes (`mcp_actors.abc.Bus`), every event is published there too, and what
comes from there is delivered here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, cast, get_args

import trio

from mcp_actors._actors.outbound_call import WaitingTasks
from mcp_actors._eras.era import Event, EventKind, shared_kinds
from mcp_actors._wire.uri_template import LONGEST_URI
from mcp_actors.abc import Bus
from mcp_actors.errors import LocalProtocolError, Overloaded, invalid_params
from mcp_actors.supervision.budget import Account
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import masked_uri
from mcp_actors.types import SubscriptionFilter
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "EventBus",
    "EventBusStatistics",
    "Subscription",
    "SubscriptionStatistics",
    "covers",
    "levels",
    "uris_above",
]


def uris_above(uri: str, subscribed: Mapping[str, object]) -> Iterable[str]:
    """Returns the subscribed uris that are ``uri`` or lie above it.

    The nearest is first, so that a subscriber to several of them hears of the nearest, once. It looks at the levels of
    ``uri`` or at all that is subscribed, whichever is fewer: a path of endless slashes costs nothing special.
    """
    if 2 * uri.count("/") >= len(subscribed):
        return sorted((each for each in subscribed if covers(each, uri)), key=len, reverse=True)
    return [each for each in levels(uri) if each in subscribed]


def covers(above: str, uri: str) -> bool:
    """Whether ``uri`` is ``above`` or lies below it."""
    return uri.startswith(above) and (len(above) == len(uri) or above.endswith("/") or uri[len(above)] == "/")


def levels(uri: str) -> Iterator[str]:
    yield uri
    shortest = end = len(uri)
    while (end := uri.rfind("/", 0, end)) >= 0:
        if end + 1 < shortest:  # else it was the level before, with nothing between two slashes
            yield uri[: end + 1]
        yield uri[:end]
        shortest = end


@frozen_record(eq=False, repr=False)
class SubscriptionStatistics(ValueRecord):
    """A snapshot of one subscription."""

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
    calls `take`, or `first` and `delivered`, when it was called. Leaving ``with subscription:`` closes it.
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
        """The lists that this subscription covers."""
        return self._kinds

    @property
    def is_open(self) -> bool:
        """Whether it was neither ended nor closed."""
        return self._state == "open"

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that it covers, with what lies below them, in the order of subscribing."""
        return tuple(self.known_uris)

    def add_uri(self, uri: str) -> None:
        """Subscribes to ``uri``; nothing happens if that is subscribed to already.

        Raises `RpcError` (-32602) beyond the bus's limits, `Overloaded` when the client, or all, make the server keep
        too many bytes, `LocalProtocolError` after the end, and what
        ``on_first_subscriber`` raises; then ``uri`` is not subscribed.
        """
        self._bus.add_uri(self, uri)

    def discard_uri(self, uri: str) -> None:
        """Ends the subscription to ``uri``, and drops what was pending unless another subscribed uri covers it.

        What was pending for several resources below ``uri`` goes to every subscribed uri there.
        """
        self._bus.discard_uri(self, uri)

    def add_key(self, topic: str, key: str) -> None:
        """Subscribes to ``key`` of a topic that an extension has; raises as `add_uri` does."""
        self._bus.add_key(self, topic, key)

    def discard_key(self, topic: str, key: str) -> None:
        """Ends the subscription to ``key`` of a topic, and drops what was pending."""
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
        """Returns all events that are pending, oldest first, without waiting."""
        events = list(self._pending.values())
        self._pending.clear()
        self._delivered += len(events)
        return events

    def first(self) -> tuple[tuple[EventKind, str | None], Event] | None:
        """Returns the oldest event that is pending, with its key, and leaves it pending until it is `delivered`."""
        return next(iter(self._pending.items()), None)

    def delivered(self, key: tuple[EventKind, str | None], event: Event) -> None:
        """Takes out an event that `first` has returned, unless it stands for other updates by now."""
        if self._pending.get(key) is event:
            del self._pending[key]
            self._delivered += 1

    def take_keys(self) -> list[tuple[str, str]]:
        """Returns the topics and keys of extensions that are pending, oldest first, without waiting."""
        keys = list(self._pending_keys)
        self._pending_keys.clear()
        self._delivered += len(keys)
        return keys

    def end(self) -> None:
        """No more events will come: `receive_many` gives what is pending, then raises `trio.EndOfChannel`.

        Idempotent, and legal from any task.
        """
        if self._state == "open":
            self._state = "ending"
            self._bus.forget(self)
            self._parked.unpark_all()

    def close(self) -> None:
        """Ends it at once: nothing is received after this. Idempotent, and legal from any task."""
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

    def put_all(self) -> None:
        """Makes pending that everything has changed that was subscribed to, but for keys of extensions."""
        for kind in sorted(self.kinds):
            self.put(Event(kind), None)
        for uri in self.uris:
            self.put(Event("resource_updated", uri), uri)

    def put_published(self, topic: str, key: str) -> None:
        """Makes an event pending that was published before this began, if it covers the event."""
        if topic == "resource_updated":
            above = next(iter(uris_above(key, self.known_uris)), None)
            if above is not None:
                self.put(Event("resource_updated", key), above)
        else:
            for kind in self.kinds:
                if kind == topic:
                    self.put(Event(kind), None)

    def hand_over(self) -> list[tuple[EventKind, str | None, str | None]]:
        """Closes it, and returns what was pending, each with the uri that was subscribed to."""
        pending = [(event.kind, event.uri, above) for (_, above), event in self._pending.items()]
        self.close()
        return pending

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kinds = ",".join(sorted(self._kinds)) or "no lists"
        return f"<Subscription {self._state}: {kinds}, {len(self.known_uris)} uris, {len(self._pending)} pending>"


_KINDS: frozenset[str] = frozenset(get_args(EventKind))

# What one subscriber may make the server remember. Far above honest use, and 100 subscribers stay within some 20 MB.
DEFAULT_MAX_URIS = 1024


@frozen_record(eq=False, repr=False)
class EventBusStatistics(ValueRecord):
    """A snapshot of the bus."""

    subscriptions: int
    """Subscriptions that are open."""
    uris: int
    """Different resources that have a subscriber."""
    published: int
    """Events that were published so far, whether they had subscribers or not."""
    pending: int
    """Events that wait in all mailboxes together."""


class EventBus:
    """Hands events from publishers to subscribers.

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
        self._by_key: dict[tuple[str, str], dict[Subscription, None]] = {}
        self._attached: list[Bus] = []
        self._forwarded: tuple[Callable[[str, str | None], None], ...] = ()
        self.changes = dict.fromkeys(get_args(EventKind), 0)
        """How often each kind of event was delivered here, for caches that a change makes stale."""
        self._published = 0
        self._loop: tuple[int, trio.lowlevel.TrioToken] | None = None

    def subscribe(
        self,
        filter: SubscriptionFilter,
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
        subscription = Subscription(self, shared_kinds(frozenset(_wanted_kinds(filter))), on_pending, account)
        self._subscriptions[subscription] = None
        for kind in sorted(subscription.kinds):
            self._by_kind.setdefault(kind, {})[subscription] = None
        try:
            for uri in filter.resource_subscriptions or ():
                self.add_uri(subscription, uri)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def publish(self, kind: EventKind, uri: str | None = None) -> None:
        """Delivers an event to every matching subscriber. Never waits; from another thread it takes effect soon after.

        Its cost is that of the subscribers that match, not of all. Raises `LocalProtocolError` for an unknown
        kind, or a uri where none belongs (``resource_updated`` needs one, the others have none).
        """
        if kind not in _KINDS or (uri is not None) != (kind == "resource_updated"):
            raise LocalProtocolError(f"no such event: {kind!r} with uri {uri!r}")
        self._in_loop(kind, uri)

    def publish_key(self, topic: str, key: str) -> None:
        """As `publish`, for a key of a topic that an extension has."""
        self._in_loop(topic, key)

    def subscribed_keys(self, topic: str) -> list[str]:
        """Returns the keys of a topic that have subscribers here."""
        return [key for each, key in self._by_key if each == topic]

    def attach(self, bus: Bus) -> Callable[[], None]:
        """Joins this bus to the others that ``bus`` leads to, until the returned function is called."""
        self._loop = (threading.get_ident(), trio.lowlevel.current_trio_token())
        unsubscribe = bus.subscribe(self._arrived, self._missed)
        self._attached.append(bus)

        def detach() -> None:
            self._attached.remove(bus)
            unsubscribe()

        return detach

    def forward(self, to: Callable[[str, str | None], None]) -> Callable[[], None]:
        """Calls ``to`` with each event that is published here, until the returned function is called.

        It is called in the publisher's thread, and must neither wait nor raise: another bus is given the event by
        `republish`.
        """
        self._forwarded += (to,)

        def stop() -> None:
            self._forwarded = tuple(each for each in self._forwarded if each is not to)

        return stop

    def republish(self, kind: str, key: str | None) -> None:
        """Publishes an event that `forward` has brought."""
        self._in_loop(kind, key)

    def _in_loop(self, kind: str, key: str | None) -> None:
        if self._loop is not None and self._loop[0] != threading.get_ident():
            try:
                self._loop[1].run_sync_soon(self._publish, kind, key, idempotent=True)
            except trio.RunFinishedError:  # and with it every subscription
                self._published += 1
        else:
            self._publish(kind, key)

    def _publish(self, kind: str, key: str | None) -> None:
        self._published += 1
        self._deliver(kind, key)
        # All that are attached lead to the same nodes, among them this one, if the server is served several times.
        for bus in self._attached[:1]:
            bus.publish(kind, key or "")
        for to in self._forwarded:
            to(kind, key)

    def _arrived(self, topic: str, key: str) -> None:
        """Delivers an event of another node here only. An unknown one is that of a newer program."""
        if topic == "resource_updated" and key:
            self._deliver(topic, key)
        elif topic != "resource_updated":
            self._deliver(topic, None if topic in _KINDS else key)

    def _missed(self) -> None:
        """Events of other nodes may be lost: everything that is subscribed to counts as changed."""
        for kind in self.changes:
            self.changes[kind] += 1
        for subscription in tuple(self._subscriptions):
            subscription.put_all()
            for topic, key in sorted(subscription.known_keys):
                subscription.put_key(topic, key)

    def close(self) -> None:
        """Ends every subscription; see `Subscription.end`. Safe to repeat."""
        for subscription in tuple(self._subscriptions):
            subscription.end()

    def statistics(self) -> EventBusStatistics:
        return EventBusStatistics(
            subscriptions=len(self._subscriptions),
            uris=len(self._by_uri),
            published=self._published,
            pending=sum(each.statistics().pending for each in self._subscriptions),
        )

    def _deliver(self, kind: str, key: str | None) -> None:
        if kind not in _KINDS:
            for subscription in tuple(self._by_key.get((kind, key or ""), ())):
                subscription.put_key(kind, key or "")
            return
        event = Event(cast(EventKind, kind), key)
        self.changes[event.kind] += 1
        if key is None:
            for subscription in tuple(self._by_kind.get(event.kind, ())):
                subscription.put(event, None)
            return
        served: set[Subscription] = set()
        for above in uris_above(key, self._by_uri):
            for subscription in tuple(self._by_uri.get(above, ())):
                if subscription not in served:
                    served.add(subscription)
                    subscription.put(event, above)

    def report_to(self, other: EventBus) -> None:
        """Reports first subscribers to the callbacks of ``other`` from now on, and all resources that have some.

        The callbacks of this bus so far learn that there are no subscribers any more.
        """
        for uri in self._by_uri:
            if other.on_first_subscriber is not None:
                try:
                    other.on_first_subscriber(uri)
                except Exception:
                    # The clients know already that they are subscribed.
                    log.exception("on_subscribe failed", uri=masked_uri(uri))
            self._notify_unsubscribed(uri)
        self.on_first_subscriber = other.on_first_subscriber
        self.on_last_unsubscribed = other.on_last_unsubscribed

    def add_uri(self, subscription: Subscription, uri: str) -> None:
        """See `Subscription.add_uri`."""
        if uri in subscription.known_uris:
            return
        self._charge(subscription, uri)
        try:
            if uri not in self._by_uri and self.on_first_subscriber is not None:
                self.on_first_subscriber(uri)
        except BaseException:
            _release(subscription.account, uri)
            raise
        self._by_uri.setdefault(uri, {})[subscription] = None
        subscription.known_uris[uri] = None

    def add_key(self, subscription: Subscription, topic: str, key: str) -> None:
        """See `Subscription.add_key`."""
        if (topic, key) not in subscription.known_keys:
            self._charge(subscription, key)
            self._by_key.setdefault((topic, key), {})[subscription] = None
            subscription.known_keys[topic, key] = None

    def discard_key(self, subscription: Subscription, topic: str, key: str) -> None:
        """See `Subscription.discard_key`."""
        if (topic, key) in subscription.known_keys:
            subscription.withdraw_key(topic, key)
            del subscription.known_keys[topic, key]
            _release(subscription.account, key)
            subscribers = self._by_key[topic, key]
            del subscribers[subscription]
            if not subscribers:
                del self._by_key[topic, key]

    def _charge(self, subscription: Subscription, key: str) -> None:
        """Charges a subscription for one uri or key more; raises what `Subscription.add_uri` raises."""
        if not subscription.is_open:
            raise LocalProtocolError("this subscription has ended")
        if len(key) > LONGEST_URI:
            raise invalid_params(f"a uri has {len(key)} characters, the limit is {LONGEST_URI}")
        if len(subscription.known_uris) + len(subscription.known_keys) >= self._max_uris:
            raise invalid_params(f"too many resource subscriptions: at most {self._max_uris}")
        account = subscription.account
        if account is not None and (over := account.charge(len(key))) is not None:
            raise Overloaded.for_bytes("sessions", over, account.budget.limit_of(over))

    def discard_uri(self, subscription: Subscription, uri: str) -> None:
        """See `Subscription.discard_uri`."""
        if uri not in subscription.known_uris:
            return
        orphan = subscription.withdraw_uri(uri)
        self._unindex(subscription, uri)
        if orphan is None or orphan.uri is None:
            return
        for above in uris_above(orphan.uri, subscription.known_uris):
            subscription.put(orphan, above)
            return
        # The event may mean several updates below its uri, not known which: every subscribed uri there gets it.
        for below in subscription.known_uris:
            if covers(orphan.uri, below):
                subscription.put(Event(orphan.kind, below), below)

    def _unindex(self, subscription: Subscription, uri: str) -> None:
        del subscription.known_uris[uri]
        _release(subscription.account, uri)
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
            # The subscriber is gone, and the rest of the subscriptions must still be taken down.
            log.exception("on_unsubscribe failed", uri=masked_uri(uri))

    def forget(self, subscription: Subscription) -> None:
        """Takes out a subscription that has ended. Idempotent."""
        if subscription not in self._subscriptions:
            return
        del self._subscriptions[subscription]
        for kind in subscription.kinds:
            del self._by_kind[kind][subscription]
        for uri in subscription.uris:
            self._unindex(subscription, uri)
        for topic, key in tuple(subscription.known_keys):
            self.discard_key(subscription, topic, key)

    def __repr__(self) -> str:
        return f"<EventBus: {len(self._subscriptions)} subscriptions, {len(self._by_uri)} uris>"


def _release(account: Account | None, uri: str) -> None:
    if account is not None:
        account.keep(max(0, account.held - len(uri)))


def _wanted_kinds(filter: SubscriptionFilter) -> Iterable[EventKind]:
    if filter.tools_list_changed:
        yield "tools"
    if filter.prompts_list_changed:
        yield "prompts"
    if filter.resources_list_changed:
        yield "resources"
