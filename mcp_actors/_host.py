"""The live side of a server: it owns the connections, lets them drain, and can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import attrs
import trio

from mcp_actors._actors.gate import Gate, GateStatistics
from mcp_actors._actors.groups import one_error
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import Link
from mcp_actors._actors.session import Session, SessionStatistics
from mcp_actors._actors.supervise import converse
from mcp_actors._capabilities.broadcast import Bus, BusStatistics
from mcp_actors._capabilities.catalogue import Catalogue
from mcp_actors._capabilities.handler import string_param
from mcp_actors._capabilities.home import Home
from mcp_actors._capabilities.serving import Serving
from mcp_actors._capabilities.subscriptions import LegacySubscriber
from mcp_actors._eras.choice import ServerOpening
from mcp_actors._logs import log
from mcp_actors.abc import FrameChannel, ServerTransport
from mcp_actors.context import Context
from mcp_actors.errors import ResourceNotFound

__all__ = ["Host", "ServerStatistics"]


@attrs.frozen
class ServerStatistics:
    """The whole live actor tree of a server."""

    name: str
    sessions: tuple[SessionStatistics, ...]
    """Open connections, each with its calls in flight and its link."""
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
        self.versions = versions
        self.catalogue = catalogue
        self.bus = bus
        self.gate = Gate("server", limits.server_max_in_flight, limits.max_waiting, limits.max_wait)
        self._stamp = stamp
        self._sessions: dict[Session, LegacySubscriber | None] = {}
        self._connections = 0
        self._serving = 0
        self._stopping = trio.Event()
        self._session_ended = trio.lowlevel.ParkingLot()

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
                places = [
                    await nursery.start(each.serve, lambda channel: self._converse(channel, home))
                    for each in transports
                ]
                task_status.started(tuple(places))
            supervisor.cancel_scope.cancel(reason="every transport is done")

    async def _drain(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        for session in self._sessions:
            session.stop()
        with trio.move_on_after(self.limits.drain_grace + self.limits.close_timeout):
            while self._sessions:
                await self._session_ended.park()
        everything.cancel(reason="stopped")

    async def _converse(self, channel: FrameChannel, home: Home) -> None:
        if self.stopping:
            await channel.aclose()
            return
        self._connections += 1
        catalogue = self.catalogue
        session = Session(
            f"{self.name}#{self._connections}",
            Link(channel, self.limits),
            ServerOpening(self.versions, catalogue.custom, lambda: self._begin_telling(session)),
            Serving(home, catalogue.handlers, catalogue.middleware, catalogue.gates, self._stamp),
            limits=self.limits,
            server_gate=self.gate,
            on_notification=lambda name, params: log.debug(
                "notification ignored", session=session.name, method=name
            ),
            answers_malformed=True,
        )
        self._sessions[session] = None
        try:
            await converse(session.link, session)
        finally:
            subscriber = self._sessions.pop(session)
            if subscriber is not None:
                subscriber.close()
            self._session_ended.unpark_all()

    # -- legacy subscriptions ----------------------------------------------------------------------------------------

    def _begin_telling(self, session: Session) -> None:
        """A legacy client is past its handshake: from now on it hears of changed lists unasked."""
        self._subscriber(session)

    def _subscriber(self, session: Session) -> LegacySubscriber:
        subscriber = self._sessions[session]
        if subscriber is None:
            subscriber = self._sessions[session] = LegacySubscriber(session, self.bus)
        return subscriber

    def subscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/subscribe``; raises `ResourceNotFound` for what the server does not have."""
        uri = string_param(ctx.params, "uri")
        if not self.catalogue.resources.covers(uri):
            raise ResourceNotFound(uri)
        self._subscriber(cast(Session, ctx.call.conversation)).subscribe(uri)
        return {}

    def unsubscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/unsubscribe``."""
        self._subscriber(cast(Session, ctx.call.conversation)).unsubscribe(string_param(ctx.params, "uri"))
        return {}

    def statistics(self) -> ServerStatistics:
        """The whole live actor tree."""
        return ServerStatistics(
            self.name,
            tuple(session.statistics() for session in self._sessions),
            self.gate.statistics(),
            self.bus.statistics(),
        )
