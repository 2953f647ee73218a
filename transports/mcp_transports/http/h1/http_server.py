"""An HTTP server: its listening sockets, the connections that it accepts from them, and the sharing of its address.

A web page, a proxy and a firewall are configured for one port. So an application may be served at an address where
another one of this process already listens (`share_port`), if their requests can be distinguished: by whether they ask
for a WebSocket, and by their path.
"""

from __future__ import annotations

import heapq
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from mcp_actors.supervision import descriptors
from mcp_actors.supervision.budget import Budget, Limited
from mcp_actors.supervision.containment import Containment, start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import LISTENER_END, POLLER, SOCKET_CONNECTION, TICKER
from mcp_transports._sockets import (
    BACKLOG,
    ListenError,
    ListeningSocket,
    accept_until,
    bind_tcp,
    bind_unix,
    is_unix,
    send_without_delay,
)
from mcp_transports.http.h1.byte_stream import ByteStream, SocketByteStream, WrappedByteStream
from mcp_transports.http.h1.connection import App, Connection, ConnectionCounts, ServerState
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import ListenUrl, Request
from mcp_transports.http.h1.response import Response, error_body, status_head

__all__ = ["HttpListener", "HttpServer", "PortShare", "open_tcp", "open_unix", "serve_http", "share_port"]

# Seconds between two looks at whether the last connection has ended, once nothing is accepted any more.
_LOOK_AGAIN = 0.1
# Seconds that the last connections have for their first request: it is on its way already, as a rule.
_FIRST_REQUEST = 0.5
# The same for the next request of those whose last answer could not say that the server leaves: a proxy that keeps what
# it does not use for a second has closed it by then.
_NEXT_REQUEST = 2.0
_LOOK_FOR_REQUESTS = 0.02
# Seconds without a request after which a connection counts as silent: a client sends one as soon as it is connected.
_SILENT_TIME = 1.0
# Searching all connections takes some milliseconds where there are thousands: each search finds several.
_FOUND_AT_ONCE = 256
_SEARCHES_PER_TICK = 8
# Connections come and go less often than requests.
_TOO_MANY_RETRY_AFTER = 5  # seconds
_TOO_MANY: dict[Limited, str] = {
    "all": "too many connections are open",
    "holder": "too many connections of this address are open",
}
# Connections over the limits at a time that may bring a request which is answered also then. The oldest gives way.
_MOST_OVER_LIMITS = 8


class HttpListener(ListeningSocket):
    """A listening socket, which `serve_http` closes. A caller that never serves it closes it with `close`."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        ssl_context: ssl.SSLContext | None = None,
        path: str | None = None,
        inherited: bool = False,
    ) -> None:
        super().__init__(listening, path=path, inherited=inherited)
        self.ssl_context = ssl_context

    @property
    def url(self) -> str:
        """The URL for clients, without a path: ``http://127.0.0.1:8000``, ``unix:/run/x.sock``."""
        return self.where("http" if self.ssl_context is None else "https")


async def open_tcp(
    host: str | None, port: int, *, ssl_context: ssl.SSLContext | None = None, backlog: int = BACKLOG
) -> list[HttpListener]:
    """Listens on every address of ``host``, as `bind_tcp` does.

    Args:
        host: As for `bind_tcp`.
        port: As for `bind_tcp`.
        ssl_context: The context of TLS; ``None`` for plain HTTP.
        backlog: As for `bind_tcp`.

    Raises:
        ListenError: The name has no address, or an address cannot be listened at.
    """
    opened = await bind_tcp(host, port, backlog=backlog)
    return [HttpListener(each.socket, ssl_context=ssl_context, inherited=each.inherited) for each in opened]


async def open_unix(path: str, *, mode: int = 0o600, backlog: int = BACKLOG) -> HttpListener:
    """Listens on a Unix socket as `bind_unix` does: only this user may connect unless ``mode`` says otherwise.

    Raises:
        InvalidSocketPath: The path is malformed or too long for the system.
        ListenError: Something is in the way.
    """
    opened = await bind_unix(path, mode=mode, backlog=backlog)
    return HttpListener(opened.socket, path=opened.path, inherited=opened.inherited)


class SilentConnections:
    """Finds the connections that have been silent longest, to close them where there is no room for another one.

    A silent connection carries no request, so its client loses nothing: it connects again (RFC 9112 section 9.5).
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._found: dict[str | None, list[Connection]] = {}
        self._searches = 0
        self._forget_at = 0.0

    def close_one(self, holder: str | None) -> Connection | None:
        """Closes one connection, and returns it if there was one.

        Args:
            holder: Whose it is; ``None`` for anybody's.
        """
        clock = self._state.clock
        if clock.now >= self._forget_at:
            self._found.clear()
            self._searches = 0
            self._forget_at = clock.now + clock.tick
        found = self._found.get(holder)
        if not found and self._searches < _SEARCHES_PER_TICK:
            self._searches += 1
            found = self._found[holder] = self._search(holder)
        while found:
            connection = found.pop()
            if self._is_silent(connection):
                connection.stop()
                return connection
        return None

    def _search(self, holder: str | None) -> list[Connection]:
        silent = [
            each
            for each in self._state.ticker.members
            if self._is_silent(each) and (holder is None or holder == each.holder)
        ]
        return heapq.nsmallest(_FOUND_AT_ONCE, silent, key=lambda each: each.silent_since)[::-1]

    def _is_silent(self, connection: Connection) -> bool:
        return connection.silent_since <= self._state.clock.now - _SILENT_TIME


class HttpServer:
    """Accepts connections and hands their requests to ``app(request, response)``.

    A connection that fails, whatever the failure is, ends alone. The tasks that serve all connections are started
    again when they fail (`mcp_actors.supervision.containment`).

    Args:
        app: The application. It is called where requests are read, so it must not block; long work is for
            `Response.run`.
        listeners: The listening sockets, which `serve` closes.
        limits: The bounds on peers.
    """

    def __init__(self, app: App, listeners: Sequence[HttpListener], limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self.listeners = list(listeners)
        self._state = ServerState(app, self.limits)
        # Accepted and not closed; the ticker does not yet have those whose task has not run.
        self._connections = Budget(
            min(self.limits.connections, descriptors.room_for_peers()), self.limits.connections_per_address
        )
        self._silent = SilentConnections(self._state)
        # Closed to make room: they are not charged any more, although their tasks have not ended yet.
        self._dropped: set[Connection] = set()
        self.answers_to_the_end = False
        """Whether connections are accepted until the last answer is given; they get one answer each. For applications
        that say how the server is, or that they take no more, while calls in flight end."""
        # Over the limits, which do not count them, in their order.
        self._over_limits: dict[Connection, None] = {}
        # Set while the last answers are given, when no connection is left.
        self._left: trio.Event | None = None
        # Set to end the accepting, and once the last requests are there.
        self._ends, self._closed = trio.Event(), trio.Event()
        self._closed.set()

    def __repr__(self) -> str:
        state = self.statistics()
        where = ", ".join(each.url for each in self.listeners)
        return f"<HttpServer on {where}: {state.connections} connections, {state.busy} busy>"

    @property
    def app(self) -> App:
        """The application. A new value is called from the next request on."""
        return self._state.app

    @app.setter
    def app(self, app: App) -> None:
        self._state.app = app

    @property
    def answered_when_full(self) -> Collection[str]:
        """The paths whose requests are answered also when no further connection is allowed: for what says how the
        server is. Empty at first."""
        return self._state.answered_when_full

    @answered_when_full.setter
    def answered_when_full(self, paths: Collection[str]) -> None:
        self._state.answered_when_full = paths

    def statistics(self) -> ConnectionCounts:
        """Returns a snapshot of the counters."""
        return self._state.statistics(self._connections.statistics())

    async def serve(
        self,
        *,
        leaving: trio.Event | None = None,
        stopping: trio.Event | None = None,
        task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until ``stopping`` is set and the last busy connection has finished, or until cancelled.

        Once ``leaving`` is set, every answer that begins closes its connection. Once ``stopping`` is set, or `close`
        was called, nothing is accepted any more (but see `answers_to_the_end`): connections that were made just now,
        and those whose last answer could not say that they end, may bring one request, and idle ones are closed. That
        may take as long as an answer takes: a caller that has a deadline cancels. Cancelled, it closes everything at
        once. The listeners are closed when it returns, however that comes about. When this process retires, it is the
        same but for idle connections: each is closed behind its next answer, and those that are left when ``stopping``
        is set at once.

        Raises:
            ListenError: A listening socket is broken; every connection was closed.
        """
        state = self._state
        self._ends = ends = trio.Event()
        self._closed = trio.Event()
        try:
            async with trio.open_nursery() as service:
                start_again(service, TICKER, state.ticker.run)
                start_again(service, POLLER, state.poller.run)
                if leaving is not None:
                    start_again(service, LISTENER_END, self._leave, leaving, about="before the end")
                if stopping is not None:
                    start_again(service, LISTENER_END, _pass_on, stopping, ends)
                async with trio.open_nursery() as connections:
                    task_status.started(self)
                    arrived = partial(self._arrived, connections)
                    broken = await accept_until(ends, self.listeners, arrived, lambda: self._connections.held)
                    if broken is None and ends.is_set():
                        if self.answers_to_the_end:
                            broken = await self._accept_to_the_end(arrived)
                        else:
                            await self._take_last_requests(arrived)
                    state.stopping = True
                    self._close_listeners()
                    if broken is not None:
                        connections.cancel_scope.cancel(reason="a listening socket is broken")
                    else:
                        await self._until_left(ends)
                        await self._read_last_requests()
                    self._closed.set()
                service.cancel_scope.cancel()
        finally:
            self._close_listeners()
            self._closed.set()
            state.close()
        if broken is not None:
            raise broken

    async def close(self, *, to_the_end: bool = False) -> None:
        """Ends the accepting, as ``stopping`` of `serve` does, and waits until the last requests are there.

        Args:
            to_the_end: Whether `answers_to_the_end` holds.
        """
        self.answers_to_the_end &= to_the_end
        self._ends.set()
        await self._closed.wait()

    async def until_sent(self) -> None:
        """Waits until no bytes wait for peers to take them."""
        while any(member.unsent for member in self._state.ticker.members):  # noqa: ASYNC110 - no event for many
            await trio.sleep(_LOOK_AGAIN)

    async def _leave(self, leaving: trio.Event) -> None:
        await leaving.wait()
        self._state.stopping = self._state.stopping or "leaving"

    async def _take_last_requests(
        self, arrived: Callable[[HttpListener, list[tuple[socket.socket, object]]], None]
    ) -> None:
        """Has connections bring a request whose clients cannot know better, and closes the others that are idle."""
        state = self._state
        state.stopping = "accepting"
        for listener in self.listeners:
            if last := listener.accept_last():
                arrived(listener, last)
        self._close_listeners()
        for member in list(state.ticker.members):
            if not member.is_new and not member.may_bring_more:
                member.stop()
        with trio.move_on_after(_FIRST_REQUEST):
            # Those that were accepted last are members in the next turn.
            await trio.sleep(_LOOK_FOR_REQUESTS)
            while any(member.is_new for member in state.ticker.members):  # noqa: ASYNC110 - no event for many
                await trio.sleep(_LOOK_FOR_REQUESTS)
        with trio.move_on_after(_NEXT_REQUEST - _FIRST_REQUEST):
            while any(member.may_bring_more for member in state.ticker.members):  # noqa: ASYNC110
                await trio.sleep(_LOOK_FOR_REQUESTS)

    async def _read_last_requests(self) -> None:
        """Closes the connections that are idle, and waits until requests that have arrived are read, for a moment.

        What comes behind this may hand sessions over, which these requests may need.
        """
        members = self._state.ticker.members
        for member in list(members):
            member.stop()
        with trio.move_on_after(_FIRST_REQUEST):
            while any(member.is_being_read for member in members):  # noqa: ASYNC110 - no event for many
                await trio.sleep(_LOOK_FOR_REQUESTS)
        for member in list(members):
            member.stop()

    async def serve_stream(
        self, stream: trio.abc.Stream, peer: str = "stream", *, secure: bool = False
    ) -> None:
        """Serves one connection over any stream, until it ends. For tests and for streams from elsewhere.

        Its times are kept only while `serve` runs, which needs no listeners for that.

        Args:
            stream: It is closed at the end.
            peer: The peer's address, for the log and for requests.
            secure: Whether the stream goes through TLS.
        """
        with Containment(SOCKET_CONNECTION, details={"peer": peer}):
            handover = await Connection(self._state, WrappedByteStream(stream, peer, secure=secure)).serve()
            if handover is not None:
                await handover

    def expire(self, now: float) -> None:
        """Expires every connection whose deadline is not later than ``now``, as the ticker does all the time."""
        self._state.ticker.expire(now)

    async def _accept_to_the_end(
        self, arrived: Callable[[HttpListener, list[tuple[socket.socket, object]]], None]
    ) -> ListenError | None:
        """Accepts until no connection is left, and returns why a listener cannot any more, if so."""
        self._state.stopping = "accepting"
        self._closed.set()
        for member in list(self._state.ticker.members):
            member.stop()
        self._left = left = trio.Event()
        if not self._connections.held:
            left.set()
        return await accept_until(left, self.listeners, arrived, lambda: self._connections.held)

    async def _until_left(self, stopping: trio.Event) -> None:
        """Waits until no connection is left or ``stopping`` is set."""
        while self._connections.held and not stopping.is_set():
            with trio.move_on_after(_LOOK_AGAIN):
                await stopping.wait()

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()

    def _arrived(
        self, connections: trio.Nursery, listener: HttpListener, arrived: list[tuple[socket.socket, object]]
    ) -> None:
        self._state.clock.refresh()
        for accepted, address in arrived:
            peer = listener.describe(address)
            over = self._admit(accepted, listener.holder_of(peer))
            if over is not None and not self._makes_room_over_limits():
                self._turn_away(accepted, over, secure=listener.ssl_context is not None)
            else:
                start(
                    connections,
                    SOCKET_CONNECTION,
                    self._serve_socket,
                    listener,
                    accepted,
                    peer,
                    over,
                    about=peer,
                )

    def _admit(self, accepted: socket.socket, holder: str | None) -> Limited | None:
        """Charges a new connection, after it has closed one that was silent where that is the only way.

        Returns:
            The limit in the way, of which descriptors are one for all.
        """
        over = self._connections.charge(holder, 1)
        if over is None:
            if descriptors.leaves_room(accepted.fileno()):
                return None
            self._connections.release(holder, 1)
            over = "all"
        dropped = self._silent.close_one(holder if over == "holder" else None)
        if dropped is None:
            return over
        self._dropped.add(dropped)
        self._connections.release(dropped.holder, 1)
        return self._connections.charge(holder, 1)

    def _makes_room_over_limits(self) -> bool:
        """Whether there is room for a connection over the limits, after the oldest that may gave way."""
        if not self._state.answered_when_full:
            return False
        if len(self._over_limits) >= _MOST_OVER_LIMITS:
            for oldest in self._over_limits:
                if oldest.give_way():
                    del self._over_limits[oldest]
                    break
        return len(self._over_limits) < _MOST_OVER_LIMITS

    def _turn_away(self, accepted: socket.socket, over: Limited, *, secure: bool) -> None:
        self._state.rejected += 1
        with accepted:
            if not secure:
                try:
                    accepted.setblocking(False)
                    accepted.send(_too_many_answer(over))
                    accepted.shutdown(socket.SHUT_WR)
                except OSError as error:
                    log.debug("a peer that was turned away left before", reason=error.strerror)

    async def _serve_socket(
        self, listener: HttpListener, accepted: socket.socket, peer: str, over: Limited | None
    ) -> None:
        is_dropped = False
        try:
            with accepted:
                reason = None if over is None else _TOO_MANY[over]
                stream = self._byte_stream(listener, accepted, peer)
                connection = Connection(self._state, stream, listener, reason)
                if over is not None:
                    self._over_limits[connection] = None
                try:
                    handover = await connection.serve()
                finally:
                    is_dropped = connection in self._dropped
                    self._dropped.discard(connection)
                    self._over_limits.pop(connection, None)
                    del connection  # an upgraded one would be kept for as long as its successor runs
                if handover is not None:
                    await handover
        finally:
            if not is_dropped and over is None:
                self._connections.release(listener.holder_of(peer), 1)
            if self._left is not None and not self._connections.held:
                self._left.set()

    def _byte_stream(self, listener: HttpListener, accepted: socket.socket, peer: str) -> ByteStream:
        accepted.setblocking(False)
        if not is_unix(listener.socket):
            send_without_delay(accepted)
        if listener.ssl_context is None:
            return SocketByteStream(accepted, self._state.poller, self._state.buffer, peer)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        # HTTP frames its messages itself, so without the closing message of TLS nothing is cut off unseen.
        secured = trio.SSLStream(stream, listener.ssl_context, server_side=True, https_compatible=True)
        return WrappedByteStream(secured, peer, secure=True)


def _too_many_answer(over: Limited) -> bytes:
    body = error_body(_TOO_MANY[over])
    headers = (
        f"retry-after: {_TOO_MANY_RETRY_AFTER}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return status_head(503) + headers.encode() + body


async def _pass_on(event: trio.Event, to: trio.Event) -> None:
    await event.wait()
    to.set()


async def serve_http(
    app: App,
    listeners: Sequence[HttpListener],
    *,
    limits: HttpLimits | None = None,
    stopping: trio.Event | None = None,
    task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves HTTP on ``listeners`` (see `open_tcp` and `open_unix`); `HttpServer.serve` says how it ends.

    ``task_status.started`` gets the `HttpServer`, for its statistics.
    """
    await HttpServer(app, listeners, limits).serve(stopping=stopping, task_status=task_status)


# -- one address for several applications ---

Address = tuple[str | None, int]


class SharedPort:
    """The server at one address and the applications behind it."""

    def __init__(
        self, listeners: list[HttpListener], ssl_context: ssl.SSLContext | None, limits: HttpLimits
    ) -> None:
        self.server = HttpServer(self, listeners, limits)
        self.ssl_context = ssl_context
        self.done = trio.Event()
        self.broken: ListenError | None = None
        # By the path of their WebSockets; the one under None gets every other request.
        self._apps: dict[str | None, App] = {}
        self._documents: dict[str, App] = {}

    def __contains__(self, path: str | None) -> bool:
        return path in self._apps

    @property
    def port(self) -> int | None:
        """The real port, where there are ports."""
        return self.server.listeners[0].port

    def __call__(self, request: Request, response: Response) -> None:
        apps = self._apps
        upgrades = "websocket" in request.headers.get("upgrade", "").lower()
        documents = None if upgrades else self._documents.get(request.path)
        if documents is not None:
            app = documents
        elif upgrades or None not in apps:
            app = apps.get(request.path) or apps.get(None) or next(iter(apps.values()))
        else:
            app = apps[None]
        app(request, response)

    def join(
        self,
        path: str | None,
        app: App,
        documents: Iterable[str],
        *,
        to_the_end: bool,
        when_full: Iterable[str],
    ) -> None:
        """Adds an application. A path of ``documents`` that another one has already stays with that."""
        self._apps[path] = app
        self.server.answered_when_full = {*self.server.answered_when_full, *when_full}
        self.server.answers_to_the_end |= to_the_end
        for each in documents:
            self._documents.setdefault(each, app)
        self._route()

    def leave(self, path: str | None) -> None:
        """Removes an application."""
        app = self._apps.pop(path)
        self._documents = {each: other for each, other in self._documents.items() if other is not app}
        self._route()

    def _route(self) -> None:
        # A single application is called directly.
        self.server.app = next(iter(self._apps.values())) if len(self._apps) == 1 else self


class PortShare:
    """One application's part of an address. The application that opened the address serves the connections of all."""

    def __init__(self, shared: SharedPort, *, owner: bool) -> None:
        self._shared = shared
        self._owner = owner

    @property
    def port(self) -> int | None:
        """The real port, where there are ports."""
        return self._shared.port

    def statistics(self) -> ConnectionCounts:
        """Returns a snapshot of the counters of the address, for all applications at it."""
        return self._shared.server.statistics()

    async def close(self, *, to_the_end: bool) -> None:
        """Ends the accepting at the address; see `HttpServer.close`."""
        await self._shared.server.close(to_the_end=to_the_end)

    async def until_sent(self) -> None:
        """Waits until no bytes wait for peers to take them."""
        await self._shared.server.until_sent()

    async def serve(self, leaving: trio.Event, stopping: trio.Event) -> None:
        """Returns when ``stopping`` was set and all connections have ended; see `HttpServer.serve` for ``leaving``.

        Where this process retires, it returns when all connections have ended, also before ``stopping`` is set.

        Cancelled, it closes the connections at once if this application opened the address, and none otherwise.

        Raises:
            ListenError: A listening socket of the address is broken.
        """
        shared = self._shared
        if self._owner:
            try:
                await shared.server.serve(leaving=leaving, stopping=stopping)
            except ListenError as error:
                shared.broken = error
                raise
        else:
            await shared.done.wait()
            if shared.broken is not None:
                raise ListenError(str(shared.broken)) from shared.broken.__cause__


_shared_ports: trio.lowlevel.RunVar[dict[Address, SharedPort]] = trio.lowlevel.RunVar("shared ports")


@asynccontextmanager
async def share_port(
    where: ListenUrl,
    app: App,
    *,
    ssl_context: ssl.SSLContext | None,
    limits: HttpLimits,
    upgrades: bool = False,
    documents: Iterable[str] = (),
    to_the_end: bool = False,
    when_full: Iterable[str] = (),
) -> AsyncIterator[PortShare]:
    """Listens at an address, or joins the application that listens there, for the length of the block.

    Args:
        where: The address.
        app: The application, called with the requests.
        ssl_context: The context of TLS; ``None`` for plain HTTP.
        limits: The bounds on peers. An address that is joined keeps the limits of the application that opened it.
        upgrades: Whether ``app`` gets only the requests that ask for a WebSocket at its path.
        documents: Paths whose requests, but those that ask for a WebSocket, ``app`` gets all the same.
        to_the_end: Whether ``app`` is to be asked by new connections too while the last answers are given.
        when_full: Paths whose requests are answered also where no further connection is allowed.

    Raises:
        ListenError: The address cannot be listened at, or is served with another ``ssl_context``.
        InvalidSocketPath: The path of a Unix socket is malformed or too long for the system.
    """
    address = (where.host, where.port)
    path = where.path if upgrades else None
    all_shared = _all_shared_ports()
    shared = all_shared.get(address) if where.port else None
    owner = shared is None or path in shared
    if shared is None or owner:
        shared = SharedPort(await _open(where, ssl_context), ssl_context, limits)
        if shared.port:  # for port 0 it is known only now
            address = (where.host, shared.port)
            all_shared[address] = shared
    elif shared.ssl_context is not ssl_context:
        raise ListenError(f"cannot listen on {where.url()}: it is served with another ssl_context already")
    shared.join(path, app, documents, to_the_end=to_the_end, when_full=when_full)
    try:
        yield PortShare(shared, owner=owner)
    finally:
        shared.leave(path)
        if owner:
            if all_shared.get(address) is shared:
                del all_shared[address]
            shared.done.set()
            for listener in shared.server.listeners:
                listener.close()


def _all_shared_ports() -> dict[Address, SharedPort]:
    try:
        return _shared_ports.get()
    except LookupError:
        made: dict[Address, SharedPort] = {}
        _shared_ports.set(made)
        return made


async def _open(where: ListenUrl, ssl_context: ssl.SSLContext | None) -> list[HttpListener]:
    if where.socket_path is not None:
        return [await open_unix(where.socket_path)]
    return await open_tcp(where.host, where.port, ssl_context=ssl_context)
