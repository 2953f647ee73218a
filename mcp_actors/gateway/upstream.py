"""The actor of one upstream: it connects to its server, leases its connections to calls, and knows how the server is.

A call takes one `Lease` where it goes to the upstream, and everything that it takes up there is given back where that
ends: its place among the calls in flight, and its connection.

A connection is made by a task of the gateway, so that all who need it wait for one attempt, and none of them ends it by
being cancelled. A failure costs the requests for this upstream alone. A lost connection is made again when it is
needed, and at once where all callers share it; a `CircuitBreaker` says when it is tried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol

import attrs
import trio

from mcp_actors._eras.era import EventKind
from mcp_actors._server.names import NameTable
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.runtime import UpstreamStatistics
from mcp_actors.abc import ClientTransport, Telemetry
from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
)
from mcp_actors.client import Client, ClientPool, Target
from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    McpError,
    Overloaded,
    RpcError,
    SessionExpired,
    UpstreamUnavailable,
)
from mcp_actors.gateway.breaker import LONGEST_FAILURE, CircuitState, UpstreamHealth
from mcp_actors.gateway.callbacks import UpstreamCallbacks
from mcp_actors.gateway.connections import (
    FIRST,
    LOOP,
    SHARED,
    AloneKey,
    ConnectionTable,
    GatewayCircle,
    Key,
    UpstreamConnection,
    UpstreamLoad,
    key_of,
)
from mcp_actors.gateway.held_calls import HeldCall, HeldCalls
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable, without_paths
from mcp_actors.supervision.task_kinds import UPSTREAM_CLOSE, UPSTREAM_CONNECT, UPSTREAM_PING
from mcp_actors.types import ClientCapabilities

__all__ = ["Lease", "UpstreamActor", "UpstreamObserver"]

# Seconds for which an upstream that is connected to from the start waits for a first caller, with whose capabilities
# the connection is then made: behind a gateway over stdio there is one at once.
FIRST_CALLER = 1.0
# Seconds between an attempt without a caller that failed, and the next one.
TRY_AGAIN = 1.0
# Seconds in which a server has to be connected to, what it installs at its first start included.
CONNECT_TIMEOUT = 60.0
# Seconds in which a server has to say that it is alive, once a call ran out of its time.
PING_TIMEOUT = 5.0
# Seconds for which a connection without a session is kept that is not used.
IDLE_TIMEOUT = 300.0
# Seconds between looks for such connections.
SWEEP_INTERVAL = 30.0


class UpstreamObserver(Protocol):
    """Receives what happens to the connections of upstreams."""

    held: HeldCalls
    """The calls whose clients are asked by results."""
    telemetry: Telemetry | None
    """The receiver of the requests to upstreams."""
    circle: GatewayCircle
    """Ends the requests that have come back."""

    def is_current(self, actor: UpstreamActor) -> bool:
        """Whether calls still go to an upstream: it was not taken out, and no other one is in its place."""

    def connected(self, actor: UpstreamActor, connection: UpstreamConnection) -> None:
        """A connection was made."""

    def closed(self, actor: UpstreamActor, connection: UpstreamConnection, *, lost: bool) -> None:
        """A connection has ended, because it was lost or is not needed any more."""

    def changed(
        self, actor: UpstreamActor, connection: UpstreamConnection, kind: EventKind, uri: str | None
    ) -> None:
        """A list has changed on the server, or a resource."""

    def names_of(self, upstream: Upstream) -> NameTable:
        """Returns the names that an upstream has in the gateway."""

    def is_listed(self, actor: UpstreamActor, method: str, name: str) -> bool:
        """Whether the server has listed a tool or prompt, which is called by ``method``."""


# Names of tools and prompts of one upstream by which telemetry tells calls apart.
MOST_LABELS = 1000


class UpstreamTelemetry(Telemetry):
    """Passes on what happens at one upstream, with its name: equal names of tools at two upstreams are two tools.

    Args:
        inner: Receives it.
        upstream: The name of the upstream.
        is_listed: Says of a method and a name whether the upstream has listed what is called so.
    """

    def __init__(self, inner: Telemetry, upstream: str, is_listed: Callable[[str, str], bool]) -> None:
        self._inner = inner
        self._upstream = upstream
        self._is_listed = is_listed
        self._labels: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<UpstreamTelemetry of {self._upstream} labels={len(self._labels)}>"

    def inbound(self, request: ObservedRequest) -> Observation | None:
        """Receives what the upstream asks."""
        return self._inner.inbound(request)

    def outbound(self, request: ObservedRequest) -> OutboundObservation | None:
        """Receives a request for the upstream."""
        request.upstream = self._upstream
        self.name(request)
        observation = self._inner.outbound(request)
        return None if observation is None else _UpstreamObservation(self, request, observation)

    def session_began(self, side: Literal["server", "client"]) -> None:
        self._inner.session_began(side)

    def session_ended(self, session: ObservedSession) -> None:
        self._inner.session_ended(session)

    def name(self, request: ObservedRequest) -> None:
        """Notes in a request whether its target is a name that the upstream has listed, of a bounded number."""
        if request.target is not None:
            key = request.method, request.target
            if key not in self._labels and len(self._labels) < MOST_LABELS and self._is_listed(*key):
                self._labels.add(key)
            request.is_registered = key in self._labels


class _UpstreamObservation(OutboundObservation):
    """Observes one request for an upstream, which may list its tools while that is on its way."""

    __slots__ = ("_observation", "_request", "_telemetry")

    def __init__(
        self, telemetry: UpstreamTelemetry, request: ObservedRequest, observation: OutboundObservation
    ) -> None:
        super().__init__(getattr(observation, "meta", None))
        self._telemetry = telemetry
        self._request = request
        self._observation = observation

    def ended(self, ending: CallEnding) -> None:
        self._telemetry.name(self._request)
        self._observation.ended(ending)


@attrs.define(eq=False)
class _OpenAttempt:
    """A connection that is being made, for all who wait for it."""

    declared: ClientCapabilities
    caller: str | None = None
    is_of_session: bool = False
    """Whether it will serve one session of a client alone."""
    done: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: McpError | None = None


class Lease:
    """One call's use of an upstream: its place among the calls in flight, and its connection.

    `UpstreamActor.lease` and `UpstreamActor.wait_for_lease` take one. It ends once: by `end`, or with the block whose
    context manager it is. What it says of the server stays true after that.
    """

    __slots__ = ("caller", "connection", "ctx", "era", "held", "upstream")

    def __init__(
        self,
        upstream: UpstreamActor,
        connection: UpstreamConnection,
        ctx: Context[Any],
        caller: str,
        held: HeldCall | None = None,
    ) -> None:
        self.upstream = upstream
        self.connection = connection
        self.ctx = ctx
        self.caller = caller
        self.held = held
        self.era = connection.server.negotiated.era
        """The revision that is spoken with the server."""
        connection.calls[ctx] = held

    def __repr__(self) -> str:
        return f"<Lease of {self.upstream.settings.name} for {self.ctx.method}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def present(self) -> Context[Any] | None:
        """The request of the client that waits for the call now, ``None`` while the client is asked by a result."""
        return self.ctx if self.held is None else self.held.ctx

    def end(self) -> None:
        """Gives everything back, because the call has ended."""
        upstream, connection = self.upstream, self.connection
        del connection.calls[self.ctx]
        connection.idle_since = trio.current_time()
        upstream.load.end(self.caller)
        upstream.give_back(connection)
        upstream.close_if_over()


class UpstreamActor:
    """One upstream of a gateway, for the length of one `serve`.

    Args:
        settings: The settings of the server.
        nursery: Owns the tasks that connect.
        pool: Owns the clients.
        observer: Receives when a connection was made or has ended, and what changes on the server.
    """

    def __init__(
        self,
        settings: Upstream,
        nursery: trio.Nursery,
        pool: ClientPool,
        observer: UpstreamObserver,
    ) -> None:
        self.settings = settings
        self.names = observer.names_of(settings)
        """The names that it has in the gateway."""
        self.health = UpstreamHealth()
        self.load = UpstreamLoad(settings.max_in_flight, settings.max_notifications)
        self.connections = ConnectionTable(settings.max_connections)
        self.met: UpstreamConnection | None = None
        """The last connection that was made, which says what the server is; ``None`` before the first one."""
        self._nursery = nursery
        self._pool = pool
        self._observer = observer
        telemetry, is_listed = observer.telemetry, partial(observer.is_listed, self)
        self._telemetry = (
            None if telemetry is None else UpstreamTelemetry(telemetry, settings.name, is_listed)
        )
        self._attempts: dict[object, _OpenAttempt] = {}
        # Whether one connection serves all callers; None as long as that is unknown.
        self._shares: bool | None = {"auto": None, "shared": True, "own": False}[settings.sessions]
        self._news = trio.lowlevel.ParkingLot()
        self._asking_alive = False

    def __repr__(self) -> str:
        return f"<UpstreamActor {self.settings.name} {self.connections!r} {self.health!r}>"

    @property
    def held(self) -> HeldCalls:
        """The calls whose clients are asked by results, those of all upstreams."""
        return self._observer.held

    @property
    def circle(self) -> GatewayCircle:
        """Ends the requests that have come back."""
        return self._observer.circle

    # -- for those who make requests -------------------------------------------------------------------------------

    def lease(self, ctx: Context[Any]) -> Lease | None:
        """Takes a lease for a call whose caller has an open connection; ``None`` if one has to be made.

        Raises:
            RpcError: The request has come back to this gateway.
            Overloaded: The caller, or all of them, have too many calls in flight.
            UpstreamUnavailable: The upstream has failed too often, and is not tried for a while.
        """
        self.circle.require_new(ctx)
        caller = caller_of(ctx)
        connection: UpstreamConnection | None = None
        with self.health.counting_refusals():
            self.load.begin(caller)
            try:
                connection = self._take(ctx)
            finally:
                if connection is None:
                    self.load.end(caller)
        return None if connection is None else Lease(self, connection, ctx, caller)

    async def wait_for_lease(self, ctx: Context[Any], held: HeldCall | None) -> Lease:
        """Takes a lease for a call, and makes a connection for its caller if necessary.

        Args:
            ctx: The call.
            held: The call as one that is held, if it may be.

        Raises:
            RpcError: The request has come back to this gateway.
            Overloaded: There are too many calls in flight, or too many connections.
            UpstreamUnavailable: A connection could not be made.
        """
        self.circle.require_new(ctx)
        caller = caller_of(ctx)
        with self.health.counting_refusals():
            self.load.begin(caller)
            try:
                connection = await self._connect(ctx)
            except BaseException:
                self.load.end(caller)
                self.close_if_over()
                raise
        return Lease(self, connection, ctx, caller, held)

    @asynccontextmanager
    async def borrowed(self, ctx: Context[Any]) -> AsyncIterator[UpstreamConnection]:
        """Yields a connection for a caller, for what the gateway itself asks there: this is not counted as a call.

        Raises:
            UpstreamUnavailable: A connection could not be made, or another upstream has taken the place of this one.
            Overloaded: There are too many connections.
        """
        connection = await self._connect(ctx)
        try:
            if not self._observer.is_current(self):
                raise UpstreamUnavailable(self.settings.name, "its settings have changed meanwhile")
            yield connection
        finally:
            self.give_back(connection)

    @property
    def is_shared(self) -> bool:
        """Whether one connection serves all callers, who see the same over it; false as long as that is unknown."""
        return bool(self._shares)

    def open_connection(self, ctx: Context[Any]) -> UpstreamConnection | None:
        """Returns the connection that a call of this caller would have now, to look at; ``None`` without one."""
        try:
            connection = self._take(ctx)
        except UpstreamUnavailable:
            return None
        if connection is not None:
            self.give_back(connection)
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Takes a connection back from its user. One that a call had alone is free for the next one, or closed."""
        if self.connections.give_back(connection):
            self._close(connection)

    def _take(self, ctx: Context[Any]) -> UpstreamConnection | None:
        """Returns the open connection for a caller, ``None`` if one has to be made; it is given back by `give_back`.

        Raises:
            UpstreamUnavailable: The upstream has failed too often, and is not tried for a while.
        """
        breaker = self.health.breaker
        if breaker.state is CircuitState.OPEN and (left := breaker.seconds_left()) is not None:
            raise UpstreamUnavailable(self.settings.name, "it has failed several times in a row", left)
        return self.connections.take(self._key_of(ctx))

    async def _connect(self, ctx: Context[Any]) -> UpstreamConnection:
        """Returns a connection for a caller, and makes one if necessary. Callers of one connection wait together.

        Cancelled, the connection is made all the same.

        Raises:
            UpstreamUnavailable: It could not be made.
            Overloaded: There are too many connections.
        """
        while (connection := self._take(ctx)) is None:
            key = self._key_of(ctx)
            # As long as it is unknown who shares, all wait for the first connection, which shows it.
            attempt = self._any_attempt() if self._shares is None else self._attempts.get(key)
            if attempt is None:
                caller = caller_of(ctx)
                if not ctx.peer.raw_capabilities and self.connections.adopt(key, caller):
                    continue
                is_of_session = self._shares is not None and isinstance(key, PeerSession)
                attempt = self._begin(key, _OpenAttempt(ctx.peer.capabilities, caller, is_of_session))
            await attempt.done.wait()
            if attempt.failure is not None:
                if isinstance(attempt.failure, Overloaded):
                    raise attempt.failure
                left = self.health.breaker.seconds_left()
                raise UpstreamUnavailable(self.settings.name, "it cannot be connected to", left)
        return connection

    def can_answer(self, method: str) -> bool:
        """Whether its server has a method; before it was met, it may have any."""
        if self.met is None:
            return True
        negotiated = self.met.server.negotiated
        found = negotiated.era.server_methods.get(method)
        return found is not None and (found.requires is None or found.requires in negotiated.declared)

    def answered(self, connection: UpstreamConnection) -> None:
        """Takes note that the server has answered, be it with an error."""
        connection.has_answered = True
        if self.health.breaker.failures:
            self.health.breaker.succeeded()

    def timed_out(self, connection: UpstreamConnection) -> None:
        """Takes note that a call ran out of its time.

        That may be the fault of the call alone, which one caller must not make the fault of the server: so the server
        is asked whether it is alive.
        """
        if not self._asking_alive:
            self._asking_alive = True
            name = self.settings.name
            start(self._nursery, UPSTREAM_PING, self._ask_alive, connection, about=name)

    # -- connections -------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Connects before the first call, and again when a connection that all share was lost.

        Returns when it is known that each caller needs a connection of its own.
        """
        with trio.move_on_after(FIRST_CALLER):
            while self.met is None and not self._attempts:
                await self._news.park()
        while self._observer.is_current(self) and (self._shares is not False or self.met is None):
            if self._attempts or self.connections.take(SHARED) is not None:
                await self._news.park()
            elif (left := self.health.breaker.seconds_left()) is not None:
                await trio.sleep(left)
            else:
                key = SHARED if self._shares else FIRST
                attempt = self._begin(key, _OpenAttempt(ClientCapabilities()))
                await attempt.done.wait()
                if attempt.failure is not None:
                    await trio.sleep(TRY_AGAIN)

    def retire(self) -> None:
        """Called when no new calls go to it: its connections are closed when its calls in flight have ended.

        Each of these ends in its own time, at the latest by the cap of calls.
        """
        self._news.unpark_all()
        self.close_if_over()

    def close_if_over(self) -> None:
        """Closes all connections if no new calls go to it, and no call of it is in flight."""
        if not self.load.in_flight and not self._observer.is_current(self):
            for each in self.connections:
                self._close(each)

    async def _ask_alive(self, connection: UpstreamConnection) -> None:
        try:
            await connection.client.ping(timeout=PING_TIMEOUT)
        except RpcError:
            self.answered(connection)
        except McpError as error:
            self.health.failed(f"it does not answer: {error}")
        else:
            self.answered(connection)
        finally:
            self._asking_alive = False

    async def sweep(self) -> None:
        """Closes connections that were not used for a while. Returns when no calls go to it any more."""
        while self._observer.is_current(self):
            await trio.sleep(SWEEP_INTERVAL)
            for each in self.connections.idle_for(IDLE_TIMEOUT):
                self._close(each)

    def _any_attempt(self) -> _OpenAttempt | None:
        return next(iter(self._attempts.values()), None)

    def _begin(self, key: Key, attempt: _OpenAttempt) -> _OpenAttempt:
        opening = sum(each.caller == attempt.caller for each in self._attempts.values())
        superfluous = self.connections.require_room(attempt.caller, opening)
        if superfluous is not None:
            self._close(superfluous)
        # Each call that has a connection alone needs one of its own, and the others of one key wait together.
        self._attempts[attempt if isinstance(key, AloneKey) else key] = attempt
        self.connections.opening += 1
        if isinstance(key, PeerSession) and self._shares is False:
            # Only this client waits for it: no process is started to the end for a client that has gone.
            key.on_end(self, attempt.scope.cancel)
        start(self._nursery, UPSTREAM_CONNECT, self._open, key, attempt, about=self.settings.name)
        self._news.unpark_all()
        return attempt

    async def _open(self, key: Key, attempt: _OpenAttempt) -> None:
        attempt.failure = UpstreamUnavailable(self.settings.name, "it cannot be connected to")
        try:
            connection = self._connection(attempt)
            with trio.move_on_after(CONNECT_TIMEOUT) as in_time, attempt.scope:
                await self._pool.open(connection.client)
            if attempt.scope.cancelled_caught:
                return
            if in_time.cancelled_caught:
                raise ConnectFailed(f"it was not connected within {CONNECT_TIMEOUT:g} s")
            connection.client._connectivity.session.pace = self.load.pace
            connection.opened()
            if self._shares is None:
                self._shares = not connection.server.keeps_session
                key = SHARED if self._shares else key
            self.connections.put(key, connection)
            self.met = connection
            attempt.failure = None
            if self.health.connected():
                # As loud as the line on its absence, so that whoever reads that reads this.
                log.warning("an upstream is connected again", upstream=self.settings.name)
            if isinstance(key, PeerSession):
                key.on_end(self, lambda: self._close(connection))
            self._observer.connected(self, connection)
            self.close_if_over()
        except Exception as error:
            self._not_opened(attempt, error)
            if not isinstance(error, McpError):
                raise
            attempt.failure = error
        finally:
            self.connections.opening -= 1
            self._attempts = {each: made for each, made in self._attempts.items() if made is not attempt}
            attempt.done.set()
            self._news.unpark_all()

    def _not_opened(self, attempt: _OpenAttempt, error: Exception) -> None:
        if attempt.is_of_session and isinstance(error, RpcError) and error.code == LOOP:
            # The server is there for others: it is before this gateway for that session alone.
            log.info("a session does not reach an upstream, which is before it", upstream=self.settings.name)
            return
        if isinstance(error, RpcError) and attempt.declared != ClientCapabilities():
            # The server is there, and has refused what this client declares.
            self.health.refused(str(error))
        else:
            self.health.failed(str(error))
        # It is tried for as long as it is away: one line says so, and not one for each attempt.
        self.health.failed_connects += 1
        level = log.info if self.health.is_away else log.warning
        level(
            "an upstream cannot be connected to",
            upstream=self.settings.name,
            error=without_paths(_reason_of(error)),
        )
        self.health.is_away = True

    def _close(self, connection: UpstreamConnection, *, lost: bool = False) -> None:
        if self.connections.remove(connection):
            self._observer.closed(self, connection, lost=lost)
            start(
                self._nursery, UPSTREAM_CLOSE, self._pool.close, connection.client, about=self.settings.name
            )

    def lost(self, connection: UpstreamConnection, why: ConnectionLost | SessionExpired) -> None:
        """Takes note that a connection is lost, which its client or a call that could not be sent finds out first."""
        if connection in self.connections:
            # One client's calls may have ended the server that it has alone, which says nothing of the others'.
            was_good = connection.has_answered or connection.is_of_one
            self.health.lost_connection(str(why), was_good=was_good)
            text = without_paths(_reason_of(why))
            log.warning("the connection to an upstream was lost", upstream=self.settings.name, error=text)
            self._close(connection, lost=True)
            self._news.unpark_all()

    def _connection(self, attempt: _OpenAttempt) -> UpstreamConnection:
        connection = UpstreamConnection(attempt.declared, attempt.caller)
        settings = self.settings
        try:
            connection.client = Client(
                self._target(),
                era=settings.era,
                timeout=settings.timeout,
                cap=settings.cap,
                auth=settings.auth,
                answer_input=False,
                telemetry=self._telemetry,
                on_lost=partial(self.lost, connection),
                on_change=partial(self._observer.changed, self, connection),
                **UpstreamCallbacks(connection).options(
                    self.circle.declared_in(attempt.declared, is_of_session=attempt.is_of_session)
                ),
            )
        except (ValueError, TypeError) as error:
            # What a function of the program has returned is known only now.
            raise ConnectFailed(f"its target cannot be used: {error}") from error
        requests = connection.client._requests
        requests.options = attrs.evolve(requests.options, waits_for_server=False)
        return connection

    def _target(self) -> Target:
        target = self.settings.target
        return target() if callable(target) and not isinstance(target, ClientTransport) else target

    def _key_of(self, ctx: Context[Any]) -> Key:
        if not self._shares:
            return key_of(ctx)
        if self.met is None or self.met.server.names_requests or ctx.call.invocation.peer.log_level is None:
            return SHARED
        # Over a connection that does not say whose they are, the log messages of several callers would mix. A session
        # whose client has set no level needs no other connection.
        return key_of(ctx)

    # -- watching ----------------------------------------------------------------------------------------------------

    def statistics(self) -> UpstreamStatistics:
        """Returns a snapshot of it."""
        met, health = self.met, self.health
        if any(each.is_open for each in self.connections):
            state = "connected"
        elif self._attempts:
            state = "connecting"
        else:
            state = "idle" if health.last_failure is None else "away"
        info = None if met is None else met.server.negotiated.info
        return UpstreamStatistics(
            name=self.settings.name,
            state=state,
            server=None if info is None else printable(f"{info.name} {info.version}", LONGEST_FAILURE),
            version=None if met is None else met.server.negotiated.era.version,
            connections=len(self.connections),
            in_flight=self.load.in_flight,
            callers=self.load.callers,
            circuit=health.breaker.state.value,
            failures=health.breaker.failures,
            lost=health.lost,
            retry_after=health.breaker.seconds_left(),
            last_failure=health.last_failure,
            is_up=health.is_up,
            limit=self.load.limit,
            refused=health.refused_calls,
            failed_connects=health.failed_connects,
        )


def _reason_of(error: Exception) -> str:
    """Returns what the log says of a failure: what a process has written to its stderr is there already."""
    if isinstance(error, ConnectionLost):
        error = error.renewed()
        error.stderr = ()
    return str(error)
