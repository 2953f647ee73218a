"""The live side of a server: it owns the connections, lets them drain, and can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio

from mcp_actors._actors.call import CallStatistics
from mcp_actors._actors.exchange import Exchanges
from mcp_actors._actors.gate import Gate, GateStatistics
from mcp_actors._actors.groups import one_error
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.switchboard import SessionStatistics, Switchboard
from mcp_actors._capabilities.broadcast import Bus, BusStatistics
from mcp_actors._capabilities.catalogue import Catalogue
from mcp_actors._capabilities.handler import string_param
from mcp_actors._capabilities.home import Home
from mcp_actors._capabilities.subscriptions import LegacySubscriber
from mcp_actors._reception import Offer, Reception, Sessions
from mcp_actors.abc import ServerTransport
from mcp_actors.context import Context
from mcp_actors.errors import MethodNotFound, ResourceNotFound

__all__ = ["Host", "ServerStatistics"]


@attrs.frozen
class ServerStatistics:
    """The whole live actor tree of a server."""

    name: str
    sessions: tuple[SessionStatistics, ...]
    """Each with its calls in flight, and its link if a connection carries it."""
    exchanges: tuple[CallStatistics, ...]
    """Calls in flight that belong to no session: each came with an exchange of its own."""
    gate: GateStatistics
    """Calls in flight on all connections together."""
    bus: BusStatistics
    """Subscriptions and events that wait in them."""


class Host:
    """Runs transports and makes a session of every connection they bring."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        versions: Sequence[str],
        catalogue: Catalogue,
        bus: Bus,
        stamp: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.limits = limits
        self.catalogue = catalogue
        self.bus = bus
        self.gate = Gate("server", limits.server_max_in_flight, limits.max_waiting, limits.max_wait)
        self._offer = Offer(name, limits, tuple(versions), catalogue, bus, stamp, self.gate)
        self._sessions = Sessions(bus)
        self._exchanges = Exchanges(name, self.gate)
        self._serving = 0
        self._stopping = trio.Event()

    def __repr__(self) -> str:
        state = "stopping" if self.stopping else "serving" if self._serving else "not serving"
        return f"<Host {self.name!r} {state} sessions={len(self._sessions)}>"

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then ends every `serve`."""
        self._stopping.set()

    async def serve(
        self,
        transports: Sequence[ServerTransport],
        lifespan: Callable[[], AbstractAsyncContextManager[Home]],
        task_status: trio.TaskStatus[tuple[Any, ...]],
    ) -> None:
        """Serves until all transports are done, or until it is cancelled or stopped."""
        if self._serving == 0:
            self._stopping = trio.Event()
        self._serving += 1
        try:
            # Round the lifespan too: its nursery, if it has one, wraps what a transport raises.
            with one_error():
                async with lifespan() as home:
                    await self._supervise(transports, home, task_status)
        finally:
            self._serving -= 1

    async def _supervise(
        self, transports: Sequence[ServerTransport], home: Home, task_status: trio.TaskStatus[tuple[Any, ...]]
    ) -> None:
        async with trio.open_nursery() as supervisor:
            supervisor.start_soon(self._drain, supervisor.cancel_scope, name="drain")
            async with trio.open_nursery() as nursery:
                # Beside the transports: a call of a session may outlive the connection that brought it.
                reception = Reception(
                    self._offer, home, self._sessions, self._exchanges, supervisor, self._stopping
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
        if not self.catalogue.resources.covers(uri):
            raise ResourceNotFound(uri)
        self._subscriber(ctx).subscribe(uri)
        return {}

    def unsubscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/unsubscribe``."""
        self._subscriber(ctx).unsubscribe(string_param(ctx.params, "uri"))
        return {}

    def _subscriber(self, ctx: Context) -> LegacySubscriber:
        session = ctx.call.conversation
        if not isinstance(session, Switchboard):
            # Nobody would remember the subscription, nor know where to send what it brings.
            raise MethodNotFound(ctx.method)
        return self._sessions.subscriber(session)

    def statistics(self) -> ServerStatistics:
        """The whole live actor tree."""
        return ServerStatistics(
            self.name,
            tuple(session.statistics() for session in self._sessions),
            tuple(call.statistics() for call in self._exchanges.calls),
            self.gate.statistics(),
            self.bus.statistics(),
        )
