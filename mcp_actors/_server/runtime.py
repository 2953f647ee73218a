"""The live side of a server: it owns the connections, drains them at the end, and reports what runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import attrs
import msgspec
import trio

from mcp_actors._actors.beats import Beats
from mcp_actors._actors.connectionless import ConnectionlessSession, StatelessCalls
from mcp_actors._actors.dispatcher import SessionStatistics, Totals, ignore
from mcp_actors._actors.event_bus import EventBus, EventBusStatistics
from mcp_actors._actors.inbound_call import CallStatistics, Continuation, DispatchRules, InboundCall
from mcp_actors._actors.limits import (
    Budgets,
    ClientMemory,
    ConcurrencyLimiter,
    LimiterStatistics,
    Limits,
    MemoryStatistics,
)
from mcp_actors._actors.responses import refusal_frame
from mcp_actors._actors.session import Session
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.era import shown_target
from mcp_actors._eras.server_negotiation import (
    Classified,
    ExchangeNegotiation,
    ServerNegotiation,
    params_of,
    sort,
    with_sessions,
)
from mcp_actors._server.claims import lose_all
from mcp_actors._server.context import Context
from mcp_actors._server.dispatch import MethodDispatch, stamp_of
from mcp_actors._server.features import Features
from mcp_actors._server.invoke import ProcessStatistics, uri_param
from mcp_actors._server.registry import NO_SCOPES
from mcp_actors._server.scope import ServerScope, derived_key
from mcp_actors._server.sessions import AnySession, SessionRecord, SessionRegistry
from mcp_actors._server.subscriptions import SessionSubscriber
from mcp_actors._server.turns import TurnStatistics
from mcp_actors._server.visibility import ListWatch, caller_of
from mcp_actors._server.watchdog import watch_loop
from mcp_actors._wire.codec import JsonRpcNotification, JsonRpcRequest, decode
from mcp_actors.abc import (
    Arrival,
    Companion,
    Frame,
    FrameChannel,
    OpenState,
    Outlet,
    ServerSession,
    ServerTransport,
    SharedState,
    StopPart,
    Telemetry,
)
from mcp_actors.abc.telemetry import guarded
from mcp_actors.errors import (
    LocalProtocolError,
    MalformedMessage,
    MethodNotFound,
    ResourceNotFound,
    RpcError,
    ServerStopping,
    SharedStateUnavailable,
)
from mcp_actors.supervision.blockages import Blockage, blockage_log
from mcp_actors.supervision.budget import Account, holder_of
from mcp_actors.supervision.containment import Containment, one_error, start, start_again, start_and_wait
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.printable import printable, without_places
from mcp_actors.supervision.task_kinds import BEATS, COMPANION, DRAIN, STOP_PART, TRANSPORT, WATCHED_LOOP
from mcp_actors.types import Implementation
from mcp_actors.types.records import Number, ValueRecord, frozen_record

__all__ = [
    "ServerConfig",
    "ServerRuntime",
    "ServerStatistics",
    "TransportHandler",
    "UpstreamStatistics",
]


@runtime_checkable
class SupportsStatistics(Protocol):
    """A transport that can be looked at."""

    def statistics(self) -> Any: ...


@frozen_record(eq=False, repr=False)
class UpstreamStatistics(ValueRecord):
    """A snapshot of one server behind a `~mcp_actors.gateway.Gateway`."""

    name: str
    state: str
    """``"connected"``, ``"connecting"``, ``"away"`` when the last attempt or connection has failed, or ``"idle"``."""
    server: str | None
    """The name and version that its server told, cut short."""
    version: str | None
    """The protocol version that is spoken with it."""
    connections: Number
    in_flight: Number
    callers: Number
    """Callers with a call in flight."""
    circuit: str
    """``"closed"``, ``"open"`` while requests are refused at once, or ``"half-open"``."""
    failures: Number
    """Failures in a row."""
    lost: Number
    """Connections that were lost since the gateway serves."""
    retry_after: float | None
    """Seconds until it is tried again, where requests are refused."""
    last_failure: str | None
    """The last failure, cut short."""
    is_up: bool = True
    """Whether it can be called as far as is known: false once it could not be connected to, or is refused, until it
    answers again."""
    limit: Number = 0
    """Calls that may be in flight."""
    refused: Number = 0
    """Calls that were not sent to it since the gateway serves, because it could not be called or had too many."""
    failed_connects: Number = 0
    """Attempts to connect that have failed since the gateway serves."""


@frozen_record(eq=False, repr=False)
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
    """The statistics of the transports that are served now, of those that have any."""
    totals: Totals = attrs.field(factory=Totals)
    """The events of all conversations since the server was first served, those that have ended included."""
    upstreams: tuple[UpstreamStatistics, ...] = ()
    """The servers behind it, where it is a gateway."""
    repaired: Mapping[str, int] = attrs.field(factory=dict)
    """Calls that were made with repaired arguments, by tool."""
    shared_failure: str | None = None
    """The cause for which the shared state cannot be used, ``None`` while it can be."""
    blockages: tuple[Blockage, ...] = ()
    """The last times in which a function blocked an event loop of this process, the newest first; empty without a
    watchdog."""
    turns: tuple[TurnStatistics, ...] = ()
    """The keys by which calls take turns now, those with the most calls that wait."""
    processes: tuple[ProcessStatistics, ...] = ()
    """The processes of functions with ``isolate="process"``, also of servers that are mounted."""
    names: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    """By method, the names by which calls are counted: those of the tools and prompts that are registered, or that a
    server behind it has listed, at most `MOST_NAMES` of each. Where there are too many targets there is no name."""


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
        self._sessions = SessionRegistry(bus, features.loop, lambda: self.features)
        self._handlers: list[TransportHandler] = []
        self._serving = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._delay = 0.0
        self._leaving, self._hastened, self._stopping = trio.Event(), trio.Event(), trio.Event()

    def __repr__(self) -> str:
        state = "stopping" if self.stopping else "serving" if self._serving else "not serving"
        return f"<ServerRuntime {self.name!r} {state} sessions={len(self._sessions)}>"

    @property
    def limits(self) -> Limits:
        """The bounds. Others may be set while it does not serve."""
        return self._config.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        if self._serving:
            raise LocalProtocolError("the limits of a server are set before it is served")
        self.limiter = ConcurrencyLimiter(
            "server", limits.server_max_in_flight, limits.max_waiting, limits.max_wait
        )
        self.budgets = Budgets(limits)
        self._config = msgspec.structs.replace(
            self._config, limits=limits, limiter=self.limiter, budgets=self.budgets
        )

    @property
    def shared(self) -> SharedState:
        """The place of what outlives a session. A new one is opened by the next `serve`."""
        return self._config.shared

    @shared.setter
    def shared(self, shared: SharedState) -> None:
        self._config = msgspec.structs.replace(self._config, shared=shared)

    @property
    def telemetry(self) -> Telemetry | None:
        """The receiver of each call. Another one counts from the next `serve` on."""
        return self._config.telemetry

    @telemetry.setter
    def telemetry(self, telemetry: Telemetry | None) -> None:
        self._config = msgspec.structs.replace(self._config, telemetry=telemetry)

    @property
    def watchdog(self) -> float | None:
        """Seconds after which a blocked loop is noticed. Another value counts from the next `serve` on."""
        return self._config.watchdog

    @watchdog.setter
    def watchdog(self, seconds: float | None) -> None:
        self._config = msgspec.structs.replace(self._config, watchdog=seconds)

    @property
    def upstreams(self) -> Callable[[], tuple[Any, ...]]:
        """Returns snapshots of the servers behind this one."""
        return self._config.upstreams

    @upstreams.setter
    def upstreams(self, upstreams: Callable[[], tuple[Any, ...]]) -> None:
        self._config = msgspec.structs.replace(self._config, upstreams=upstreams)

    @property
    def sessions(self) -> SessionRegistry:
        """The sessions that exist now."""
        return self._sessions

    @property
    def is_serving(self) -> bool:
        return self._serving > 0

    @property
    def stopping(self) -> bool:
        return self._leaving.is_set()

    def lose_claims(self) -> None:
        """Lets all that runs in this process count as lost, as its end would: for tests of what happens then."""
        lose_all()

    def stop(self, delay: float | None = None) -> None:
        """See `Server.stop`."""
        self.features.loop.call(self._stop, self.limits.drain_delay if delay is None else delay)

    def _stop(self, delay: float) -> None:
        if not self._leaving.is_set():
            self._delay = delay
            self._leaving.set()
        elif not delay:
            # The rest of the delay is given up.
            self._hastened.set()

    async def serve(
        self,
        transports: Sequence[ServerTransport],
        lifespan: Callable[[OpenState], AbstractAsyncContextManager[ServerScope]],
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
        unserved = None if telemetry is None else guarded(telemetry.served, self.statistics)
        try:
            # Round the lifespan too: its nursery, if it has one, wraps what a transport raises.
            with one_error():
                async with self._config.shared.open(self.name) as state, lifespan(state) as scope:
                    # A bus that leads nowhere is not worth a call for each event.
                    leave = self.bus.attach(state.bus) if state.bus.spans_processes else None
                    try:
                        await self._supervise(transports, scope, state, task_status)
                    finally:
                        if leave is not None:
                            leave()
        finally:
            if unserved is not None:
                guarded(unserved)
            self._serving -= 1
            if self._serving == 0:
                self.features.loop.end()

    def _forget(self) -> None:
        """Begins anew: also after a fork, which has a copy of what its parent serves."""
        self._serving = 0
        self._begin_anew()
        if self._sessions:
            self._sessions = SessionRegistry(self.bus, self.features.loop, lambda: self.features)
        self._handlers.clear()
        self._transports.clear()

    def replace(self, features: Features, scope: ServerScope, stamp: dict[str, Any]) -> None:
        """Serves other features from now on; clients are notified of the lists that look different.

        Calls in flight end with what they began with. The features were prepared by `Features.join`.
        """
        changed = features.take_over(self.features)
        self.features = features
        self._config = msgspec.structs.replace(self._config, features=features, stamp=stamp)
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
            handler = TransportHandler(
                self._config, scope, state, self._sessions, supervisor, self._leaving, self._stopping, self
            )
            start_again(supervisor, DRAIN, self._drain, handler, supervisor.cancel_scope)
            if self.watchdog is not None:
                start_again(
                    supervisor, WATCHED_LOOP, watch_loop, self.watchdog, lambda: len(self._all_calls())
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

    async def _drain(self, handler: TransportHandler, everything: trio.CancelScope) -> None:
        await self._leaving.wait()
        limits = self.limits
        try:
            with trio.move_on_after(self._delay):
                await self._hastened.wait()
            with trio.move_on_after(limits.drain_grace) as grace:
                await handler.run_before_stop(self._delay)
                self._stopping.set()
                for session in list(self._sessions):
                    session.stop(limits.drain_grace + limits.close_timeout)
                for each in self.exchanges():
                    each.dispatcher.drain()
                await self._until_without_calls()
            if grace.cancelled_caught:
                await self._cut()
        finally:
            # Also when draining crashes: a server that was stopped has to end.
            self._stopping.set()
            everything.cancel(reason="stopped")

    async def _cut(self) -> None:
        """Answers the calls that are left with an error, at first as their functions clean up, and then all of them."""
        self._stopping.set()
        for call in self._all_calls():
            call.end_with(stopped_call(call))
        for handler in self._handlers:
            handler.cut()
        with trio.move_on_after(self.limits.close_timeout):
            await self._until_without_calls()
        for call in self._all_calls():
            call.answer_with(stopped_call(call))

    async def _until_without_calls(self) -> None:
        """Waits until nothing is left that a server waits for which stops."""
        while True:
            if self._sessions:
                await self._sessions.ended.park()
            elif (
                each := next((each for each in self.exchanges() if each.dispatcher.calls), None)
            ) is not None:
                await each.ended.park()
            else:
                for handler in list(self._handlers):
                    await handler.until_answered()
                # A request may have arrived meanwhile that another node had forwarded before it knew.
                if not self._sessions and not self._all_calls():
                    return

    def _all_calls(self) -> list[InboundCall]:
        dispatchers = [session.dispatcher for session in self._sessions]
        dispatchers += [each.dispatcher for each in self.exchanges()]
        return [call for each in dispatchers for call in each.calls.values()]

    # -- legacy subscriptions ----------------------------------------------------------------------------------------

    def subscribe(self, ctx: Context) -> Any:
        """``resources/subscribe``; raises `ResourceNotFound` for what the server does not have."""
        uri = uri_param(ctx.params)
        if not self.features.resources.covers(uri):
            if self.features.resources.sources:
                return Continuation(self._subscribe_provided, ctx, uri)
            raise ResourceNotFound(uri)
        self.features.resources.check_seen(ctx, uri)
        self.subscribe_to(ctx, uri)
        return {}

    async def _subscribe_provided(self, ctx: Context, uri: str) -> dict[str, Any]:
        await self.features.resources.check_provided(ctx, uri)
        self.subscribe_to(ctx, uri)
        return {}

    def subscribe_to(self, ctx: Context, uri: str) -> None:
        """Subscribes the session of a call to a resource, which may be one of another server.

        Raises:
            MethodNotFound: The call belongs to no session.
            RpcError, Overloaded: It is subscribed to too many.
        """
        self._subscriber(ctx).subscribe(uri)
        if ctx.session is not None and ctx.session.watch is None:
            # The caller, by whom it is decided what it is told. Its request is kept where something may be hidden.
            caller = caller_of(ctx)
            ctx.session.watch = ListWatch(
                caller if self.features.scoped else msgspec.structs.replace(caller, request=None)
            )

    def present(self, info: Implementation) -> None:
        """Names another server as the sender in the results of stateless revisions, from now on."""
        presented = stamp_of(info, 0, "private")
        self._config.stamp.update(server_info=presented["server_info"], meta=presented["meta"])

    def unsubscribe(self, ctx: Context) -> dict[str, Any]:
        """``resources/unsubscribe``."""
        self._subscriber(ctx).unsubscribe(uri_param(ctx.params))
        return {}

    def _subscriber(self, ctx: Context) -> SessionSubscriber:
        subscriber = self._sessions.subscriber(ctx.call.owner)
        if subscriber is None:
            # Only a session remembers the subscription and where to send its updates.
            raise MethodNotFound(ctx.method)
        return subscriber

    def exchanges(self) -> Iterator[StatelessCalls]:
        """Yields the owners of calls without a session, one for each `serve` that goes on."""
        return (handler.stateless for handler in self._handlers)

    def transport_statistics(self) -> tuple[Any, ...]:
        """Returns the statistics of the transports that are served now, of those that have any."""
        return tuple(
            said
            for each in self._transports
            if isinstance(each, SupportsStatistics) and (said := each.statistics()) is not None
        )

    def processes(self) -> tuple[ProcessStatistics, ...]:
        """Returns the processes that run functions of this server, and of those that are mounted in it."""
        scopes = [each.responder.scope for each in self._handlers]
        found: list[ProcessStatistics] = []
        while scopes:
            scope = scopes.pop()
            scopes += scope.mounted.values()
            if scope.kept.processes is not None:
                found += scope.kept.processes.statistics()
        return tuple(found)

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
            dict(self.features.tools.repairs.calls),
            next((cause for each in self._handlers if (cause := each.shared.failure) is not None), None),
            tuple(blockage_log.recent),
            tuple(self.features.tools.turns.statistics()),
            self.processes(),
            self.features.counted_names(MOST_NAMES),
        )


# -- What a transport brings: a connection, an exchange, or messages for a session ---

CONNECTION_RULES = DispatchRules(answers_malformed=True)
# Characters of the cause of a failure that everybody is told.
LONGEST_CAUSE = 200
# Names of one kind in a snapshot: far more than clients list.
MOST_NAMES = 1000
# Tasks kept for calls to come of all sessions and exchanges without a connection, each of some 4 KiB.
SHARED_IDLE_TASKS = 1024


class ServerConfig(msgspec.Struct, frozen=True, eq=False):
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
    state_key: bytes
    telemetry: Telemetry | None = None
    upstreams: Callable[[], tuple[Any, ...]] = tuple
    """Returns snapshots of the servers behind this one."""
    watchdog: float | None = None
    """Seconds after which a loop that does not go on counts as blocked; ``None`` for no watchdog."""

    def __repr__(self) -> str:
        # The key is shown to nobody.
        return f"<ServerConfig of {self.name!r}>"


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
        running: The live side of the server, for snapshots of it.
    """

    def __init__(
        self,
        config: ServerConfig,
        scope: ServerScope,
        shared: OpenState,
        sessions: SessionRegistry,
        nursery: trio.Nursery,
        leaving: trio.Event,
        stopping: trio.Event,
        running: object,
    ) -> None:
        self.leaving = leaving
        self.stopping = stopping
        self.parts: dict[int, StopPart] = {}
        """What `stops_with` was given for what goes on now."""
        self.running = running
        self.shared = shared
        self._config = config
        self._sessions = sessions
        self._nursery = nursery
        beats = Beats(config.limits.beat)
        start_again(nursery, BEATS, beats.run)
        self._pool = TaskPool(nursery, SHARED_IDLE_TASKS)
        # Several connections are read in a turn, and none of them knows of the others: their calls are better begun
        # one after the other, behind the reading.
        self._pool.is_eager = False
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

    # -- the end -----------------------------------------------------------------------------------------------------

    @contextmanager
    def stops_with(self, part: StopPart) -> Iterator[None]:
        self.parts[id(part)] = part
        try:
            yield
        finally:
            del self.parts[id(part)]

    async def run_before_stop(self, delay: float) -> None:
        """Has every part of a binding do what it has to before the stop."""
        async with trio.open_nursery() as nursery:
            for part in self.parts.values():
                start(nursery, STOP_PART, part.before_stop, delay, about="before")

    async def until_answered(self) -> None:
        """Waits until the bindings have answered what is no call."""
        async with trio.open_nursery() as nursery:
            for part in self.parts.values():
                start(nursery, STOP_PART, part.until_answered, about="answers")

    def cut(self) -> None:
        """Has the bindings answer what is left."""
        for part in list(self.parts.values()):
            with Containment(STOP_PART):
                part.cut()

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

    def missing(self) -> list[str]:
        found: list[str] = []
        if (cause := self.shared.failure) is not None:
            found.append(f"shared state: {printable(without_places(cause), LONGEST_CAUSE)}")
        upstreams = self._config.upstreams()
        if upstreams and not any(each.is_up for each in upstreams):
            many = len(upstreams)
            found.append(f"upstreams: {'the only one is away' if many == 1 else f'all {many} are away'}")
        return found

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
            peer=peer,
        )
        self._sessions.add(session, negotiation.legacy, principal)
        return session

    def hand_over(self, session: ServerSession) -> bytes | None:
        assert isinstance(session, ConnectionlessSession)
        return self._sessions.hand_over(session, self.shared.bus.position)

    async def go_on(
        self, record: bytes, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ConnectionlessSession:
        try:
            known = msgspec.json.decode(record, type=SessionRecord)
        except msgspec.MsgspecError as error:
            raise LocalProtocolError(f"a session was handed over in another form: {error}") from error
        if known.version not in self._negotiation.legacy_served:
            raise LocalProtocolError(f"a session was handed over of the version {known.version!r:.40}")
        session = self.open_session(outlet, principal, peer)
        try:
            self._sessions.go_on(session, known)
            try:
                published = await self.shared.bus.since(known.position)
            except SharedStateUnavailable:
                published = None
            self._sessions.catch_up(session, published)
        except BaseException:
            session.close()
            raise
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


def stopped_call(call: InboundCall) -> ServerStopping:
    """Returns the answer to a call that is left when a server that stops has no more time for it."""
    if call.state == "waiting":
        return ServerStopping()
    target = shown_target(call.invocation)
    what = call.invocation.method.name if target is None else f"{call.invocation.method.name} {target}"
    progress = None if call.reports is None else call.reports.last
    return ServerStopping.cut(what, trio.current_time() - call.started, progress)


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
