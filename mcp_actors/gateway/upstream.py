"""The actor of one upstream: it connects to its server, keeps count of what is asked of it, and knows how it is.

A connection is made by a task of the gateway, so that all who need it wait for one attempt, and none of them ends it by
being cancelled. What fails costs the requests for this upstream alone. A connection that is lost is made again when it
is needed, and at once where all callers share it; a `CircuitBreaker` says when it is tried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from mcp_actors._eras.era import EventKind
from mcp_actors._server.peer_session import PeerSession
from mcp_actors.abc import ClientTransport, Telemetry
from mcp_actors.client import ClientPool, Target
from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    McpError,
    Overloaded,
    RpcError,
    SessionExpired,
    UpstreamUnavailable,
)
from mcp_actors.gateway.breaker import LONGEST_FAILURE, UpstreamHealth
from mcp_actors.gateway.connections import (
    FIRST,
    SHARED,
    AloneKey,
    ConnectionTable,
    Key,
    UpstreamConnection,
    UpstreamLoad,
    key_of,
)
from mcp_actors.gateway.held_calls import HeldCalls
from mcp_actors.gateway.upstream_settings import Upstream, UpstreamStatistics
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable, without_paths
from mcp_actors.supervision.task_kinds import UPSTREAM_CLOSE, UPSTREAM_CONNECT, UPSTREAM_PING
from mcp_actors.types import ClientCapabilities

__all__ = ["UpstreamActor", "UpstreamObserver"]

# Seconds for which an upstream that is connected to from the start waits for a first caller, with whose capabilities
# the connection is then made: behind a gateway over stdio there is one at once.
FIRST_CALLER = 1.0
# Seconds between an attempt without a caller that failed, and the next one.
TRY_AGAIN = 1.0
# Seconds in which a server has to be connected to, what it installs at its first start included.
CONNECT_TIMEOUT = 60.0
# Seconds in which a server has to say that it is alive, once a call ran out of its time.
PING_TIMEOUT = 5.0
# Seconds for which a connection is kept that is nobody's and that nobody uses.
IDLE_TIMEOUT = 300.0
# Seconds between looks for such connections.
SWEEP_INTERVAL = 30.0


class UpstreamObserver(Protocol):
    """Is told what happens to the connections of upstreams."""

    held: HeldCalls
    """The calls whose clients are asked by results."""
    telemetry: Telemetry | None
    """The receiver of the requests to upstreams."""

    def connected(self, actor: UpstreamActor, connection: UpstreamConnection) -> None:
        """A connection was made."""

    def closed(self, actor: UpstreamActor, connection: UpstreamConnection, *, lost: bool) -> None:
        """A connection has ended, because it was lost or because nobody needs it."""

    def changed(
        self, actor: UpstreamActor, connection: UpstreamConnection, kind: EventKind, uri: str | None
    ) -> None:
        """A list has changed on the server, or a resource."""


@attrs.define(eq=False)
class _OpenAttempt:
    """A connection that is being made, for all who wait for it."""

    declared: ClientCapabilities
    caller: str | None = None
    done: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: McpError | None = None


class UpstreamActor:
    """One upstream of a gateway, for the length of one `serve`.

    Args:
        settings: The settings of the server.
        nursery: Owns the tasks that connect.
        pool: Owns the clients.
        observer: Is told when a connection was made or has ended, and what changes on the server.
    """

    def __init__(
        self,
        settings: Upstream,
        nursery: trio.Nursery,
        pool: ClientPool,
        observer: UpstreamObserver,
    ) -> None:
        self.settings = settings
        self.health = UpstreamHealth()
        self.load = UpstreamLoad(settings.max_in_flight, settings.max_notifications)
        self.connections = ConnectionTable(settings.max_connections)
        self.met: UpstreamConnection | None = None
        """The last connection that was made, which says what the server is; ``None`` before the first one."""
        self._nursery = nursery
        self._pool = pool
        self._observer = observer
        self._attempts: dict[object, _OpenAttempt] = {}
        # Whether one connection serves everybody; None as long as nobody knows.
        self._shares: bool | None = {"auto": None, "shared": True, "own": False}[settings.sessions]
        self._news = trio.lowlevel.ParkingLot()
        self._asking_alive = False

    def __repr__(self) -> str:
        return f"<UpstreamActor {self.settings.name} {self.connections!r} {self.health!r}>"

    @property
    def held(self) -> HeldCalls:
        """The calls whose clients are asked by results, those of all upstreams."""
        return self._observer.held

    # -- for whoever makes requests --------------------------------------------------------------------------------

    def at_hand(self, ctx: Context[Any]) -> UpstreamConnection | None:
        """Returns the open connection for a caller, ``None`` if one has to be made; it is given back by `give_back`.

        Raises:
            UpstreamUnavailable: The upstream has failed too often, and is not tried for a while.
        """
        left = self.health.breaker.seconds_left()
        if left is not None:
            raise UpstreamUnavailable(self.settings.name, "it has failed several times in a row", left)
        return self.connections.take(self._key_of(ctx))

    async def connect(self, ctx: Context[Any]) -> UpstreamConnection:
        """Returns a connection for a caller, which is made if there is none. Callers of one connection wait together.

        Cancelled, the connection is made all the same.

        Raises:
            UpstreamUnavailable: It could not be made.
            Overloaded: There are too many connections.
        """
        while (connection := self.at_hand(ctx)) is None:
            key = self._key_of(ctx)
            # As long as nobody knows who shares, all wait for the first connection, which shows it.
            attempt = self._any_attempt() if self._shares is None else self._attempts.get(key)
            if attempt is None:
                caller = caller_of(ctx)
                if not ctx.peer.raw_capabilities and self.connections.adopt(key, caller):
                    continue
                attempt = self._begin(key, _OpenAttempt(ctx.peer.capabilities, caller))
            await attempt.done.wait()
            if attempt.failure is not None:
                if isinstance(attempt.failure, Overloaded):
                    raise attempt.failure
                left = self.health.breaker.seconds_left()
                raise UpstreamUnavailable(self.settings.name, "it cannot be connected to", left)
        return connection

    @asynccontextmanager
    async def borrowed(self, ctx: Context[Any]) -> AsyncIterator[UpstreamConnection]:
        """Yields a connection for a caller, as `connect` finds or makes it, and gives it back after the block."""
        connection = self.at_hand(ctx) or await self.connect(ctx)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def give_back(self, connection: UpstreamConnection) -> None:
        """A call over a connection has ended; one that a call has alone is free for the next one, or closed."""
        if self.connections.give_back(connection):
            self._close(connection)

    def can_answer(self, method: str) -> bool:
        """Whether its server has a method, as far as anybody knows."""
        if self.met is None:
            return True
        negotiated = self.met.client._connectivity.negotiated
        found = negotiated.era.server_methods.get(method)
        return found is not None and (found.requires is None or found.requires in negotiated.declared)

    def answered(self, connection: UpstreamConnection) -> None:
        """Takes note that the server has answered, be it with an error."""
        connection.has_answered = True
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
        """Connects before anybody calls, and again when a connection that all share was lost.

        Returns when it is known that each caller needs a connection of its own.
        """
        with trio.move_on_after(FIRST_CALLER):
            while self.met is None and not self._attempts:
                await self._news.park()
        while self._shares is not False or self.met is None:
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
        """Closes connections that nobody has used for a while. Never returns."""
        while True:
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
            # Nobody else waits for it: no process is started to the end for a client that has gone.
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
            connection.traits = connection.found_traits()
            if self._shares is None:
                self._shares = not connection.keeps_session
                key = SHARED if self._shares else key
            self.connections.put(key, connection)
            self.met = connection
            attempt.failure = None
            self.health.is_away = False
            if isinstance(key, PeerSession):
                key.on_end(self, lambda: self._close(connection))
            self._observer.connected(self, connection)
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
        if isinstance(error, RpcError) and attempt.declared != ClientCapabilities():
            # The server is there, and has refused what this client declares.
            self.health.refused(str(error))
        else:
            self.health.failed(str(error))
        # It is tried for as long as it is away: one line says so, and not one for each attempt.
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

    def _was_lost(self, connection: UpstreamConnection, why: ConnectionLost | SessionExpired) -> None:
        if connection in self.connections:
            # One client's calls may have ended the server that it has alone, which says nothing of the others'.
            was_good = connection.has_answered or connection.is_of_one
            self.health.lost_connection(str(why), was_good=was_good)
            text = without_paths(_reason_of(why))
            log.warning("the connection to an upstream was lost", upstream=self.settings.name, error=text)
            self._close(connection, lost=True)
            self._news.unpark_all()

    def _connection(self, attempt: _OpenAttempt) -> UpstreamConnection:
        try:
            connection = UpstreamConnection(
                self.settings,
                self._target(),
                attempt.declared,
                self._observer.telemetry,
                self._was_lost,
                partial(self._observer.changed, self),
            )
        except (ValueError, TypeError) as error:
            # What a function of the program has returned is known only now.
            raise ConnectFailed(f"its target cannot be used: {error}") from error
        connection.caller = attempt.caller
        return connection

    def _target(self) -> Target:
        target = self.settings.target
        return target() if callable(target) and not isinstance(target, ClientTransport) else target

    def _key_of(self, ctx: Context[Any]) -> Key:
        if not self._shares:
            return key_of(ctx)
        if ctx.peer.log_level is not None and self.met is not None and not self.met.traits.names_requests:
            # Over a connection that does not tell whose they are, the log messages of several callers would mix. A
            # session whose client has set no level is no reason for another connection.
            return key_of(ctx)
        return SHARED

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
        info = None if met is None else met.client._connectivity.negotiated.info
        return UpstreamStatistics(
            name=self.settings.name,
            state=state,
            server=None if info is None else printable(f"{info.name} {info.version}", LONGEST_FAILURE),
            version=None if met is None else met.era.version,
            connections=len(self.connections),
            in_flight=self.load.in_flight,
            callers=self.load.callers,
            circuit=health.breaker.state.value,
            failures=health.breaker.failures,
            lost=health.lost,
            retry_after=health.breaker.seconds_left(),
            last_failure=health.last_failure,
        )


def _reason_of(error: Exception) -> str:
    """Returns what the log says of a failure: what a process has written to its stderr is there already."""
    if isinstance(error, ConnectionLost):
        error = error.renewed()
        error.stderr = ()
    return str(error)
