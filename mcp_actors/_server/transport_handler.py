"""What a server does with what a transport brings: a connection, an exchange, or something for a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import attrs
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.batch import Batch
from mcp_actors._actors.connection import converse
from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.inbound_call import refusal_frame
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import Link
from mcp_actors._actors.session import Session
from mcp_actors._actors.stateless import StatelessCalls
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.classify import Classified, sort
from mcp_actors._eras.era import Invocation
from mcp_actors._eras.server_negotiation import ServerNegotiation
from mcp_actors._server.dispatch import MethodDispatch
from mcp_actors._server.features import Features
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.subscriptions import SessionSubscriber
from mcp_actors._wire.codec import decode
from mcp_actors._wire.messages import JsonRpcRequest
from mcp_actors.abc import Arrival, Frame, FrameChannel, Outlet
from mcp_actors.errors import INTERNAL_ERROR, INVALID_REQUEST, MalformedMessage, RpcError
from mcp_actors.logging import log

__all__ = ["ServerConfig", "SessionRegistry", "TransportHandler"]


# Tasks kept for calls to come of all sessions and exchanges without a connection, each of some 4 KiB.
SHARED_IDLE_TASKS = 1024


@attrs.frozen(eq=False)
class ServerConfig:
    """What a server offers, and on what terms: the same for all its transports."""

    name: str
    limits: Limits
    versions: tuple[str, ...]
    features: Features
    bus: EventBus
    stamp: Mapping[str, Any]
    limiter: ConcurrencyLimiter


@attrs.frozen
class RefusedArrival:
    """What arrived and cannot be served at all."""

    refusal: Frame
    era: Literal["legacy", "modern"] = "legacy"
    stateless: bool = False
    requests: int = 0
    initializes: bool = False


class SessionRegistry:
    """The sessions of one server, each with what it subscribed to."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._subscribers: dict[Dispatcher, SessionSubscriber | None] = {}
        self.ended = trio.lowlevel.ParkingLot()
        self._count = 0

    def __repr__(self) -> str:
        return f"<SessionRegistry {len(self._subscribers)}>"

    def __iter__(self) -> Iterator[Dispatcher]:
        return iter(list(self._subscribers))

    def __len__(self) -> int:
        return len(self._subscribers)

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def add(self, session: Dispatcher) -> None:
        self._subscribers[session] = None

    def remove(self, session: Dispatcher) -> None:
        subscriber = self._subscribers.pop(session)
        if subscriber is not None:
            subscriber.close()
        self.ended.unpark_all()

    def subscriber(self, session: Dispatcher) -> SessionSubscriber:
        """What tells a session of changes; made when the client is past its handshake, or asks before."""
        subscriber = self._subscribers[session]
        if subscriber is None:
            subscriber = self._subscribers[session] = SessionSubscriber(session, self._bus)
        return subscriber


class TransportHandler:
    """Receives what the transports of one `serve` bring; fulfils `mcp_actors.abc.ServerHandler`."""

    def __init__(
        self,
        config: ServerConfig,
        scope: ServerScope,
        sessions: SessionRegistry,
        exchanges: StatelessCalls,
        nursery: trio.Nursery,
        stopping: trio.Event,
    ) -> None:
        self.stopping = stopping
        self._config = config
        self._scope = scope
        self._sessions = sessions
        self._exchanges = exchanges
        self._pool = TaskPool(nursery, SHARED_IDLE_TASKS)
        self._serving = self._make_serving(scope)
        self._alone = self._opening(lambda: None)

    def __repr__(self) -> str:
        return f"<TransportHandler {self._config.name!r}>"

    # -- connections -----------------------------------------------------------------------------------------------

    async def __call__(self, channel: FrameChannel, principal: str | None = None) -> None:
        if self.stopping.is_set():
            await channel.aclose()
            return
        session = Session(
            self._next_name(),
            Link(channel, self._config.limits),
            self._opening(lambda: self._begin_telling(session)),
            self._serving_for(principal),
            limits=self._config.limits,
            server_limiter=self._config.limiter,
            on_notification=lambda name, params: log.debug(
                "notification ignored", session=session.name, method=name
            ),
            answers_malformed=True,
        )
        self._sessions.add(session)
        try:
            await converse(session.link, session)
        finally:
            self._sessions.remove(session)

    # -- exchanges and sessions without a connection -----------------------------------------------------------------

    def sort(self, frame: Frame, *, in_session: bool = False) -> Arrival:
        try:
            arrival = sort(decode(frame.data), frame.metadata or {}, in_session)
        except MalformedMessage as error:
            return _refused(error.id, error.code, str(error))
        if not arrival.stateless and not self.has_sessions:
            missing = self._alone.version_missing()
            id = arrival.message.id if isinstance(arrival.message, JsonRpcRequest) else None
            return _refused(id, missing.code, missing.message, missing.data)
        return arrival

    @property
    def has_sessions(self) -> bool:
        return bool(self._alone.legacy_served)

    def open_session(self, outlet: Outlet, principal: str | None = None) -> ConnectionlessSession:
        session = ConnectionlessSession(
            self._next_name(),
            outlet,
            self._opening(lambda: self._begin_telling(session)),
            self._serving_for(principal),
            self._pool,
            limits=self._config.limits,
            server_limiter=self._config.limiter,
            on_closed=self._sessions.remove,
        )
        self._sessions.add(session)
        return session

    async def exchange(self, arrival: Arrival, outlet: Outlet, principal: str | None = None) -> None:
        assert isinstance(arrival, Classified)
        message = arrival.message
        if isinstance(message, JsonRpcRequest):
            await self._exchange(message, arrival, outlet, principal)
        elif isinstance(message, list):
            await self._exchange_batch(message, arrival, outlet, principal)
        elif (error := self._alone.version_refused(arrival.era, arrival.metadata)) is not None:
            self._exchanges.refuse(None, error, outlet)
        # What is left is a notification, or an answer to a question that nobody asked: nothing to do.

    def begin(
        self, arrival: Arrival, outlet: Outlet, principal: str | None = None
    ) -> Callable[[], None] | None:
        assert isinstance(arrival, Classified)
        if isinstance(arrival.message, JsonRpcRequest):
            invocation = self._opened(arrival.message, arrival, outlet)
            if invocation is None:
                return None
            call = self._exchanges.begin(invocation, outlet, self._serving_for(principal), self._pool)
            return None if call is None else call.cancel
        scope = trio.CancelScope()

        async def exchange() -> None:
            with scope:
                await self.exchange(arrival, outlet, principal)

        self._pool.start_soon(exchange, "batch")
        return scope.cancel

    async def _exchange(
        self, request: JsonRpcRequest, arrival: Classified, outlet: Outlet, principal: str | None
    ) -> None:
        invocation = self._opened(request, arrival, outlet)
        if invocation is not None:
            await self._exchanges.run(invocation, outlet, self._serving_for(principal))

    def _opened(self, request: JsonRpcRequest, arrival: Classified, outlet: Outlet) -> Invocation | None:
        """``None`` for what was refused."""
        try:
            return self._alone.open_alone(request, arrival.era, arrival.metadata)
        except RpcError as error:
            self._exchanges.refuse(request.id, error, outlet)
        except MalformedMessage as error:
            self._exchanges.refuse(request.id, RpcError(error.code, str(error)), outlet)
        except Exception as error:  # a bug of ours must not end the connection
            log.exception("request could not be opened", method=request.method, exc_info=error)
            self._exchanges.refuse(request.id, RpcError(INTERNAL_ERROR, "internal error"), outlet)
        return None

    async def _exchange_batch(
        self, messages: list[Any], arrival: Classified, outlet: Outlet, principal: str | None
    ) -> None:
        """A batch of a revision that has them, to a server that keeps no sessions."""
        if not self._alone.batches_alone(messages, arrival.metadata):
            self._exchanges.refuse(None, RpcError(INVALID_REQUEST, "a batch is not allowed here"), outlet)
            return
        batch = Batch(outlet, arrival.requests) if arrival.requests else outlet
        async with trio.open_nursery() as nursery:
            for each in messages:
                if isinstance(each, JsonRpcRequest):
                    nursery.start_soon(self._exchange, each, arrival, batch, principal)
                elif isinstance(each, MalformedMessage):
                    self._exchanges.refuse(each.id, RpcError(each.code, str(each)), batch)

    # -- what both need --------------------------------------------------------------------------------------------

    def _next_name(self) -> str:
        return f"{self._config.name}#{self._sessions.next_number()}"

    def _opening(self, on_operating: Callable[[], None]) -> ServerNegotiation:
        features = self._config.features
        return ServerNegotiation(
            self._config.versions, features.custom, on_operating, features.tools.mirrored_params
        )

    def _serving_for(self, principal: str | None) -> MethodDispatch:
        if principal is None:
            return self._serving
        return self._make_serving(attrs.evolve(self._scope, principal=principal))

    def _make_serving(self, scope: ServerScope) -> MethodDispatch:
        features = self._config.features
        return MethodDispatch(
            scope, features.handlers, features.middleware, features.declared, self._config.stamp
        )

    def _begin_telling(self, session: Dispatcher) -> None:
        """A legacy client is past its handshake: from now on it hears of changed lists unasked."""
        self._sessions.subscriber(session)


def _refused(id: int | str | None, code: int, message: str, data: Any = None) -> RefusedArrival:
    return RefusedArrival(refusal_frame(id, code, message, data))
