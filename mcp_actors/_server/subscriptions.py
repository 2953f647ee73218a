"""Sends what is published on the bus to clients: in a listen stream (modern) or unsolicited (legacy)."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.event_bus import EventBus, Subscription
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._eras.era import ACKNOWLEDGED, METHOD_OF_KIND, Event, EventKind, structured
from mcp_actors._eras.modern import SUBSCRIPTION_ID
from mcp_actors._server.context import Context, principal_of
from mcp_actors._server.invoke import Handler
from mcp_actors._server.visibility import ListWatch, caller_of
from mcp_actors.errors import ConnectionLost, MissingCapability, RpcError, SessionExpired, invalid_params
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import masked_uri
from mcp_actors.supervision.task_kinds import CHANGE_DELIVERY
from mcp_actors.types import ServerCapabilities

__all__ = ["ListenMember", "SessionSubscriber", "listen_handler"]

# URIs of one subscription that sources are asked about, and seconds for all of them.
MOST_URIS, MOST_WAIT = 256, 5.0


def _params(event: Event) -> dict[str, Any]:
    return {} if event.uri is None else {"uri": event.uri}


def honoured(asked: t.SubscriptionFilter, declared: ServerCapabilities) -> t.SubscriptionFilter:
    """The part of a filter that this server can honour; the rest is left out of the acknowledgement."""
    resources = declared.resources
    return t.SubscriptionFilter(
        tools_list_changed=(asked.tools_list_changed and declared.tools is not None) or None,
        prompts_list_changed=(asked.prompts_list_changed and declared.prompts is not None) or None,
        resources_list_changed=(asked.resources_list_changed and resources is not None) or None,
        resource_subscriptions=asked.resource_subscriptions if resources is not None else None,
    )


class ListenMember(msgspec.Struct, frozen=True, eq=False):
    """A member of the filter of subscriptions that belongs to an extension: a list of keys."""

    member: str
    name: str
    """Its name on the bus, for all nodes."""
    notification: str
    extension: str
    params_of: Callable[[Sequence[str], Context], Awaitable[Mapping[str, Mapping[str, Any]]]]
    """Returns the params of the notification for those keys that the caller may hear of."""


def listen_handler(bus: EventBus, topics: Mapping[str, ListenMember]) -> Handler:
    """``subscriptions/listen``: the acknowledgement first, then every event, tagged, until either side ends it."""

    async def listen(ctx: Context) -> t.SubscriptionsListenResult:
        if "notifications" not in ctx.params:
            raise invalid_params("'notifications' must be an object")
        asked = structured(ctx.era, ctx.params["notifications"], t.SubscriptionFilter)
        keys = _asked_keys(asked, topics, ctx) if topics else {}
        granted = honoured(asked, ctx.server.capabilities)
        # The id goes back with its own JSON type: an integer stays one.
        tag = {SUBSCRIPTION_ID: ctx.request_id}
        # Subscribed before the acknowledgement and delivered after it: no event is lost, none comes too early. Events
        # of what is not declared yet are subscribed to as well: they begin when it is declared.
        memory = ctx.call.owner.limiters.memory
        account = None if memory is None else memory.new_account(ctx.call.invocation)
        features = ctx.server._features
        if features.resources.sources and granted.resource_subscriptions:
            granted.resource_subscriptions = await _granted_uris(
                ctx, features, granted.resource_subscriptions
            )
            asked.resource_subscriptions = granted.resource_subscriptions
        watch = ListWatch(caller_of(ctx))
        if features.scoped:
            watch.begin(features.digest_of)
        session = ctx.session
        with bus.subscribe(asked, account=account) as subscription:
            for topic, wanted in keys.items():
                granted.extra[topic.member] = await _subscribe(subscription, topic, wanted, ctx)
            ctx.call.on_drain(subscription.close)
            ctx.server.on_listen(ctx)
            try:
                if session is not None:
                    session.subscriptions += (subscription,)
                await ctx.notify(ACKNOWLEDGED, {"notifications": ctx.era.unstructure(granted), "_meta": tag})
                principal = principal_of(ctx.call)
                left = math.inf if principal is None else principal.seconds_left(time.time())
                with suppress(trio.EndOfChannel, trio.ClosedResourceError), trio.move_on_after(left):
                    while True:
                        for event in await subscription.receive_many():
                            if features.concerns(watch, watch.caller, event):
                                await ctx.notify(METHOD_OF_KIND[event.kind], {**_params(event), "_meta": tag})
                        if keys:
                            await _notify_of(subscription, keys, ctx, tag)
            finally:
                if session is not None:
                    session.subscriptions = tuple(
                        each for each in session.subscriptions if each is not subscription
                    )
                ctx.server.on_unlisten(ctx)
        return t.SubscriptionsListenResult(meta=tag)

    return lambda ctx: Continuation(listen, ctx)


async def _granted_uris(ctx: Context, features: Any, uris: Sequence[str]) -> list[str]:
    """Returns those URIs whose updates a caller may hear of, as far as only sources know that."""
    found: list[str] = []
    with trio.move_on_after(MOST_WAIT):
        for uri in uris[:MOST_URIS]:
            if not features.resources.covers(uri):
                try:
                    await features.resources.check_provided(ctx, uri)
                except RpcError:
                    continue
            found.append(uri)
    return found


def _asked_keys(
    asked: t.SubscriptionFilter, topics: Mapping[str, ListenMember], ctx: Context
) -> dict[ListenMember, list[str]]:
    """Returns the keys that a filter asks for of each topic; raises `RpcError` for what cannot be asked for."""
    keys: dict[ListenMember, list[str]] = {}
    for member in topics.keys() & asked.extra.keys():
        topic, wanted = topics[member], asked.extra[member]
        if topic.extension not in ctx.extensions:
            raise MissingCapability({"extensions": {topic.extension: {}}})
        if not isinstance(wanted, list) or not all(isinstance(key, str) for key in wanted):
            raise invalid_params(f"'{member}' must be an array of strings")
        keys[topic] = list(dict.fromkeys(wanted))
    return keys


async def _subscribe(
    subscription: Subscription, topic: ListenMember, wanted: Sequence[str], ctx: Context
) -> list[str]:
    """Subscribes to those keys that the caller may hear of, and returns them."""
    for key in wanted:
        subscription.add_key(topic.name, key)
    allowed = await topic.params_of(wanted, ctx)
    for key in wanted:
        if key not in allowed:
            subscription.discard_key(topic.name, key)
    return [key for key in wanted if key in allowed]


async def _notify_of(
    subscription: Subscription, topics: Iterable[ListenMember], ctx: Context, tag: Mapping[str, Any]
) -> None:
    changed = subscription.take_keys()
    for topic in topics:
        keys = [key for name, key in changed if name == topic.name]
        if keys:
            params = await topic.params_of(keys, ctx)
            for key in keys:
                if key in params:
                    await ctx.notify(
                        topic.notification, {**params[key], "_meta": {**params[key].get("_meta", {}), **tag}}
                    )


class SessionSubscriber:
    """The subscription of one legacy session: changes of the lists ``kinds``, and the resources it subscribed to.

    It costs no task while nothing happens: the first event starts one, which ends when the mailbox is empty.
    """

    def __init__(
        self, session: Dispatcher, bus: EventBus, kinds: Set[EventKind], concerns: Callable[[Event], bool]
    ) -> None:
        self._session = session
        self._concerns = concerns
        self._delivering = False
        declared = t.SubscriptionFilter(
            tools_list_changed="tools" in kinds,
            prompts_list_changed="prompts" in kinds,
            resources_list_changed="resources" in kinds,
        )
        memory = session.limiters.memory
        account = None if memory is None else memory.account
        self._subscription = bus.subscribe(declared, on_pending=self._wake, account=account)

    def subscribe(self, uri: str) -> None:
        """``resources/subscribe``; idempotent."""
        self._subscription.add_uri(uri)

    def list_changed(self, kind: EventKind) -> None:
        """Tells the session of a change that concerns it alone, if it hears of these."""
        if kind in self._subscription.kinds:
            self._subscription.put(Event(kind), None)

    def unsubscribe(self, uri: str) -> None:
        """``resources/unsubscribe``; what was not subscribed stays so."""
        self._subscription.discard_uri(uri)

    def close(self) -> None:
        """The session ended."""
        self._subscription.close()

    def hand_over(self) -> tuple[list[str], list[tuple[EventKind, str | None, str | None]]]:
        """Ends it here, and returns the URIs that are subscribed to, and what was not delivered yet."""
        uris = list(self._subscription.uris)
        return uris, self._subscription.hand_over()

    def go_on(self, uris: Iterable[str], pending: Iterable[tuple[EventKind, str | None, str | None]]) -> None:
        """Goes on with what another node has handed over."""
        for uri in uris:
            try:
                self.subscribe(uri)
            except Exception as error:
                # The client knows that it is subscribed, and cannot be notified of the contrary.
                log.warning("a subscription is not gone on with", uri=masked_uri(uri), error=str(error))
        for kind, changed, above in pending:
            if above is None or above in self._subscription.known_uris:
                self._subscription.put(Event(kind, changed), above)

    def catch_up(self, published: Iterable[tuple[str, str]] | None) -> None:
        """Delivers what was published while no node had the session; ``None`` if that is not known."""
        if published is None:
            self._subscription.put_all()
        else:
            for topic, key in published:
                self._subscription.put_published(topic, key)

    def _wake(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._session.start_task(CHANGE_DELIVERY, self._deliver)

    async def _deliver(self) -> None:
        subscription = self._subscription
        try:
            while (first := subscription.first()) is not None:
                # It stays pending while a full stream lets it wait, so that it is handed over with the others.
                key, event = first
                try:
                    if self._concerns(event):
                        await self._session.notify(METHOD_OF_KIND[event.kind], _params(event) or None)
                finally:
                    subscription.delivered(key, event)
        except (ConnectionLost, SessionExpired):
            self.close()
        finally:
            # What a failure leaves is dropped: only the first event in an empty mailbox starts the delivery anew.
            subscription.take()
            self._delivering = False
