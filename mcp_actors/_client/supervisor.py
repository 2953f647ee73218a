"""The owner of a client's connection: it connects, agrees, notices the end, and connects again when told to.

Everything of a client lives in one nursery that is opened by ``async with Client`` and closed with it. The connection
is held by one task in there, so that closing is legal from any other.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

import attrs
import trio

from mcp_actors._actors.deadline import Deadline
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.session import Session
from mcp_actors._client.handshake import ClientConnection, HandshakeOptions, Negotiated
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LATEST_LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors._exception_groups import one_error
from mcp_actors.abc import ClientTransport, ConnectionHandler, ServerTransport
from mcp_actors.discovery import client_transport
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, SessionExpired

__all__ = ["Supervisor", "Target"]


@runtime_checkable
class InProcessServer(Protocol):
    """What a client needs of a `Server` that it serves itself, in memory. Its tools tell it from a transport."""

    @property
    def tools(self) -> Any: ...

    async def serve(
        self, *targets: str | ServerTransport, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None: ...


Target = InProcessServer | str | ClientTransport

# Waits between attempts to connect again, seconds; the last one repeats. Each is cut by up to a half, by chance, so
# that the clients of a server that was away do not come back all at once.
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
# A connection that did not last so long, seconds, counts as another failed attempt.
STEADY = 1.0
# How long closing may take: a child process gets its signals and grace periods in this time.
CLOSE_TIMEOUT = 10.0
# Which era a URL was found to speak, so that the next client need not probe. The oldest verdict goes.
MAX_VERDICTS = 1024

_verdicts: dict[str, Era] = {}


class Supervisor:
    """Keeps one connection to ``target`` alive for as long as it is open."""

    def __init__(
        self,
        target: Target,
        options: HandshakeOptions,
        limits: Limits,
        restart: bool,
        *,
        on_notification: Callable[[str, dict[str, Any]], None],
        on_connected: Callable[[Session, Negotiated], None],
    ) -> None:
        self._target = target
        self._handshake = options
        # What we are asked has no use once the connection ends: nobody who leaves waits for it.
        self._limits = attrs.evolve(limits, drain_grace=0.0)
        self._restart = restart
        self._on_notification = on_notification
        self._on_connected = on_connected
        self._manager: Any = None
        self._nursery: trio.Nursery | None = None
        self._connection: ClientConnection | None = None
        # A client that was told which versions to speak has found out nothing about the others.
        self._remembers = isinstance(target, str) and tuple(options.versions) == VERSIONS
        self._hint: Era | None = _verdicts.get(str(target)) if self._remembers else None
        self._stopping = False
        # The attempt to connect that is being made, until it has come about.
        self._attempt: trio.CancelScope | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._connections = 0
        self._loss: ConnectionLost | SessionExpired | ConnectFailed | None = None
        self._done = trio.Event()
        self._served = trio.Event()
        self.negotiated: Negotiated | None = None

    def __repr__(self) -> str:
        state = "connected" if self._connection is not None else "ended" if self._loss else "not connected"
        return f"{self._target if isinstance(self._target, str) else type(self._target).__name__!r} {state}"

    # -- the nursery -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects and agrees, or raises why that did not work."""
        if self._manager is not None:
            raise LocalProtocolError("a Client is good for one 'async with' block; make a new one")
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            transport = await self._transport(self._nursery)
            await self._nursery.start(self._supervise, transport)
        except BaseException:
            self._done.set()
            await self._leave()
            raise

    async def close(self) -> None:
        """Closes the connection and ends every task of this client; bounded, whatever state it is in."""
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self.stop()
            if isinstance(self._target, InProcessServer):
                await self._served.wait()
        await self._leave()

    async def _leave(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel(reason="the client is closed")
        # The body's own exception is not given to the nursery, so it leaves `async with` as it is, never in a group.
        with one_error():
            await self._manager.__aexit__(None, None, None)

    def start_soon(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` as a task of this client."""
        assert self._nursery is not None
        self._nursery.start_soon(fn)

    async def stop(self) -> None:
        """Ends the connection and waits until all that came with it is gone."""
        self._stopping = True
        if self._connection is not None:
            self._connection.session.stop()
        elif self._attempt is not None:
            self._attempt.cancel(reason="the client is closed")
        self._changed.unpark_all()
        if self._nursery is not None:
            await self._done.wait()

    # -- the connection --------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session of the moment; raises `ConnectionLost` when there is none."""
        if self._connection is None:
            raise self._why_not()
        return self._connection.session

    def watch(self, deadline: Deadline) -> None:
        """A deadline was moved closer."""
        if self._connection is not None:
            self._connection.session.outbound.clock.watch(deadline)

    async def live_session(self, seconds: float, lost: Session | None = None) -> Session:
        """The session, waiting for a new connection when one is on its way, but no longer than for an answer.

        ``lost`` is a session that is of no use any more, though its end may not have been noticed yet.
        """
        if self.live(lost) is None:
            with trio.move_on_after(seconds):
                while (
                    self.live(lost) is None
                    and self._restart
                    and not self._stopping
                    and not self._done.is_set()
                    and self._nursery is not None
                ):
                    await self._changed.park()
        return self.session

    def live(self, lost: Session | None = None) -> Session | None:
        """The session of the moment if it is of any use, and another one than ``lost``."""
        session = None if self._connection is None else self._connection.session
        # One that has ended may not have been noticed yet by the task that holds it.
        return session if session is not None and session is not lost and session.loss is None else None

    @property
    def restarts(self) -> bool:
        """Whether a lost connection is made again."""
        return self._restart

    def _why_not(self) -> Exception:
        if self._loss is None:
            return ConnectionLost("not connected: use 'async with Client(...) as client'")
        if isinstance(self._loss, ConnectFailed):
            return ConnectFailed(str(self._loss))
        if isinstance(self._loss, SessionExpired):
            return SessionExpired(*self._loss.args)
        loss = ConnectionLost(self._loss.args[0], exit_code=self._loss.exit_code, stderr=self._loss.stderr)
        loss.__cause__ = self._loss.__cause__
        return loss

    async def _transport(self, nursery: trio.Nursery) -> ClientTransport:
        if isinstance(self._target, str):
            return client_transport(self._target)
        if not isinstance(self._target, InProcessServer):
            return self._target
        memory: Any = client_transport("memory:")
        await nursery.start(self._serve, self._target, _Until(memory, self._done))
        transport: ClientTransport = memory
        return transport

    async def _serve(
        self,
        server: InProcessServer,
        transport: ServerTransport,
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Ends with the connection, not by being cancelled: so the server's lifespan ends in peace."""
        try:
            await server.serve(transport, task_status=task_status)
        finally:
            self._served.set()

    async def _supervise(
        self, transport: ClientTransport, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        failures = 0
        try:
            while not self._stopping:
                began = trio.current_time()
                try:
                    await self._connect(transport, task_status)
                    if trio.current_time() - began >= STEADY:
                        failures = 0
                except McpError as error:
                    if self.negotiated is None:
                        if self._spare_it_the_probe(error):
                            continue
                        raise
                    # What else a handshake raises is no reason to give up what worked before.
                    self._loss = (
                        error
                        if isinstance(error, ConnectFailed | ConnectionLost | SessionExpired)
                        else _not_again(error)
                    )
                if not self._restart:
                    break
                if not self._stopping:
                    wait = BACKOFF[min(failures, len(BACKOFF) - 1)]
                    with trio.move_on_after(wait * (1 - random.random() / 2)):
                        await self._changed.park()
                    failures += 1
            if self.negotiated is None:
                self._loss = ConnectionLost("the client was closed before it was connected")
                raise self._loss
        finally:
            self._done.set()
            self._changed.unpark_all()

    def _spare_it_the_probe(self, error: Exception) -> bool:
        """A server that died of the probe is started once more and greeted in the legacy way, if we speak it."""
        if (
            self._hint is None
            and LATEST_LEGACY.version in self._handshake.versions
            and any(version in MODERN for version in self._handshake.versions)
            and isinstance(error, ConnectionLost)
        ):
            self._hint = LATEST_LEGACY
            return True
        return False

    async def _connect(self, transport: ClientTransport, task_status: trio.TaskStatus[None]) -> None:
        """Returns when a connection that came about has ended."""
        with one_error(), trio.CancelScope() as self._attempt:
            async with transport.connect() as channel:
                self._connections += 1
                connection = ClientConnection(
                    channel,
                    f"client#{self._connections}",
                    self._limits,
                    self._handshake.answers,
                    self._on_notification,
                )
                async with trio.open_nursery() as nursery:
                    await nursery.start(connection.session.run)
                    try:
                        met_before = self.negotiated is not None
                        await self._agree(connection)
                        self._connection, self._attempt = connection, None
                        if not met_before:
                            task_status.started()
                        self._changed.unpark_all()
                        await connection.session.ended.wait()
                    finally:
                        self._connection = None
                        self._loss = connection.session.loss
                        nursery.cancel_scope.cancel(reason="the connection ended")

    async def _agree(self, connection: ClientConnection) -> None:
        negotiated = await connection.agree(self._handshake, self._hint)
        self._hint = negotiated.era
        self.negotiated = negotiated
        if self._remembers:
            _verdicts.pop(str(self._target), None)
            _verdicts[str(self._target)] = negotiated.era
            if len(_verdicts) > MAX_VERDICTS:
                del _verdicts[next(iter(_verdicts))]
        self._on_connected(connection.session, negotiated)


def _not_again(error: McpError) -> ConnectFailed:
    failed = ConnectFailed(f"could not connect again: {error}")
    failed.__cause__ = error
    return failed


class _Until:
    """A server transport that ends when ``done`` is set, as one that has no more connections to come does."""

    def __init__(self, inner: ServerTransport, done: trio.Event) -> None:
        self._inner = inner
        self._done = done

    async def serve(
        self, handler: ConnectionHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started(await nursery.start(self._inner.serve, handler))
            await self._done.wait()
            nursery.cancel_scope.cancel(reason="the client is closed")
