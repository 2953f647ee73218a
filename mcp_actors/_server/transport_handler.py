"""Serves what a transport brings: a connection, an exchange, or messages for a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs
import msgspec
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.beats import Beats
from mcp_actors._actors.budgets import Budgets, ClientMemory
from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.dispatch_rules import DispatchRules
from mcp_actors._actors.dispatcher import ignore
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.responses import refusal_frame
from mcp_actors._actors.session import Session
from mcp_actors._actors.stateless import StatelessCalls
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.classify import Classified, sort
from mcp_actors._eras.server_negotiation import (
    ExchangeNegotiation,
    ServerNegotiation,
    params_of,
    with_sessions,
)
from mcp_actors._server.dispatch import MethodDispatch
from mcp_actors._server.features import Features
from mcp_actors._server.registry import NO_SCOPES
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.sessions import AnySession, SessionRegistry
from mcp_actors._server.state_key import derived_key
from mcp_actors._wire.codec import decode
from mcp_actors._wire.messages import JsonRpcNotification, JsonRpcRequest
from mcp_actors.abc import Arrival, Frame, FrameChannel, OpenState, Outlet, SharedState, Telemetry
from mcp_actors.budget import Account, holder_of
from mcp_actors.errors import MalformedMessage, RpcError
from mcp_actors.principal import Principal
from mcp_actors.supervision import start_again
from mcp_actors.task_kinds import BEATS

__all__ = ["ServerConfig", "TransportHandler"]


CONNECTION_RULES = DispatchRules(answers_malformed=True)
# Tasks kept for calls to come of all sessions and exchanges without a connection, each of some 4 KiB.
SHARED_IDLE_TASKS = 1024


@attrs.frozen(eq=False)
class ServerConfig:
    """The features and limits of a server: the same for all its transports."""

    name: str
    limits: Limits
    versions: tuple[str, ...]
    features: Features
    bus: EventBus
    stamp: dict[str, Any]
    limiter: ConcurrencyLimiter
    budgets: Budgets
    shared: SharedState
    state_key: bytes = attrs.field(repr=False)
    telemetry: Telemetry | None = None
    upstreams: Callable[[], tuple[Any, ...]] = tuple
    """Returns snapshots of the servers behind this one."""


class RefusedArrival(msgspec.Struct, frozen=True):
    """An arrival that cannot be served at all."""

    refusal: Frame
    era: Literal["legacy", "modern"] = "legacy"
    stateless: bool = False
    requests: int = 0
    initializes: bool = False


class TransportHandler:
    """Takes what the transports of one `serve` bring; fulfils `mcp_actors.abc.ServerHandler`.

    Args:
        nursery: Owns the calls that belong to no connection, which may outlive the connection that brought them.
        running: The live side of the server, for those who look at it.
    """

    def __init__(
        self,
        config: ServerConfig,
        scope: ServerScope,
        shared: OpenState,
        sessions: SessionRegistry,
        nursery: trio.Nursery,
        stopping: trio.Event,
        running: object,
    ) -> None:
        self.stopping = stopping
        self.running = running
        self.shared = shared
        self._config = config
        self._sessions = sessions
        self._nursery = nursery
        beats = Beats(config.limits.beat)
        start_again(nursery, BEATS, beats.run)
        self._pool = TaskPool(nursery, SHARED_IDLE_TASKS)
        self.responder = MethodDispatch(scope, config.features, config.stamp, beats, config.telemetry)
        self._negotiation = self._negotiate(None)
        self.stateless = StatelessCalls(
            config.name,
            self._negotiation,
            self.responder,
            self._pool,
            nursery,
            limits=config.limits,
            limiter=config.limiter,
            on_notification=self._notified_alone,
            memory=ClientMemory(config.budgets, None),
        )

    def __repr__(self) -> str:
        return f"<TransportHandler {self._config.name!r}>"

    def replace(self, config: ServerConfig, scope: ServerScope) -> None:
        """Serves the features of ``config`` from now on, also on the connections that there are.

        The table of custom methods, which sessions refer to, is the same object: see `Features.take_over`.
        """
        self._config = config
        self._negotiation.mirrored_params = config.features.tools.mirrored_params
        self.responder.replace(config.features, scope, config.stamp)

    # -- connections -----------------------------------------------------------------------------------------------

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        if self.stopping.is_set():
            await channel.aclose()
            return
        config = self._config
        account = Account(config.budgets.kept, holder_of(channel.peer, principal))
        negotiation = self._negotiate(
            principal, lambda: self._begin_delivery(session), account, sessions_only=channel.sessions_only
        )
        session = Session(
            self._next_name(),
            channel,
            negotiation,
            self.responder,
            CONNECTION_RULES,
            limits=config.limits,
            limiter=config.limiter,
            on_notification=lambda name, params: self._notified(negotiation, session, name, params),
            memory=ClientMemory(config.budgets, account),
        )
        self._sessions.add(session, negotiation.legacy, principal)
        try:
            await session.run()
        finally:
            self._sessions.remove(session)

    # -- exchanges and sessions without a connection -----------------------------------------------------------------

    def sort(self, frame: Frame, *, in_session: bool = False) -> Arrival:
        try:
            arrival = sort(decode(frame.data), frame.metadata or {}, in_session)
        except MalformedMessage as error:
            return _refused(error.id, error.code, str(error))
        if not arrival.stateless and not self.has_sessions:
            missing = self._negotiation.version_missing()
            id = arrival.message.id if isinstance(arrival.message, JsonRpcRequest) else None
            return _refused(id, missing.code, missing.message, missing.data)
        return arrival

    def scopes_needed(self, arrival: Arrival) -> frozenset[str]:
        features = self._config.features
        if not features.scoped:
            return NO_SCOPES
        assert isinstance(arrival, Classified)
        message = arrival.message
        requests = message if isinstance(message, list) else [message]
        return NO_SCOPES.union(*(_scopes_needed(features, each) for each in requests))

    def key_for(self, purpose: str) -> bytes:
        """Returns a key that all processes with the same ``state_key`` have for one purpose."""
        return derived_key(self._config.state_key, purpose)

    @property
    def has_sessions(self) -> bool:
        return bool(self._negotiation.legacy_served)

    def open_session(
        self, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ConnectionlessSession:
        config = self._config
        account = Account(config.budgets.kept, holder_of(peer, principal))
        negotiation = self._negotiate(principal, lambda: self._begin_delivery(session), account)
        session = ConnectionlessSession(
            self._next_name(),
            outlet,
            negotiation,
            self.responder,
            self._pool,
            self._nursery,
            limits=config.limits,
            limiter=config.limiter,
            memory=ClientMemory(config.budgets, account),
            on_closed=self._sessions.remove,
            on_notification=lambda name, params: self._notified(negotiation, session, name, params),
        )
        self._sessions.add(session, negotiation.legacy, principal)
        return session

    async def exchange(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        assert isinstance(arrival, Classified)
        await self.stateless.run(arrival, outlet, principal, peer)

    def begin(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> Callable[[], None] | None:
        assert isinstance(arrival, Classified)
        return self.stateless.begin(arrival, outlet, principal, peer)

    # -- what both need --------------------------------------------------------------------------------------------

    def _next_name(self) -> str:
        return f"{self._config.name}#{self._sessions.next_number()}"

    def _negotiate(
        self,
        principal: Principal | None,
        on_operating: Callable[[], None] = lambda: None,
        account: Account | None = None,
        *,
        sessions_only: bool = False,
    ) -> ServerNegotiation:
        features = self._config.features
        versions = with_sessions(self._config.versions) if sessions_only else self._config.versions
        return ServerNegotiation(
            versions, features.custom, on_operating, features.tools.mirrored_params, principal, account
        )

    def _notified(
        self, negotiation: ServerNegotiation, session: AnySession, name: str, params: dict[str, Any]
    ) -> None:
        """Starts the function that takes a notification of a session or connection, if there is one."""
        handlers = self._config.features.notifications
        method = handlers.method(name)
        invocation = None if method is None else negotiation.notification(method, params)
        if invocation is None:
            ignore(name, params)
        else:
            handlers.start(invocation, session.dispatcher, self.responder.scope)

    def _notified_alone(
        self, notification: JsonRpcNotification, outlet: Outlet, negotiation: ExchangeNegotiation
    ) -> None:
        """As `_notified`, for a notification that came by itself."""
        handlers = self._config.features.notifications
        method = handlers.method(notification.method)
        if method is None:
            return
        try:
            invocation = negotiation.notification(method, params_of(notification))
        except RpcError:
            invocation = None
        if invocation is not None:
            handlers.start(invocation, self.stateless.dispatcher, self.responder.scope, outlet)

    def _begin_delivery(self, session: AnySession) -> None:
        """A legacy client is past its handshake: from now on it is sent notifications of changed lists unasked."""
        self._sessions.subscriber(session.dispatcher)


def _scopes_needed(features: Features, message: object) -> frozenset[str]:
    if not isinstance(message, JsonRpcRequest):
        return NO_SCOPES
    try:
        return features.scopes_needed(message.method, params_of(message))
    except (RpcError, MalformedMessage):
        # It is refused for that reason when it is opened.
        return NO_SCOPES


def _refused(id: int | str | None, code: int, message: str, data: Any = None) -> RefusedArrival:
    return RefusedArrival(refusal_frame(id, code, message, data))
