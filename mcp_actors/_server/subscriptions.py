"""Sends what is published on the bus to clients: in a listen stream (modern) or unsolicited (legacy)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import Any

import trio

from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._eras.changes import ACKNOWLEDGED, METHOD_OF_KIND, Event, EventKind
from mcp_actors._eras.era import structured
from mcp_actors._eras.modern.meta_keys import SUBSCRIPTION_ID
from mcp_actors._server.access import principal_of
from mcp_actors._server.context import Context
from mcp_actors._server.handler import Continuation, Handler
from mcp_actors.errors import ConnectionLost, SessionExpired, invalid_params
from mcp_actors.supervision import CHANGE_DELIVERY
from mcp_actors.types import ServerCapabilities, SubscriptionFilter, SubscriptionsListenResult

__all__ = ["SessionSubscriber", "listen_handler"]


def _params(event: Event) -> dict[str, Any]:
    return {} if event.uri is None else {"uri": event.uri}


def honoured(asked: SubscriptionFilter, declared: ServerCapabilities) -> SubscriptionFilter:
    """The part of a filter that this server can honour; the rest is left out of the acknowledgement."""
    resources = declared.resources
    return SubscriptionFilter(
        tools_list_changed=(asked.tools_list_changed and declared.tools is not None) or None,
        prompts_list_changed=(asked.prompts_list_changed and declared.prompts is not None) or None,
        resources_list_changed=(asked.resources_list_changed and resources is not None) or None,
        resource_subscriptions=asked.resource_subscriptions if resources is not None else None,
    )


def listen_handler(bus: EventBus) -> Handler:
    """``subscriptions/listen``: the acknowledgement first, then every event, tagged, until either side ends it."""

    async def listen(ctx: Context) -> SubscriptionsListenResult:
        if "notifications" not in ctx.params:
            raise invalid_params("'notifications' must be an object")
        asked = structured(ctx.era, ctx.params["notifications"], SubscriptionFilter)
        granted = honoured(asked, ctx.server.capabilities)
        # The id goes back with its own JSON type: an integer stays one.
        tag = {SUBSCRIPTION_ID: ctx.request_id}
        # Subscribed before the acknowledgement and delivered after it: no event is lost, none comes too early. Events
        # of what is not declared yet are subscribed to as well: there are none before it is declared.
        memory = ctx.call.owner.limiters.memory
        account = None if memory is None else memory.new_account(ctx.call.invocation)
        with bus.subscribe(asked, account=account) as subscription:
            ctx.call.on_drain(subscription.close)
            ctx.server.on_listen(ctx)
            try:
                await ctx.notify(ACKNOWLEDGED, {"notifications": ctx.era.unstructure(granted), "_meta": tag})
                principal = principal_of(ctx.call)
                left = math.inf if principal is None else principal.seconds_left(time.time())
                with suppress(trio.EndOfChannel, trio.ClosedResourceError), trio.move_on_after(left):
                    while True:
                        for event in await subscription.receive_many():
                            await ctx.notify(METHOD_OF_KIND[event.kind], {**_params(event), "_meta": tag})
            finally:
                ctx.server.on_unlisten(ctx)
        return SubscriptionsListenResult(meta=tag)

    return lambda ctx: Continuation(listen, ctx)


class SessionSubscriber:
    """The subscription of one legacy session: changes of the lists ``kinds``, and the resources it subscribed to.

    It costs no task while nothing happens: the first event starts one, which ends when the mailbox is empty.
    """

    def __init__(self, session: Dispatcher, bus: EventBus, kinds: Set[EventKind]) -> None:
        self._session = session
        self._delivering = False
        declared = SubscriptionFilter(
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

    def unsubscribe(self, uri: str) -> None:
        """``resources/unsubscribe``; what was not subscribed stays so."""
        self._subscription.discard_uri(uri)

    def close(self) -> None:
        """The session ended."""
        self._subscription.close()

    def _wake(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._session.start_task(CHANGE_DELIVERY, self._deliver)

    async def _deliver(self) -> None:
        try:
            for event in self._events():
                await self._session.notify(METHOD_OF_KIND[event.kind], _params(event) or None)
        except (ConnectionLost, SessionExpired):
            self.close()
        finally:
            self._delivering = False

    def _events(self) -> Iterator[Event]:
        while events := self._subscription.take():
            yield from events
