"""The notifications of a server: the functions of the program that take them, and the subscriptions they belong to.

`Notifications` sorts what arrives, in the read path, and calls the program's functions. `Subscriptions` holds the
open subscriptions of a client: a request that is held open in the stateless revisions, and in a session what the
server sends without a request (MCP 2026-07-28, Subscriptions; MCP 2025-11-25, Resources, Subscriptions). `Listener`
is the program's end of one of them, the same for both eras.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors._actors.dispatcher import NEW_ACCESS, NOTIFICATIONS_MISSED
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Connectivity, Negotiated
from mcp_actors._client.options import (
    ClientNotification,
    ClientNotificationMiddleware,
    ClientOptions,
    Guard,
    notified_through,
)
from mcp_actors._client.requests import Requests
from mcp_actors._eras.era import (
    ACKNOWLEDGED,
    KIND_OF_METHOD,
    METHOD_OF_KIND,
    PARTIAL_RESULT,
    Event,
    EventKind,
    read_result,
)
from mcp_actors._eras.modern import SUBSCRIPTION_ID
from mcp_actors._wire.codec import JsonRpcError
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    CallTimeout,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    Overloaded,
    RemoteProtocolError,
    RpcError,
    ServerStopping,
    SessionExpired,
    SharedStateUnavailable,
    SubscriptionLost,
)
from mcp_actors.supervision.arguments import require_trio
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CLIENT_SUBSCRIPTION
from mcp_actors.types import SubscriptionFilter

__all__ = ["LISTEN_AGAIN", "Listener", "Notifications", "Subscriptions"]

# Notifications that wait for a slow handler; beyond it the oldest go. A log is worth less than the connection.
MAX_WAITING = 4096


class Notifications:
    """`put` is called in the read path and never waits; `run` awaits what async handlers return.

    Args:
        options: The client's options, with the handlers.
        requests: Learn of changes, because they may have cached what has changed.
        subscriptions: Learn of changes and of what the server says about a subscription.
    """

    def __init__(self, options: ClientOptions, requests: Requests, subscriptions: Subscriptions) -> None:
        self._on_log = options.on_log
        self._on_change = options.on_change
        self._on_notification = options.on_notification
        self._on_lost = options.on_lost
        self._of_extensions = {
            name: function for each in options.in_use for name, function in each.notifications.items()
        }
        self._middleware = tuple(
            each.notification for each in options.middleware if isinstance(each, ClientNotificationMiddleware)
        )
        self._requests = requests
        self._subscriptions = subscriptions
        self._waiting: deque[tuple[str, Awaitable[None]]] = deque()
        self._parked = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Notifications {len(self._waiting)}/{MAX_WAITING}>"

    @property
    def follows_changes(self) -> bool:
        """Whether there is a handler of changes."""
        return self._on_change is not None

    def put(self, method: str, params: dict[str, Any]) -> None:
        """Takes one notification of the server."""
        if method == "notifications/message":
            self._logged(params)
            return
        if method == PARTIAL_RESULT:
            token = params.get("partialResultToken")
            stream = self._requests.streams.get(token) if isinstance(token, str) else None
            if stream is not None:
                stream.put(params)
            return
        meta = params.get("_meta")
        subscription = meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
        if subscription is not None and type(subscription) is not int and not isinstance(subscription, str):
            log.debug("notification ignored: its subscription id is malformed", method=method)
            return
        if method == NEW_ACCESS:
            for list_kind in self._requests.new_access():
                self._changed_there(Event(list_kind, None), None)
            return
        if method == NOTIFICATIONS_MISSED:
            reason = params.get("reason")
            self._missed(params.get("first") is True, reason if isinstance(reason, McpError) else None)
            return
        kind = KIND_OF_METHOD.get(method)
        if kind is not None:
            uri = params.get("uri")
            self._changed_there(Event(kind, uri if isinstance(uri, str) else None), subscription)
        elif method == ACKNOWLEDGED:
            self._subscriptions.acknowledged(subscription, params.get("notifications"))
        elif method == "notifications/cancelled":
            # The session has dealt with calls of the server, so this is about a subscription.
            reason = params.get("reason")
            self._subscriptions.cancelled(
                params.get("requestId"), reason if isinstance(reason, str) else None
            )
        elif method in self._of_extensions:
            self._call(method, self._of_extensions[method], (params,), method, params)
        elif self._on_notification is not None:
            self._call("on_notification", self._on_notification, (method, params), method, params)
        else:
            log.debug("notification ignored", method=method)

    def _changed_there(self, event: Event, subscription: Any) -> None:
        """Takes a change at the server, which came on a subscription or on none."""
        self._requests.changed(event)
        self._subscriptions.deliver(event, subscription)
        if subscription is None:
            self.changed(event.kind, event.uri)

    def _missed(self, is_first: bool, over: McpError | None) -> None:
        """Takes note that the server may have announced changes that did not arrive: everything counts as changed.

        Before the first stream the program has hardly seen anything: only those look again who keep a state.
        """
        events = [] if is_first else self._subscriptions.announced()
        for event in events:
            self._requests.changed(event)
        self._subscriptions.missed(events, over)
        for event in events:
            self.changed(event.kind, event.uri)

    def changed(self, kind: EventKind, uri: str | None) -> None:
        """Calls the change handler."""
        handler = self._on_change
        if handler is not None:
            params = {} if uri is None else {"uri": uri}
            self._call("on_change", handler, (kind, uri), METHOD_OF_KIND[kind], params)

    def lost(self, why: ConnectionLost | SessionExpired) -> None:
        """Calls the handler of lost connections."""
        if self._on_lost is not None:
            self._begin("on_lost", self._on_lost, (why,))

    def _logged(self, params: dict[str, Any]) -> None:
        handler, level = self._on_log, params.get("level")
        if handler is not None and isinstance(level, str):
            logger = params.get("logger")
            args = level, params.get("data"), logger if isinstance(logger, str) else None
            self._call("on_log", handler, args, "notifications/message", params)

    def _call(
        self,
        name: str,
        handler: Callable[..., Any],
        args: tuple[Any, ...],
        method: str,
        params: dict[str, Any],
    ) -> None:
        """Calls a handler of notifications, inside of the middleware if there is any."""
        if not self._middleware:
            self._begin(name, handler, args)
            return

        async def handle() -> None:
            with Guard(name, contains=True):
                outcome = handler(*args)
                if inspect.isawaitable(outcome):
                    await outcome

        note = ClientNotification(method, params, name)
        self._begin("middleware", notified_through, (self._middleware, note, handle))

    def _begin(self, name: str, handler: Callable[..., Any], args: tuple[Any, ...]) -> None:
        outcome: Any = None
        with Guard(name, contains=True):
            outcome = handler(*args)
        if inspect.isawaitable(outcome):
            if len(self._waiting) == MAX_WAITING:
                _discard(self._waiting.popleft()[1])
            self._waiting.append((name, outcome))
            self._parked.unpark()

    async def run(self) -> None:
        """Awaits what async handlers return, for ever. One that fails is logged, and the next one is awaited."""
        while True:
            while self._waiting:
                name, outcome = self._waiting.popleft()
                with Guard(name, contains=True):
                    await outcome
            await self._parked.park()

    def close(self) -> None:
        """Drops what was not awaited; nothing is called any more."""
        self._on_log = self._on_change = self._on_notification = self._on_lost = None
        self._of_extensions = {}
        while self._waiting:
            _discard(self._waiting.popleft()[1])


def _discard(outcome: Awaitable[None]) -> None:
    """A coroutine that is never awaited issues a warning unless it is closed."""
    if inspect.iscoroutine(outcome):
        outcome.close()


# -- subscriptions ---------------------------------------------------------------------------------------------------

# Seconds that the end of a listener waits for the server to take its subscriptions back.
UNSUBSCRIBE_TIMEOUT = 1.0
# Waits before a subscription is asked for again on a connection that goes on, seconds; the last one repeats. One that
# lasted longer than that begins anew.
LISTEN_AGAIN = (1.0, 2.0, 5.0, 15.0, 30.0)
# A listen request is answered when the subscription ends.
UNBOUNDED = CallOptions(idle=math.inf, cap=math.inf)
_LISTS: tuple[EventKind, ...] = ("tools", "prompts", "resources")
# Refusals of a server that may grant the same subscription later.
_PASSING = (Overloaded, ServerStopping, SharedStateUnavailable)


class Subscriptions:
    """All open listeners of one client, by the id of their listen request; in a session each has an id of its own.

    Args:
        connectivity: The client's session of the moment.
        requests: Make the requests.
    """

    def __init__(self, connectivity: Connectivity, requests: Requests) -> None:
        self._connectivity = connectivity
        self._requests = requests
        self._open: dict[int | str, Listener] = {}
        self._kept: set[str] = set()
        self._nursery: trio.Nursery | None = None
        # Whether the session of the moment, or the last one, has no stream. The next one over HTTP says so of its own.
        self._is_deaf = False
        # The session whose stream was given up, and why.
        self._given_up: tuple[Session, McpError] | None = None

    def __repr__(self) -> str:
        return f"<Subscriptions open={len(self._open)}>"

    def run_in(self, nursery: trio.Nursery) -> None:
        """Takes the nursery for the tasks of listeners."""
        self._nursery = nursery
        self._requests.flights.run_in(nursery)

    # -- what the server says --------------------------------------------------------------------------------------

    def deliver(self, event: Event, subscription: Any) -> None:
        """Hands a change to its listener, or to all when the server names none."""
        if subscription is None:
            for listener in self._open.values():
                listener.deliver(event.kind, event.uri)
        elif (addressed := self._open.get(subscription)) is not None:
            addressed.deliver(event.kind, event.uri)

    def announced(self) -> list[Event]:
        """Returns all changes that the server of a session may announce."""
        lists = [Event(kind, None) for kind in _LISTS if self._requests.has_method(f"{kind}/list")]
        return [*lists, *(Event("resource_updated", uri) for uri in sorted(self._wanted()))]

    def receives_changes(self, negotiated: Negotiated) -> bool:
        """Whether what a server announces can arrive: in a session over HTTP it needs a stream."""
        return not self._is_deaf or negotiated.era.client.listen_method is not None

    def missed(self, events: Sequence[Event], over: McpError | None) -> None:
        """Has each listener know that these changes may have been lost; one that keeps a state looks again anyhow.

        Args:
            events: The changes; none where the session had no stream yet.
            over: Why none of them will be heard any more, if that is so.
        """
        self._is_deaf = over is not None
        for listener in list(self._open.values()):
            listener.missed(events)
            if over is not None and events and listener.on_missed is None:
                listener.end(over)
        self._given_up = (self._connectivity.session, over) if over is not None and events else None

    def acknowledged(self, subscription: Any, honored: Any) -> None:
        """Takes note that a subscription is in force, as far as ``honored`` says.

        MCP 2026-07-28, Subscriptions, Acknowledgment. A server that says nothing of it has granted all.
        """
        listener = self._open.get(subscription)
        if listener is not None and not listener.acknowledged.is_set():
            listener._honored = listener.filter
            if isinstance(honored, dict):
                try:
                    era = self._connectivity.negotiated.era
                    listener._honored = read_result(era, honored, SubscriptionFilter)
                except RemoteProtocolError as error:
                    log.debug("an acknowledgment is malformed", error=str(error))
            listener.acknowledged.set()

    def cancelled(self, subscription: Any, reason: str | None) -> None:
        """Ends a subscription that the server cancels. Only the closing result is an end in order."""
        # 1 == True for a dict, but not for JSON.
        known = type(subscription) is int or isinstance(subscription, str)
        listener = self._open.get(subscription) if known else None
        if listener is not None:
            listener.end(SubscriptionLost(f"the server cancelled it: {reason or 'no reason given'}"))
            # So the request counts as answered, and the server is sent no cancellation of its own.
            self._connectivity.session.outbound.answered(
                JsonRpcError(subscription, 0, "cancelled by the server")
            )

    # -- a listener ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self, listener: Listener) -> AsyncIterator[Listener]:
        """Subscribes for the length of the block; raises as `Client.listen` does."""
        listen_method = self._connectivity.negotiated.era.client.listen_method
        async with (
            self._in_session(listener) if listen_method is None else self._by_request(listener, listen_method)
        ):
            yield listener

    @asynccontextmanager
    async def _in_session(self, listener: Listener) -> AsyncIterator[None]:
        session = self._connectivity.session
        if listener.on_missed is None and self._given_up is not None and self._given_up[0] is session:
            listener.end(self._given_up[1])
            listener.raise_if_lost()
        key = session.outbound.next_id()
        uris = listener.filter.resource_subscriptions or []
        self._open[key] = listener
        listener._honored = listener.filter
        self._start(listener, self._end_with_session, listener)
        try:
            for uri in uris:
                await self._requests.call("resources/subscribe", {"uri": uri})
            yield
        finally:
            self._forget(key, listener)
            # What a session subscribed to ends with it. In the next one this could overtake who subscribes again.
            if not session.ended.is_set():
                with trio.move_on_after(UNSUBSCRIBE_TIMEOUT, shield=True):
                    await self._unsubscribe(set(uris) - self._wanted())

    @asynccontextmanager
    async def _by_request(self, listener: Listener, method: str) -> AsyncIterator[None]:
        id = self._connectivity.session.outbound.next_id()
        self._open[id] = listener
        taken_back = trio.Event()
        self._start(listener, self._hold_open, id, listener, method, taken_back)
        seconds = self._requests.options.idle
        try:
            with trio.move_on_after(seconds):
                await listener.acknowledged.wait()
            listener.raise_if_lost()
            if not listener.acknowledged.is_set():
                raise CallTimeout(method, "idle", seconds)
            yield
        finally:
            self._forget(id, listener)
            # A program that subscribes again at once must not be overtaken by the cancellation of this one.
            with trio.move_on_after(UNSUBSCRIBE_TIMEOUT, shield=True):
                await taken_back.wait()

    def run(self, fn: Callable[[], Any]) -> None:
        """Runs ``fn`` beside the listeners, until the client is closed at the latest."""
        if self._nursery is not None:
            start(self._nursery, CLIENT_SUBSCRIPTION, fn)

    def run_owned(self, fn: Callable[[], Any]) -> None:
        """As `run`, for a task that the program waits for; raises `LocalProtocolError` where no client is there."""
        if self._nursery is None:
            raise LocalProtocolError("not connected: use 'async with Client(...) as client'")
        start(self._nursery, CLIENT_SUBSCRIPTION, fn)

    def _start(self, listener: Listener, fn: Callable[..., Any], *args: Any) -> None:
        if self._nursery is None:
            raise LocalProtocolError("not connected: use 'async with Client(...) as client'")
        start(self._nursery, CLIENT_SUBSCRIPTION, fn, *args, on_crash=listener.end)

    def _forget(self, id: int, listener: Listener) -> None:
        # Ids begin anew with each connection: another listener may have this one by now.
        if self._open.get(id) is listener:
            del self._open[id]
        listener.end()

    async def _end_with_session(self, listener: Listener) -> None:
        session = self._connectivity.session
        with trio.CancelScope() as scope:
            listener.on_end = lambda: scope.cancel(reason="the listener is closed")
            await session.ended.wait()
            listener.end(session.loss)

    async def _hold_open(self, id: int, listener: Listener, method: str, taken_back: trio.Event) -> None:
        params = {"notifications": self._connectivity.negotiated.era.unstructure(listener.filter)}
        lost: BaseException | None = None
        try:
            metadata = self._requests.metadata_of(method, params)
            with trio.CancelScope() as scope:
                listener.on_end = lambda: scope.cancel(reason="the listener is closed")
                session = self._connectivity.session
                session.outbound.standing += 1
                try:
                    await session.outbound.request(method, params, UNBOUNDED, id=id, metadata=metadata)
                finally:
                    session.outbound.standing -= 1
        except trio.Cancelled:
            raise
        except BaseException as error:
            lost = error
            if not isinstance(error, McpError):
                raise
        finally:
            listener.end(lost)
            taken_back.set()

    # -- resources of a session ------------------------------------------------------------------------------------

    async def keep(self, uri: str) -> None:
        """Subscribes a session to a resource until `give_back`, whatever listeners come and go."""
        await self._requests.call("resources/subscribe", {"uri": uri})
        self._kept.add(uri)

    async def give_back(self, uri: str) -> None:
        """Takes `keep` back; a listener of the same resource goes on."""
        self._kept.discard(uri)
        if uri not in self._wanted():
            await self._requests.call("resources/unsubscribe", {"uri": uri})

    def _wanted(self) -> set[str]:
        return self._kept.union(*(listener.uris for listener in self._open.values()))

    async def _unsubscribe(self, uris: set[str]) -> None:
        try:
            for uri in sorted(uris):
                await self._requests.call("resources/unsubscribe", {"uri": uri})
        except McpError as error:
            log.debug("could not unsubscribe", error=str(error))

    # -- through all connections -------------------------------------------------------------------------------------

    async def hold(
        self,
        wanted: Callable[[Negotiated], SubscriptionFilter | None],
        began: Callable[[Listener | None], None],
        changed: Callable[[Event], None],
    ) -> None:
        """Subscribes in one connection after the other, and returns once ``wanted`` says that nothing is wanted.

        A subscription that ended is asked for again: at once on a new connection, after a while on one that goes on,
        as over HTTP, and not at all on one whose server refused it.

        Args:
            wanted: Returns what to subscribe to in a connection.
            began: Is called when a subscription is in force, and with ``None`` when it cannot be had. What happened
                on the server before that is unknown. It is called again where the same is true in the middle of a
                session, because its stream was lost; `receives_changes` says whether there is another one.
            changed: Is called with every change. Neither function may wait.

        Raises:
            McpError: There is no connection, and none will be made; or access was refused.
        """
        times, lost = 0, None
        while True:
            session = await self._connectivity.live_session(math.inf, lost)
            filter = wanted(self._connectivity.negotiated)
            if filter is None:
                return
            since = trio.current_time()
            again = await self._hold_once(Listener(filter), began, changed)
            if trio.current_time() - since > LISTEN_AGAIN[-1]:
                times = 0
            wait = LISTEN_AGAIN[min(times, len(LISTEN_AGAIN) - 1)] if again else math.inf
            with trio.move_on_after(wait):
                await session.ended.wait()
            times += 1
            lost = session if session.ended.is_set() else None

    async def _hold_once(
        self,
        listener: Listener,
        began: Callable[[Listener | None], None],
        changed: Callable[[Event], None],
    ) -> bool:
        """Returns when the subscription has ended: whether the server may grant another one."""
        has_begun = False

        def missed() -> None:
            if has_begun:
                began(listener)

        listener.on_missed = missed
        try:
            async with self.opened(listener):
                has_begun = True
                began(listener)
                async for event in listener:
                    changed(event)
            return True
        except McpError as error:
            if isinstance(error, AuthorizationError) and not isinstance(error, AuthorizationUnavailable):
                raise
            if not has_begun:
                began(None)
            log.debug("a subscription has ended", error=str(error))
            cause = error.__cause__ if isinstance(error, SubscriptionLost) else error
            return not isinstance(cause, RpcError | LocalProtocolError) or isinstance(cause, _PASSING)

    async def follow(self, changed: Callable[[EventKind, str | None], None]) -> None:
        """Calls ``changed`` for every change of the lists of a server that only speaks of them to who subscribed.

        After a subscription that ended everything counts as changed. Returns when nothing more will come.
        """
        is_first = True

        def wanted(negotiated: Negotiated) -> SubscriptionFilter | None:
            if negotiated.era.client.listen_method is None:
                return None
            return _filter_of([kind for kind in _LISTS if kind in negotiated.declared])

        def began(listener: Listener | None) -> None:
            nonlocal is_first
            if listener is not None and not is_first:
                for kind in _LISTS:
                    changed(kind, None)
            is_first = False

        try:
            await self.hold(wanted, began, lambda event: changed(event.kind, event.uri))
        except McpError as error:
            log.debug("changes are no longer followed", error=str(error))


def _filter_of(kinds: Collection[EventKind]) -> SubscriptionFilter:
    return SubscriptionFilter(
        tools_list_changed="tools" in kinds or None,
        prompts_list_changed="prompts" in kinds or None,
        resources_list_changed="resources" in kinds or None,
    )


class Listener:
    """The changes that were subscribed to, as an async iterator of `Event`; made by `Client.listen`.

    Changes that arrive between reads are coalesced, so a slow reader sees the newest state and nothing grows. The
    iteration ends when the subscription ended in order; it raises `SubscriptionLost` when it broke off.
    """

    def __init__(self, filter: SubscriptionFilter) -> None:
        require_trio("client.listen(...)", "Client")
        self._filter = filter
        self._honored: SubscriptionFilter | None = None
        self.acknowledged = trio.Event()
        """Set when the server says that the subscription is in force, or when it is lost."""
        self.on_end: Callable[[], None] = lambda: None
        self.on_missed: Callable[[], None] | None = None
        """Is called, where there is such a function, in place of all the changes that may have been missed."""
        self._bus = EventBus()
        self._subscription = self._bus.subscribe(filter)
        self._ready: deque[Event] = deque()
        self._lost: BaseException | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<Listener {'ended' if self._ended else 'open'} ready={len(self._ready)}>"

    @property
    def filter(self) -> SubscriptionFilter:
        """The filter that was asked for."""
        return self._filter

    @property
    def honored(self) -> SubscriptionFilter | None:
        """The part of it that the server has granted; in a session, which does not tell, all of it."""
        return self._honored

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

    def missed(self, events: Sequence[Event]) -> None:
        """Takes note that any of these changes may have been announced, and did not arrive."""
        if self.on_missed is not None:
            self.on_missed()
        else:
            for event in events:
                self.deliver(event.kind, event.uri)

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
