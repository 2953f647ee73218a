"""The owner of a client's connection: it connects, performs the handshake, notices the end, and connects again.

All tasks of a client live in one nursery that is opened by ``async with Client`` and closed with it. The connection is
held by one task of it, so that closing is legal from any other. The table in `lifecycle` says what may happen when.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import trio

from mcp_actors._actors.dispatch_rules import DispatchRules
from mcp_actors._actors.session import Session
from mcp_actors._actors.session_reports import report_begin, report_end
from mcp_actors._client.connectivity import Connectivity, Negotiated
from mcp_actors._client.era_cache import ERA_CACHE
from mcp_actors._client.handshake import Handshake
from mcp_actors._client.in_process import CLOSE_TIMEOUT, transport_to
from mcp_actors._client.lifecycle import ClientEvent
from mcp_actors._client.options import ClientOptions
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.targets import shown
from mcp_actors._client.version_negotiation import ConnectAnew, Preference
from mcp_actors._eras.client_negotiation import ClientNegotiation
from mcp_actors._eras.decisions import Lifetime
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LATEST_LEGACY
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors._exception_groups import one_error
from mcp_actors.abc import ClientTransport, FrameChannel
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    ConnectFailed,
    ConnectionLost,
    McpError,
    SessionExpired,
)
from mcp_actors.logging import log
from mcp_actors.supervision import crash_in, start_and_wait
from mcp_actors.task_kinds import CLIENT_CONNECTION, CLIENT_SUPERVISOR

__all__ = ["Supervisor"]

# Waits between attempts to connect again, seconds; the last one repeats. Each is cut by up to a half, by chance, so
# that the clients of a server that was away do not come back all at once.
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
# A connection that did not last so long, seconds, counts as another failed attempt.
STEADY = 1.0


class UsesSession(Protocol):
    """A part of the client that needs each new session."""

    def connected(self, session: Session, negotiated: Negotiated) -> None: ...


class Supervisor:
    """Keeps one connection alive for as long as its client is open.

    Args:
        options: The client's options.
        connectivity: Is told of everything that happens to the connection.
        handshake: What is performed on each new connection.
        handlers: Answer what the server requests in a session.
        on_notification: Gets the server's notifications, in the read path, so it must not wait.
        users: Who is handed each new session, before ``connectivity`` is.
    """

    def __init__(
        self,
        options: ClientOptions,
        connectivity: Connectivity,
        handshake: Handshake,
        handlers: RequestHandlers,
        on_notification: Callable[[str, dict[str, Any]], None],
        users: Iterable[UsesSession],
    ) -> None:
        self._options = options
        self._connectivity = connectivity
        self._handshake = handshake
        self._handlers = handlers
        self._on_notification = on_notification
        self._users = (*users, connectivity)
        # Only the era of a URL means something to the next client, and only one that may speak all versions finds it.
        self._url = (
            options.target if isinstance(options.target, str) and options.versions == VERSIONS else None
        )
        known = None if self._url is None else ERA_CACHE.get(self._url)
        self._preference = Preference() if known is None else Preference(known, Lifetime.PROCESS)
        self._prior = options.prior_discover
        # The attempt to connect that is being made, or the pause before one.
        self._attempt: trio.CancelScope | None = None
        self._connections = 0
        self._done = trio.Event()

    def __repr__(self) -> str:
        return f"{shown(self._options.target)!r} {self._connectivity.state.value}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Connects, and stays connected for the length of the block; yields the nursery for the client's tasks.

        Leaving the block closes the connection and ends every task, within a bounded time. What the block raises must
        not be raised here, or it would leave in a group.

        Raises:
            LocalProtocolError: The client was opened before.
            ConnectFailed: The transport could not connect.
            TransportNotFound: Nothing is registered for the scheme of the URL.
            McpError: What else `Handshake.perform` raises.
        """
        self._connectivity.move(ClientEvent.OPEN)
        failure: Exception | None = None
        with one_error():
            async with trio.open_nursery() as nursery:
                try:
                    async with transport_to(self._options.target, nursery, self._options.auth) as transport:
                        try:
                            await self._start(nursery, transport)
                            yield nursery
                        finally:
                            with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                                await self.stop()
                except Exception as error:
                    # It is raised outside of the nursery, which would make a group of it.
                    failure = error
                finally:
                    self._end()
                    nursery.cancel_scope.cancel(reason="the client is closed")
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """Ends the connection and waits until all that came with it is gone. Legal from any task, any time."""
        connectivity = self._connectivity
        connectivity.move(ClientEvent.CLOSE)
        if self._attempt is not None:
            self._attempt.cancel(reason="the client is closed")
        elif connectivity.is_connected:
            connectivity.session.stop()
        if connectivity.is_closing:
            await self._done.wait()

    async def _start(self, nursery: trio.Nursery, transport: ClientTransport) -> None:
        try:
            await start_and_wait(
                nursery, CLIENT_SUPERVISOR, self._supervise, transport, on_crash=self._crashed
            )
        except BaseException as error:
            crash = crash_in(error)
            if crash is None or isinstance(crash, McpError):
                raise
            raise ConnectFailed(f"could not connect: {crash!r}") from crash

    def _crashed(self, crash: BaseException) -> None:
        lost = ConnectionLost(f"the client has failed: {crash!r}")
        lost.__cause__ = crash
        self._connectivity.disconnected(lost)
        self._end()

    def _end(self) -> None:
        if not self._done.is_set():
            self._done.set()
            self._connectivity.move(ClientEvent.END)

    # -- one connection after the other ----------------------------------------------------------------------------

    async def _supervise(
        self, transport: ClientTransport, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await self._connect_again_and_again(transport, task_status)
            if not self._connectivity.has_met_server:
                raise ConnectionLost("the client was closed before it was connected")
        finally:
            self._end()

    async def _connect_again_and_again(
        self, transport: ClientTransport, task_status: trio.TaskStatus[None]
    ) -> None:
        """Returns when no further connection is to be made."""
        connectivity = self._connectivity
        failures = 0
        while not connectivity.is_closing:
            began = trio.current_time()
            try:
                await self._connect(transport, task_status)
                if trio.current_time() - began >= STEADY:
                    failures = 0
            except Exception as error:
                if not connectivity.has_met_server:
                    raise
                # What else a handshake or a transport raises is no reason to give up what worked before.
                connectivity.disconnected(_why_not_again(error))
                if isinstance(error, AuthorizationError) and not isinstance(error, AuthorizationUnavailable):
                    # Another attempt would ask a person again, or a server that has refused already.
                    return
            expired = isinstance(connectivity.loss, SessionExpired)
            if not (connectivity.restarts or expired) or connectivity.is_closing:
                return
            connectivity.move(ClientEvent.LOST)
            # A server that has forgotten a session is there, and whoever was refused waits for the new one.
            if failures or not expired:
                await self._pause(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds * (1 - random.random() / 2)) as self._attempt:
            await trio.sleep_forever()
        self._attempt = None

    async def _connect(self, transport: ClientTransport, task_status: trio.TaskStatus[None]) -> None:
        """As `_connect_once`; once more, if what was said to the server leads to that."""
        try:
            await self._connect_once(transport, task_status, self._preference)
        except ConnectAnew as anew:
            if self._connectivity.is_closing:
                raise anew.cause from None
            try:
                await self._connect_once(transport, task_status, Preference(LATEST_LEGACY, anew.lifetime))
            except ConnectAnew as again:
                raise again.cause from None

    async def _connect_once(
        self, transport: ClientTransport, task_status: trio.TaskStatus[None], preference: Preference
    ) -> None:
        """Makes a connection, hands its session to those who use it, and returns when it has ended."""
        failure: Exception | None = None
        with one_error(), trio.CancelScope() as self._attempt:
            async with transport.connect() as channel, trio.open_nursery() as nursery:
                session, negotiation = self._new_session(channel)
                await start_and_wait(nursery, CLIENT_CONNECTION, session.run, about=session.dispatcher.name)
                is_first = not self._connectivity.has_met_server
                self._connectivity.attempted = session
                telemetry, began = self._options.telemetry, trio.current_time()
                if telemetry is not None:
                    report_begin(telemetry, "client")
                try:
                    if self._prior is not None:
                        prior, self._prior = self._prior, None
                        negotiated, lifetime = self._handshake.believe(session, negotiation, prior)
                    else:
                        negotiated, lifetime = await self._handshake.perform(session, negotiation, preference)
                    self._attempt = None
                    self._remember(negotiated.era, lifetime)
                    for user in self._users:
                        user.connected(session, negotiated)
                    if is_first:
                        task_status.started()
                    await session.ended.wait()
                except Exception as error:
                    # It is raised outside of the nursery, which would make a group of it.
                    failure = error
                finally:
                    self._connectivity.disconnected(session.loss)
                    if telemetry is not None:
                        report_end(telemetry, "client", session, session.outbound.version, began)
                    nursery.cancel_scope.cancel(reason="the connection ended")
        if failure is not None:
            raise failure

    def _new_session(self, channel: FrameChannel) -> tuple[Session, ClientNegotiation]:
        self._connections += 1
        # What we are asked has no use once the connection ends: nobody who leaves waits for it.
        limits = attrs.evolve(self._options.limits, drain_grace=0.0)
        negotiation = ClientNegotiation()
        session = Session(
            f"client#{self._connections}",
            channel,
            negotiation,
            self._handlers,
            DispatchRules(answers_malformed=False),
            limits=limits,
            on_notification=self._on_notification,
        )
        return session, negotiation

    def _remember(self, era: Era, lifetime: Lifetime) -> None:
        if lifetime is not Lifetime.CONNECTION:
            self._preference = Preference(era, lifetime)
        if lifetime is Lifetime.PROCESS and self._url is not None:
            ERA_CACHE.put(self._url, era)


def _why_not_again(error: Exception) -> McpError:
    if isinstance(error, ConnectFailed | ConnectionLost | SessionExpired):
        return error
    if not isinstance(error, McpError):
        log.error("connecting failed", exc_info=error)
    failed = ConnectFailed(f"could not connect again: {error}")
    failed.__cause__ = error
    return failed
