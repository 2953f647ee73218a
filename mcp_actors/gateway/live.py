"""The upstreams of a gateway while it serves: one set of actors for each `serve`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from mcp_actors._client.options import connectable
from mcp_actors._client.tool_arguments import ToolSchemas
from mcp_actors._eras.era import EventKind
from mcp_actors._server.names import NameTable
from mcp_actors.abc import ClientTransport, Telemetry
from mcp_actors.client import ClientPool
from mcp_actors.errors import ConfigurationError, McpError
from mcp_actors.gateway.connections import GatewayCircle, UpstreamConnection
from mcp_actors.gateway.held_calls import HeldCalls
from mcp_actors.gateway.lists import HANDSHAKE_WAIT, ChangeDelivery, UpstreamLists
from mcp_actors.gateway.names import table_of
from mcp_actors.gateway.routes import UpstreamRoutes, Visible
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.gateway.upstream_subscriptions import UpstreamSubscriptions
from mcp_actors.server import Context
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.containment import reraised, start, start_again
from mcp_actors.supervision.task_kinds import (
    UPSTREAM_CHANGES,
    UPSTREAM_KEEP,
    UPSTREAM_LOG_LEVEL,
    UPSTREAM_SWEEP,
    UPSTREAM_WAIT,
)

__all__ = ["ROOTS_CHANGED", "GatewayPlan", "LiveUpstreams", "opened"]

ROOTS_CHANGED = "notifications/roots/list_changed"
# The methods that name what is in a list.
_CALLED_BY = {"tools": "tools/call", "prompts": "prompts/get"}


class GatewayPlan:
    """The settings of a gateway, which are the same for each `serve`.

    Args:
        upstreams: The settings of each upstream.
        visible: Says whether a caller sees something; ``None`` if everybody sees all.
        publish: Publishes a change: `EventBus.publish`.
        met: Called when a connection to an upstream was made.
        wait: As in `Gateway`.

    Raises:
        ValueError: Two upstreams have the same name, or the names of one are not possible.
        ConfigurationError: The target of one cannot be connected to.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        visible: Visible | None,
        publish: Callable[[EventKind, str | None], None],
        met: Callable[[UpstreamActor, UpstreamConnection], None],
        wait: float,
    ) -> None:
        self.upstreams: list[Upstream] = []
        self.tables: dict[str, NameTable] = {}
        for each in upstreams:
            self.add(each)
        self.visible = visible
        self.publish = publish
        self.telemetry: Telemetry | None = None
        """The receiver of the requests to upstreams."""
        self.met = met
        self.wait = wait
        self.circle = GatewayCircle()

    @property
    def longest_wait(self) -> float:
        """Seconds for which the slowest upstream may delay a list."""
        return max(self.wait, *(each.wait or 0 for each in self.upstreams), 0)

    def add(self, upstream: Upstream) -> None:
        """Adds an upstream behind the others; raises `ValueError` and `ConfigurationError` as above."""
        self.replace([*self.upstreams, upstream])

    def replace(self, upstreams: Sequence[Upstream]) -> None:
        """Puts other upstreams in the place of all; raises `ValueError` and `ConfigurationError` as above.

        Whatever it raises, nothing is changed then.
        """
        tables: dict[str, NameTable] = {}
        for each in upstreams:
            if each.name in tables:
                raise ValueError(f"two upstreams have the name {each.name!r}")
            if each in self.upstreams:
                tables[each.name] = self.tables[each.name]
                continue
            if each.wait is not None:
                require_number(f"the wait of the upstream {each.name!r}", each.wait, 0, math.inf)
            tables[each.name] = table_of(each)
            _require_target(each)
        # The lists of what is served have this table too.
        self.tables.clear()
        self.tables.update(tables)
        self.upstreams[:] = upstreams


class LiveUpstreams:
    """The actors of all upstreams, by name, in the order in which they were given, and what is known of them.

    Args:
        plan: The settings.
        nursery: Owns their tasks.
        pool: Owns their clients.
    """

    def __init__(self, plan: GatewayPlan, nursery: trio.Nursery, pool: ClientPool) -> None:
        self._changes = changes = ChangeDelivery(plan.publish)
        self._met = plan.met
        self._nursery = nursery
        self._pool = pool
        self.lists = UpstreamLists(plan.tables, nursery, changes, plan.wait, plan.circle)
        self.tool_schemas = ToolSchemas()
        """Those by which arguments are repaired, of all upstreams and connections together."""
        self.subscriptions = UpstreamSubscriptions(nursery, changes)
        self.held = HeldCalls(nursery)
        self.telemetry = plan.telemetry
        self.circle = plan.circle
        self.actors: dict[str, UpstreamActor] = {}
        self.routes = UpstreamRoutes(self.actors, self.lists, plan.visible, plan.circle)
        start_again(nursery, UPSTREAM_CHANGES, changes.run)
        for each in plan.upstreams:
            self._add(each)

    def __repr__(self) -> str:
        return f"<LiveUpstreams {', '.join(self.actors)}>"

    def replace(self, upstreams: Sequence[Upstream]) -> None:
        """Puts the upstreams of the plan in the place of those that are served, when the plan has changed.

        An upstream of the same settings goes on as it is. One that is taken out, or whose settings are others, takes no
        new calls, and its connections are closed when those in flight have ended. Clients are notified that the lists
        have changed.
        """
        former = dict(self.actors)
        self.actors.clear()
        begun = []
        for each in upstreams:
            actor = former.get(each.name)
            if actor is not None and actor.settings is each:
                self.actors[each.name] = former.pop(each.name)
            else:
                self.actors[each.name] = UpstreamActor(each, self._nursery, self._pool, self)
                begun.append(each.name)
        for name, actor in former.items():
            for connection in actor.connections:
                # What was subscribed to is subscribed to again, at the one that takes its place.
                self.lists.closed(actor, connection, lost=False)
                self.subscriptions.closed(actor, connection, lost=name in self.actors)
            self.lists.forget(name)
            actor.retire()
        self.lists.reordered()
        for name in begun:
            self._begin(name)
        kinds: tuple[EventKind, ...] = ("tools", "prompts", "resources")
        for kind in kinds:
            self._changes.put(kind)

    def is_current(self, actor: UpstreamActor) -> bool:
        """Whether calls go to an upstream: it was not taken out, and no other one is in its place."""
        return self.actors.get(actor.settings.name) is actor

    def _add(self, upstream: Upstream) -> None:
        self.actors[upstream.name] = UpstreamActor(upstream, self._nursery, self._pool, self)
        self._begin(upstream.name)

    def _begin(self, name: str) -> None:
        actor = self.actors[name]
        if not actor.settings.lazy:
            start_again(self._nursery, UPSTREAM_KEEP, actor.keep, about=name)
        start_again(self._nursery, UPSTREAM_SWEEP, actor.sweep, about=name)

    def is_met(self, *, also_lazy: bool) -> bool:
        """Whether it is known of all upstreams what they are, as far as that is worth waiting for."""
        return not self._unmet(also_lazy)

    async def meet(self, ctx: Context[Any], *, presents: bool) -> None:
        """Connects to the upstreams that were never met, for a caller; waits no longer than `HANDSHAKE_WAIT` seconds.

        Args:
            ctx: The request of the caller.
            presents: Whether the gateway has nothing to say without its upstream. It waits for that as long as for a
                list then, also if the upstream is otherwise connected to when it is needed.
        """
        most = math.inf if presents else HANDSHAKE_WAIT
        async with trio.open_nursery() as nursery:
            for actor in self._unmet(presents):
                start(nursery, UPSTREAM_WAIT, self.lists.meet, actor, ctx, most, about=actor.settings.name)

    def _unmet(self, also_lazy: bool) -> list[UpstreamActor]:
        return [
            each
            for each in self.actors.values()
            if each.met is None and (also_lazy or not each.settings.lazy) and not self.lists.is_late(each)
        ]

    # -- the news of a client with a session, outside of its calls ----------------------------------------------------

    def set_log_level(self, ctx: Context[Any]) -> None:
        """Gives the client's own connections its new log level, each in a task of it.

        Connections that are made later are given it before the first call over them.
        """
        for each in self._connections_of(ctx):
            level = each.level_to_set(ctx)
            if level is not None:
                dispatcher = each.client._connectivity.session.dispatcher
                dispatcher.start_task(UPSTREAM_LOG_LEVEL, partial(each.set_log_level, level))

    def roots_changed(self, ctx: Context[Any]) -> None:
        """Notifies the servers that have the client's roots that these have changed. Never waits."""
        for each in self._connections_of(ctx):
            if (
                each.declared.roots is not None
                and ROOTS_CHANGED in each.server.negotiated.era.client_notifications
            ):
                each.client._connectivity.session.dispatcher.post(ROOTS_CHANGED)

    def _connections_of(self, ctx: Context[Any]) -> Iterator[UpstreamConnection]:
        session = ctx.session
        if session is not None:
            for actor in self.actors.values():
                for each in actor.connections:
                    if each.key is session and each.is_open:
                        yield each

    # -- what upstreams report (`UpstreamObserver`) --------------------------------------------------------------------

    def connected(self, actor: UpstreamActor, connection: UpstreamConnection) -> None:
        """A connection was made."""
        if not self.is_current(actor):
            return
        self._met(actor, connection)
        self.lists.connected(actor)
        self.subscriptions.connected(actor, connection)

    def closed(self, actor: UpstreamActor, connection: UpstreamConnection, *, lost: bool) -> None:
        """A connection has ended, because it was lost or is not needed any more."""
        if not self.is_current(actor):
            return
        self.lists.closed(actor, connection, lost=lost)
        self.subscriptions.closed(actor, connection, lost=lost)

    def is_listed(self, actor: UpstreamActor, method: str, name: str) -> bool:
        """Whether the server has listed a tool or prompt, which is called by ``method``."""
        return any(
            name in listing.entries
            for (upstream, kind), listing in self.lists.known.items()
            if upstream == actor.settings.name and _CALLED_BY.get(kind) == method
        )

    def changed(
        self, actor: UpstreamActor, connection: UpstreamConnection, kind: EventKind, uri: str | None
    ) -> None:
        """A list has changed on the server, or a resource.

        What is reported before the end of the handshake is no news: nothing was read over that connection yet.
        """
        if not self.is_current(actor) or connection not in actor.connections:
            return
        if kind != "resource_updated":
            self.lists.changed(actor, connection, kind)
        elif uri is not None:
            self.subscriptions.updated(connection, uri)


def _require_target(upstream: Upstream) -> None:
    """Raises `ConfigurationError` for a target that cannot be connected to, where the program has written it."""
    if callable(upstream.target) and not isinstance(upstream.target, ClientTransport):
        return  # what it returns is known when it is connected to
    problem = ""
    try:
        connectable(upstream.target, upstream.auth)
    except (ValueError, TypeError, McpError) as error:
        problem = str(error)
    if problem:
        # What is chained would say the same once more.
        raise ConfigurationError(problem, file="the gateway", server=upstream.name, member="target")


@asynccontextmanager
async def opened(plan: GatewayPlan) -> AsyncIterator[LiveUpstreams]:
    """Yields the actors of the upstreams; at the end of the block their connections are closed."""
    with reraised() as body:
        async with ClientPool() as pool, trio.open_nursery() as nursery:
            with body:
                yield LiveUpstreams(plan, nursery, pool)
            nursery.cancel_scope.cancel(reason="the gateway is no longer served")
