"""The live side of a server: it owns the connections, lets them drain, and can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter, LimiterStatistics
from mcp_actors._actors.dispatcher import Dispatcher, SessionStatistics
from mcp_actors._actors.event_bus import EventBus, EventBusStatistics
from mcp_actors._actors.inbound_call import CallStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.stateless import StatelessCalls
from mcp_actors._exception_groups import one_error
from mcp_actors._server.context import Context
from mcp_actors._server.features import Features
from mcp_actors._server.handler import string_param
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.subscriptions import SessionSubscriber
from mcp_actors._server.transport_handler import ServerConfig, SessionRegistry, TransportHandler
from mcp_actors.abc import ServerTransport
from mcp_actors.errors import MethodNotFound, ResourceNotFound

__all__ = ["ServerRuntime", "ServerStatistics"]


@attrs.frozen
class ServerStatistics:
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


class ServerRuntime:
    """Runs transports and makes a session of every connection they bring."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        versions: Sequence[str],
        features: Features,
        bus: EventBus,
        stamp: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.limits = limits
        self.features = features
        self.bus = bus
        self.limiter = ConcurrencyLimiter(
            "server", limits.server_max_in_flight, limits.max_waiting, limits.max_wait
        )
        self._config = ServerConfig(name, limits, tuple(versions), features, bus, stamp, self.limiter)
        self._sessions = SessionRegistry(bus)
        self._exchanges = StatelessCalls(name, self.limiter)
        self._serving = 0
        self._stopping = trio.Event()

    def __repr__(self) -> str:
        state = "stopping" if self.stopping else "serving" if self._serving else "not serving"
        return f"<ServerRuntime {self.name!r} {state} sessions={len(self._sessions)}>"

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then ends every `serve`."""
        self._stopping.set()

    async def serve(
        self,
        transports: Sequence[ServerTransport],
        lifespan: Callable[[], AbstractAsyncContextManager[ServerScope]],
        task_status: trio.TaskStatus[tuple[Any, ...]],
    ) -> None:
        """Serves until all transports are done, or until it is cancelled or stopped."""
        if self._serving == 0:
            self._stopping = trio.Event()
        self._serving += 1
        try:
            # Round the lifespan too: its nursery, if it has one, wraps what a transport raises.
            with one_error():
                async with lifespan() as scope:
                    await self._supervise(transports, scope, task_status)
        finally:
            self._serving -= 1

    async def _supervise(
        self,
        transports: Sequence[ServerTransport],
        scope: ServerScope,
        task_status: trio.TaskStatus[tuple[Any, ...]],
    ) -> None:
        async with trio.open_nursery() as supervisor:
            supervisor.start_soon(self._drain, supervisor.cancel_scope, name="drain")
            async with trio.open_nursery() as nursery:
                # Beside the transports: a call of a session may outlive the connection that brought it.
                reception = TransportHandler(
                    self._config, scope, self._sessions, self._exchanges, supervisor, self._stopping
                )
                places = [await nursery.start(each.serve, reception) for each in transports]
                task_status.started(tuple(places))
            supervisor.cancel_scope.cancel(reason="every transport is done")

    async def _drain(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        with trio.move_on_after(self.limits.drain_grace + self.limits.close_timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain_sessions)
                nursery.start_soon(self._drain_exchanges)
        everything.cancel(reason="stopped")

    async def _drain_sessions(self) -> None:
        for session in self._sessions:
            session.stop()
        while self._sessions:
            await self._sessions.ended.park()

    async def _drain_exchanges(self) -> None:
        self._exchanges.drain()
        while self._exchanges.calls:
            await self._exchanges.ended.park()

    # -- legacy subscriptions ----------------------------------------------------------------------------------------

    def subscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/subscribe``; raises `ResourceNotFound` for what the server does not have."""
        uri = string_param(ctx.params, "uri")
        if not self.features.resources.covers(uri):
            raise ResourceNotFound(uri)
        self._subscriber(ctx).subscribe(uri)
        return {}

    def unsubscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/unsubscribe``."""
        self._subscriber(ctx).unsubscribe(string_param(ctx.params, "uri"))
        return {}

    def _subscriber(self, ctx: Context) -> SessionSubscriber:
        session = ctx.call.conversation
        if not isinstance(session, Dispatcher):
            # Nobody would remember the subscription, nor know where to send what it brings.
            raise MethodNotFound(ctx.method)
        return self._sessions.subscriber(session)

    def statistics(self) -> ServerStatistics:
        """The whole live actor tree."""
        return ServerStatistics(
            self.name,
            tuple(session.statistics() for session in self._sessions),
            tuple(call.statistics() for call in self._exchanges.calls),
            self.limiter.statistics(),
            self.bus.statistics(),
        )
