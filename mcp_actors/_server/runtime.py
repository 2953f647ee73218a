"""The live side of a server: it owns the connections, lets them drain, and can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import attrs
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter, LimiterStatistics
from mcp_actors._actors.budgets import Budgets, MemoryStatistics
from mcp_actors._actors.call_statistics import CallStatistics
from mcp_actors._actors.counters import SessionStatistics, Totals
from mcp_actors._actors.event_bus import EventBus, EventBusStatistics
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.session_reports import report_served
from mcp_actors._actors.stateless import StatelessCalls
from mcp_actors._exception_groups import one_error
from mcp_actors._record import ValueRecord
from mcp_actors._server.context import Context
from mcp_actors._server.dispatch import stamp_of
from mcp_actors._server.features import Features
from mcp_actors._server.handler import uri_param
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.sessions import SessionRegistry
from mcp_actors._server.subscriptions import SessionSubscriber
from mcp_actors._server.transport_handler import ServerConfig, TransportHandler
from mcp_actors.abc import Companion, OpenState, ServerTransport, SharedState, Telemetry
from mcp_actors.errors import LocalProtocolError, MethodNotFound, ResourceNotFound
from mcp_actors.supervision import start_again, start_and_wait
from mcp_actors.task_kinds import COMPANION, DRAIN, TRANSPORT
from mcp_actors.types import Implementation

__all__ = ["ServerRuntime", "ServerStatistics"]


@runtime_checkable
class SupportsStatistics(Protocol):
    """A transport that can be looked at."""

    def statistics(self) -> Any: ...


@attrs.frozen(eq=False, repr=False)
class ServerStatistics(ValueRecord):
    """The whole live actor tree of a server."""

    name: str
    sessions: tuple[SessionStatistics, ...]
    """Each with its calls in flight, and its link if a connection carries it."""
    exchanges: tuple[CallStatistics, ...]
    """Calls in flight that belong to no session: each came with an exchange of its own."""
    limiter: LimiterStatistics
    """Calls in flight on all connections together."""
    bus: EventBusStatistics
    """Subscriptions and events that wait in them."""
    memory: MemoryStatistics
    """Bytes that clients make the server hold, with their limits."""
    transports: tuple[Any, ...] = ()
    """What the transports that are served now say of themselves, as far as they say anything."""
    totals: Totals = attrs.field(factory=Totals)
    """The events of all conversations since the server was first served, those that have ended included."""
    upstreams: tuple[Any, ...] = ()
    """The servers behind it, where it is a `~mcp_actors.gateway.Gateway`: `~mcp_actors.gateway.UpstreamStatistics`."""


class ServerRuntime:
    """Runs transports and makes a session of every connection they bring."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        versions: Sequence[str],
        features: Features,
        bus: EventBus,
        stamp: dict[str, Any],
        shared: SharedState,
        state_key: bytes,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.features = features
        self.bus = bus
        self.limiter = ConcurrencyLimiter(
            "server", limits.server_max_in_flight, limits.max_waiting, limits.max_wait
        )
        self.budgets = Budgets(limits)
        self._config = ServerConfig(
            name,
            limits,
            tuple(versions),
            features,
            bus,
            stamp,
            self.limiter,
            self.budgets,
            shared,
            state_key,
            telemetry,
        )
        self._transports: list[ServerTransport] = []
        self._sessions = SessionRegistry(bus, features.loop)
        self._handlers: list[TransportHandler] = []
        self._serving = 0
        self._stopping = trio.Event()

    def __repr__(self) -> str:
        state = "stopping" if self.stopping else "serving" if self._serving else "not serving"
        return f"<ServerRuntime {self.name!r} {state} sessions={len(self._sessions)}>"

    @property
    def shared(self) -> SharedState:
        """The place of what outlives a session. A new one is opened by the next `serve`."""
        return self._config.shared

    @shared.setter
    def shared(self, shared: SharedState) -> None:
        self._config = attrs.evolve(self._config, shared=shared)

    @property
    def telemetry(self) -> Telemetry | None:
        """The receiver of each call. Another one counts from the next `serve` on."""
        return self._config.telemetry

    @telemetry.setter
    def telemetry(self, telemetry: Telemetry | None) -> None:
        self._config = attrs.evolve(self._config, telemetry=telemetry)

    @property
    def upstreams(self) -> Callable[[], tuple[Any, ...]]:
        """Returns snapshots of the servers behind this one."""
        return self._config.upstreams

    @upstreams.setter
    def upstreams(self, upstreams: Callable[[], tuple[Any, ...]]) -> None:
        self._config = attrs.evolve(self._config, upstreams=upstreams)

    @property
    def sessions(self) -> SessionRegistry:
        """The sessions that exist now."""
        return self._sessions

    @property
    def is_serving(self) -> bool:
        return self._serving > 0

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then ends every `serve`."""
        self.features.loop.call(self._stopping.set)

    async def serve(
        self,
        transports: Sequence[ServerTransport],
        lifespan: Callable[[], AbstractAsyncContextManager[ServerScope]],
        task_status: trio.TaskStatus[tuple[Any, ...]],
    ) -> None:
        """Serves until all transports are done, or until it is cancelled or stopped.

        Raises:
            LocalProtocolError: It is served in another event loop, or there are companions alone.
        """
        companions = [each for each in transports if isinstance(each, Companion)]
        if companions and len(companions) == len(transports):
            raise LocalProtocolError(
                f"{companions[0]!r} brings no clients: serve a URL or 'stdio:' beside it"
            )
        if self.features.loop.begin():
            self._forget()
        telemetry = self._config.telemetry
        if not self._serving:
            self._sessions.telemetry = telemetry
        self._serving += 1
        unserved = None if telemetry is None else report_served(telemetry, self.statistics)
        try:
            # Round the lifespan too: its nursery, if it has one, wraps what a transport raises.
            with one_error():
                async with self._config.shared.open(self.name) as state, lifespan() as scope:
                    # A bus that leads nowhere is not worth a call for each event.
                    leave = self.bus.attach(state.bus) if state.bus.spans_processes else None
                    try:
                        await self._supervise(transports, scope, state, task_status)
                    finally:
                        if leave is not None:
                            leave()
        finally:
            if unserved is not None:
                unserved()
            self._serving -= 1
            if self._serving == 0:
                self.features.loop.end()

    def _forget(self) -> None:
        """Begins anew: also after a fork, which has a copy of what its parent serves."""
        self._serving = 0
        self._stopping = trio.Event()
        if self._sessions:
            self._sessions = SessionRegistry(self.bus, self.features.loop)
        self._handlers.clear()
        self._transports.clear()

    def replace(self, features: Features, scope: ServerScope, stamp: dict[str, Any]) -> None:
        """Serves other features from now on; clients are notified of the lists that look different.

        Calls in flight end with what they began with. The features were prepared by `Features.join`.
        """
        changed = features.take_over(self.features)
        self.features = features
        self._config = attrs.evolve(self._config, features=features, stamp=stamp)
        for handler in self._handlers:
            handler.replace(self._config, scope)
        for kind in changed:
            self.bus.publish(kind)

    def calls(self) -> set[InboundCall]:
        """Returns the calls in flight, on all connections, but for those that last until their client ends them."""
        dispatchers = [session.dispatcher for session in self._sessions]
        dispatchers += [handler.stateless.dispatcher for handler in self._handlers]
        return {
            call
            for each in dispatchers
            for call in each.calls.values()
            if call.invocation.method.name != "subscriptions/listen"
        }

    async def _supervise(
        self,
        transports: Sequence[ServerTransport],
        scope: ServerScope,
        state: OpenState,
        task_status: trio.TaskStatus[tuple[Any, ...]],
    ) -> None:
        async with trio.open_nursery() as supervisor:
            start_again(supervisor, DRAIN, self._drain, supervisor.cancel_scope)
            handler = TransportHandler(
                self._config, scope, state, self._sessions, supervisor, self._stopping, self
            )
            self._handlers.append(handler)
            self._transports += transports
            try:
                async with (
                    self.features.extensions_served(handler.responder, handler.stateless.dispatcher, state),
                    trio.open_nursery() as nursery,
                ):
                    served = [
                        await start_and_wait(supervisor, COMPANION, each.serve, handler, about=repr(each))
                        if isinstance(each, Companion)
                        else await nursery.start(each.serve, handler, name=f"{TRANSPORT.name} {each!r}")
                        for each in transports
                    ]
                    task_status.started(tuple(served))
            finally:
                self._handlers.remove(handler)
                self._sessions.past.add(handler.stateless.dispatcher.counters)
                handler.stateless.close()
                for each in transports:
                    self._transports.remove(each)
            supervisor.cancel_scope.cancel(reason="every transport is done")

    async def _drain(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        try:
            with trio.move_on_after(self.limits.drain_grace + self.limits.close_timeout):
                for session in self._sessions:
                    session.stop()
                stateless = [handler.stateless for handler in self._handlers]
                for each in stateless:
                    each.dispatcher.drain()
                while self._sessions:
                    await self._sessions.ended.park()
                for each in stateless:
                    while each.dispatcher.calls:
                        await each.ended.park()
        finally:
            # Also when draining crashes: a server that was stopped has to end.
            everything.cancel(reason="stopped")

    # -- legacy subscriptions ----------------------------------------------------------------------------------------

    def subscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/subscribe``; raises `ResourceNotFound` for what the server does not have."""
        uri = uri_param(ctx.params)
        if not self.features.resources.covers(uri):
            raise ResourceNotFound(uri)
        self.subscribe_to(ctx, uri)
        return {}

    def subscribe_to(self, ctx: Context, uri: str) -> None:
        """Lets the session of a call hear of updates of a resource, whoever has it.

        Raises:
            MethodNotFound: The call belongs to no session.
            RpcError, Overloaded: It is subscribed to too many.
        """
        self._subscriber(ctx).subscribe(uri)

    def present(self, info: Implementation) -> None:
        """Says from now on, in the results of stateless revisions, that another server has sent them."""
        self._config.stamp["server_info"] = stamp_of(info, 0, "private")["server_info"]

    def unsubscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/unsubscribe``."""
        self._subscriber(ctx).unsubscribe(uri_param(ctx.params))
        return {}

    def _subscriber(self, ctx: Context) -> SessionSubscriber:
        subscriber = self._sessions.subscriber(ctx.call.owner)
        if subscriber is None:
            # Without a session nothing remembers the subscription, or knows where to send what it brings.
            raise MethodNotFound(ctx.method)
        return subscriber

    def exchanges(self) -> Iterator[StatelessCalls]:
        """Yields what has the calls that belong to no session, one for each `serve` that goes on."""
        return (handler.stateless for handler in self._handlers)

    def transport_statistics(self) -> tuple[Any, ...]:
        """Returns what the transports that are served now say of themselves, as far as they say anything."""
        return tuple(
            said
            for each in self._transports
            if isinstance(each, SupportsStatistics) and (said := each.statistics()) is not None
        )

    def statistics(self) -> ServerStatistics:
        """The whole live actor tree."""
        return self.features.loop.call(self._statistics)

    def _statistics(self) -> ServerStatistics:
        sessions = tuple(self._sessions.statistics(session) for session in self._sessions)
        totals = attrs.evolve(self._sessions.past, counters=attrs.evolve(self._sessions.past.counters))
        for each in sessions:
            totals.add(each.counters, each.link)
        for handler in self._handlers:
            totals.add(handler.stateless.dispatcher.counters)
        return ServerStatistics(
            self.name,
            sessions,
            tuple(call.statistics() for each in self.exchanges() for call in each.dispatcher.calls.values()),
            self.limiter.statistics(),
            self.bus.statistics(),
            self.budgets.statistics(),
            self.transport_statistics(),
            totals,
            self.upstreams(),
        )
