"""One address for several applications: one for HTTP, and others for the requests that ask for a WebSocket.

A web page, a proxy and a firewall are configured for one port. So a transport may serve at an address where another one
of this process already listens, if their requests can be distinguished: by whether they ask for a WebSocket, and by
their path.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from mcp_transports._sockets import ListenError
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import ListenUrl, Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.h1.server import HttpListener, HttpServer, open_tcp, open_unix
from mcp_transports.http.h1.server_state import App, ConnectionCounts

__all__ = ["PortShare", "share_port"]

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

    def join(self, path: str | None, app: App, documents: Iterable[str], *, to_the_end: bool) -> None:
        """Adds an application. A path of ``documents`` that another one has already stays with that."""
        self._apps[path] = app
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

    async def serve(self, stopping: trio.Event) -> None:
        """Returns when ``stopping`` was set and all connections have ended.

        Cancelled, it closes the connections at once if this application opened the address, and none otherwise.

        Raises:
            ListenError: A listening socket of the address is broken.
        """
        shared = self._shared
        if self._owner:
            try:
                await shared.server.serve(stopping=stopping)
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

    Raises:
        ListenError: The address cannot be listened at, or is served with another ``ssl_context``.
        InvalidSocketPath: The path of a Unix socket is too long for the system, or is none.
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
    shared.join(path, app, documents, to_the_end=to_the_end)
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
