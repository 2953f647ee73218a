"""Subscriptions to resources of upstreams: one at the upstream for all who subscribe at the gateway.

The gateway's bus knows which clients subscribe to what; here is the other end of it. A subscription is made before its
first subscriber learns that it is in force, so that what the upstream refuses is refused to the client; it is taken
back after the last one. When a connection was lost, the subscriptions are made again over the next one, and each
resource counts as changed: what happened in between is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors._actors.event_bus import uris_above
from mcp_actors._client.notifications import LISTEN_AGAIN
from mcp_actors._server.peer_session import PeerSession
from mcp_actors.errors import (
    LocalProtocolError,
    McpError,
    MethodNotFound,
    Overloaded,
    ResourceNotFound,
    RpcError,
    SubscriptionLost,
    UpstreamUnavailable,
)
from mcp_actors.gateway.connections import UpstreamConnection, is_gateway
from mcp_actors.gateway.held_calls import RETRY_AFTER
from mcp_actors.gateway.lists import ChangeDelivery
from mcp_actors.gateway.routes import Route
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import without_paths
from mcp_actors.supervision.task_kinds import UPSTREAM_SUBSCRIPTION

__all__ = ["MOST_FOLLOWED", "UpstreamSubscriptions"]

# Resources of one connection that are subscribed to: each is a request that is held open with a stateless server.
MOST_FOLLOWED = 1000
# Seconds that an upstream has to take a subscription back.
UNSUBSCRIBE_TIMEOUT = 1.0


@attrs.define(eq=False)
class _Followed:
    """One resource that is subscribed to over one connection."""

    actor: UpstreamActor
    connection: UpstreamConnection
    uri: str
    """The URI that the server has for it."""
    outsides: dict[str, None]
    """The URIs by which clients of the gateway subscribe to it."""
    caller: str
    """The caller that subscribed first; empty after a reconnection."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    begun: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: McpError | None = None
    is_ending: bool = False

    def in_gateway(self, uri: str) -> list[str]:
        """Returns the URIs that the resource, or one below it, has for subscribers."""
        below = uri[len(self.uri) :] if uri.startswith(self.uri) else ""
        return [each + below for each in self.outsides]


class UpstreamSubscriptions:
    """The subscriptions of one `serve`.

    Args:
        nursery: Owns the tasks.
        changes: Takes the resources that have changed.
    """

    def __init__(self, nursery: trio.Nursery, changes: ChangeDelivery) -> None:
        self._nursery = nursery
        self._changes = changes
        self._followed: dict[tuple[UpstreamConnection, str], _Followed] = {}
        # The resources that have a subscriber on the bus.
        self._wanted: set[str] = set()
        # How many are subscribing to each at the moment, and are not on the bus yet.
        self._pending: dict[str, int] = {}
        # The resources to subscribe to again over the next connection, with their own URIs, by upstream and whose
        # connection it is.
        self._lost: dict[tuple[str, Hashable], dict[str, str]] = {}

    def __repr__(self) -> str:
        return f"<UpstreamSubscriptions {len(self._followed)} wanted={len(self._wanted)}>"

    # -- what the bus says ---------------------------------------------------------------------------------------------

    def first_subscribed(self, uri: str) -> None:
        """A resource has its first subscriber."""
        self._wanted.add(uri)

    def last_unsubscribed(self, uri: str) -> None:
        """A resource has lost its last subscriber."""
        self._wanted.discard(uri)
        self._release(uri)

    # -- what connections say ------------------------------------------------------------------------------------------

    def connected(self, actor: UpstreamActor, connection: UpstreamConnection) -> None:
        """Makes the subscriptions again that were lost with the connection before."""
        for uri, own in sorted(self._lost.pop((actor.settings.name, connection.key), {}).items()):
            if uri in self._wanted:
                followed = self._followed.get((connection, own))
                if followed is None:
                    self._begin(actor, connection, own, uri, "")
                else:
                    followed.outsides[uri] = None
                self._changes.put("resource_updated", uri)

    def closed(self, actor: UpstreamActor, connection: UpstreamConnection, *, lost: bool) -> None:
        """A connection has ended, and all that was subscribed to over it."""
        all_followed = [self._followed[connection, each] for each in list(connection.followed)]
        for each in all_followed:
            each.scope.cancel(reason="the connection has ended")
        if lost and all_followed:
            key = (actor.settings.name, connection.key)
            if key not in self._lost and isinstance(connection.key, PeerSession):
                connection.key.on_end((self, actor), lambda: self._lost.pop(key, None))
            known = self._lost.setdefault(key, {})
            known.update((outside, each.uri) for each in all_followed for outside in each.outsides)

    def updated(self, connection: UpstreamConnection, uri: str) -> None:
        """A server reports that a resource has changed; one without a subscription is ignored."""
        above = next(iter(uris_above(uri, dict.fromkeys(connection.followed))), None)
        if above is not None:
            followed = self._followed[connection, above]
            for each in followed.in_gateway(above if self._changes.is_full else uri):
                self._changes.put("resource_updated", each)

    # -- for subscribers -----------------------------------------------------------------------------------------------

    def refuse_circle(self, ctx: Context[Any], uri: str) -> None:
        """Raises `ResourceNotFound` if a gateway subscribes to what is being subscribed to here.

        It may do that because it is asked by this gateway, and the two would wait for each other.
        """
        if uri in self._pending and is_gateway(ctx.peer.raw_capabilities):
            raise ResourceNotFound(uri)

    @asynccontextmanager
    async def subscribed(self, ctx: Context[Any], routes: Sequence[Route], uri: str) -> AsyncIterator[None]:
        """Subscribes at the first upstream that lets it; in the block the subscriber is added to the bus.

        After the block the subscription goes on for as long as the bus has a subscriber.

        Raises:
            ResourceNotFound: No upstream can be asked.
            MethodNotFound: The server has no subscriptions.
            RpcError: The first one that was asked refuses, and the others do too.
            UpstreamUnavailable: It cannot be asked.
            Overloaded: Too many resources of it are subscribed to.
        """
        self._pending[uri] = self._pending.get(uri, 0) + 1
        try:
            await self._subscribe(ctx, routes, uri)
            yield
        finally:
            self._pending[uri] -= 1
            if not self._pending[uri]:
                del self._pending[uri]
                self._release(uri)

    async def _subscribe(self, ctx: Context[Any], routes: Sequence[Route], uri: str) -> None:
        refusal: RpcError | None = None
        for route in routes:
            try:
                await self._follow(ctx, route, uri)
                return
            except RpcError as error:
                refusal = refusal or error
        try:
            raise refusal or ResourceNotFound(uri)
        finally:
            # Its traceback has this frame, which the collector would have to free.
            del refusal

    async def _follow(self, ctx: Context[Any], route: Route, uri: str) -> None:
        actor, own = route.upstream, route.target
        async with actor.borrowed(ctx) as connection:
            followed = self._followed.get((connection, own))
            while followed is not None and followed.is_ending:
                # Else the cancellation of the old one could overtake the new one.
                await followed.ended.wait()
                followed = self._followed.get((connection, own))
            if followed is None:
                caller = caller_of(ctx)
                self._require_room(connection, caller)
                followed = self._begin(actor, connection, own, uri, caller)
            followed.outsides[uri] = None
            await followed.begun.wait()
            if followed.failure is not None:
                raise _refusal(actor, followed.failure)

    def _require_room(self, connection: UpstreamConnection, caller: str) -> None:
        """Raises `Overloaded` if a connection, or one caller over it, has too many subscriptions."""
        if len(connection.followed) >= MOST_FOLLOWED:
            raise Overloaded.for_caller(
                "subscriptions of all clients at one server", MOST_FOLLOWED, RETRY_AFTER
            )
        of_caller = sum(
            each.connection is connection and each.caller == caller for each in self._followed.values()
        )
        if of_caller >= MOST_FOLLOWED // 2:
            raise Overloaded.for_caller("subscriptions at one server", MOST_FOLLOWED // 2, RETRY_AFTER)

    def _release(self, uri: str) -> None:
        """Takes subscriptions back that are not needed."""
        if uri in self._wanted or uri in self._pending:
            return
        for each in self._followed.values():
            if uri in each.outsides:
                del each.outsides[uri]
                if not each.outsides:
                    each.is_ending = True
                    each.scope.cancel(reason="the last subscriber has gone")
        for uris in self._lost.values():
            uris.pop(uri, None)

    # -- at the upstream -----------------------------------------------------------------------------------------------

    def _begin(
        self, actor: UpstreamActor, connection: UpstreamConnection, uri: str, outside: str, caller: str
    ) -> _Followed:
        followed = _Followed(actor, connection, uri, {outside: None}, caller)
        self._followed[connection, uri] = followed
        connection.followed.add(uri)
        start(self._nursery, UPSTREAM_SUBSCRIPTION, self._hold, followed, about=actor.settings.name)
        return followed

    async def _hold(self, followed: _Followed) -> None:
        followed.failure = UpstreamUnavailable(followed.actor.settings.name, "it cannot be subscribed at")
        try:
            with followed.scope:
                if followed.connection.server.negotiated.era.client.listen_method is None:
                    await _held_in_session(followed)
                else:
                    await self._held_by_requests(followed)
        except McpError as error:
            followed.failure = error
            log.warning(
                "a resource of an upstream is not subscribed to",
                upstream=followed.actor.settings.name,
                error=without_paths(str(error)),
            )
        finally:
            followed.connection.followed.discard(followed.uri)
            del self._followed[followed.connection, followed.uri]
            followed.begun.set()
            followed.ended.set()

    async def _held_by_requests(self, followed: _Followed) -> None:
        """Asks again for a subscription that was granted and has ended, while the connection goes on, as over HTTP."""
        for wait in itertools.chain(LISTEN_AGAIN, itertools.repeat(LISTEN_AGAIN[-1])):
            try:
                await _held_by_request(followed, self._changes)
            except McpError as error:
                cause = error.__cause__ if isinstance(error, SubscriptionLost) else error
                if not followed.begun.is_set() or isinstance(cause, RpcError):
                    raise
            await trio.sleep(wait)
            for each in followed.in_gateway(followed.uri):
                self._changes.put("resource_updated", each)


async def _held_in_session(followed: _Followed) -> None:
    """MCP 2025-11-25, Resources, Subscriptions: changes are reported to the connection."""
    client, uri = followed.connection.client, followed.uri
    await client.subscribe_resource(uri)
    followed.failure = None
    followed.begun.set()
    try:
        await trio.sleep_forever()
    finally:
        if followed.connection.is_open:
            with trio.move_on_after(UNSUBSCRIBE_TIMEOUT, shield=True):
                try:
                    await client.unsubscribe_resource(uri)
                except McpError as error:
                    log.debug("an upstream does not take a subscription back", error=str(error))


async def _held_by_request(followed: _Followed, changes: ChangeDelivery) -> None:
    """MCP 2026-07-28, Subscriptions: a request that is held open."""
    async with followed.connection.client.listen(uris=(followed.uri,)) as listener:
        granted = None if listener.honored is None else listener.honored.resource_subscriptions
        if followed.uri not in (granted or ()):
            raise ResourceNotFound(followed.uri)
        followed.failure = None
        followed.begun.set()
        async for event in listener:
            if event.uri is not None:
                for each in followed.in_gateway(followed.uri if changes.is_full else event.uri):
                    changes.put("resource_updated", each)


def _refusal(actor: UpstreamActor, failure: McpError) -> RpcError:
    """Returns what the subscriber is sent; an exception of its own for each."""
    cause = failure.__cause__ if isinstance(failure, SubscriptionLost) else failure
    if isinstance(cause, RpcError):
        return RpcError.from_wire(cause.code, cause.message, cause.data)
    if isinstance(cause, LocalProtocolError):
        return MethodNotFound("resources/subscribe")
    return UpstreamUnavailable(actor.settings.name, "it cannot be subscribed at")
