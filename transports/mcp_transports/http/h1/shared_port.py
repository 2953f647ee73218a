"""Who takes the requests that come in at an address: one application, or one for HTTP and others for upgrades.

A page, a proxy and a firewall know one port. So a transport that is told to serve where another one of this process
already listens takes a seat there, if the two can be told apart: by whether a request asks for a WebSocket.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcp_actors.errors import ConnectFailed
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.listen_url import ListenUrl
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.h1.server import HttpListener, open_tcp, open_unix, serve_http
from mcp_transports.http.h1.server_state import App

__all__ = ["PortShare", "share_port"]

Address = tuple[str | None, int]


class SharedPort:
    """The listeners of one address and the applications behind them. The one who opened them serves for all."""

    def __init__(
        self, listeners: list[HttpListener], ssl_context: ssl.SSLContext | None, limits: HttpLimits
    ) -> None:
        self.listeners = listeners
        self.ssl_context = ssl_context
        self.limits = limits
        self.done = trio.Event()
        # By path; the one without takes what nobody else does.
        self.apps: dict[str | None, App] = {}

    def __call__(self, request: Request, response: Response) -> None:
        apps = self.apps
        if len(apps) == 1:
            (app,) = apps.values()
        elif "websocket" in request.headers.get("upgrade", "").lower() or None not in apps:
            app = apps.get(request.path) or apps.get(None) or next(iter(apps.values()))
        else:
            app = apps[None]
        app(request, response)


class PortShare:
    """One application's place at an address."""

    def __init__(self, room: SharedPort, *, owner: bool) -> None:
        self._room = room
        self._owner = owner

    @property
    def port(self) -> int | None:
        """The real port, where there are ports."""
        return self._room.listeners[0].port

    async def serve(self, stopping: trio.Event) -> None:
        """Returns when ``stopping`` was set and all connections have ended; cancelled, only the owner closes them."""
        room = self._room
        if self._owner:
            await serve_http(room, room.listeners, limits=room.limits, stopping=stopping)
        else:
            await room.done.wait()


_rooms: trio.lowlevel.RunVar[dict[Address, SharedPort]] = trio.lowlevel.RunVar("rooms")


@asynccontextmanager
async def share_port(
    place: ListenUrl,
    app: App,
    *,
    ssl_context: ssl.SSLContext | None,
    limits: HttpLimits,
    upgrades: bool = False,
) -> AsyncIterator[PortShare]:
    """Listens there, or joins who does, for the length of the block.

    ``upgrades`` says that ``app`` wants the WebSocket requests for its path alone. A joined address keeps the
    ``limits`` of the one who opened it. Raises `ConnectFailed`.
    """
    address = (place.host, place.port)
    path = place.path if upgrades else None
    rooms = _all_rooms()
    room = rooms.get(address) if place.port else None
    owner = room is None or path in room.apps
    if room is None or owner:
        room = await _open(place, ssl_context, limits)
        if port := room.listeners[0].port:  # for port 0 it is known only now
            address = (place.host, port)
            rooms[address] = room
    elif room.ssl_context is not ssl_context:
        raise ConnectFailed(f"cannot listen on {place.url()}: it is served with another ssl_context already")
    room.apps[path] = app
    try:
        yield PortShare(room, owner=owner)
    finally:
        del room.apps[path]
        if owner:
            if rooms.get(address) is room:
                del rooms[address]
            room.done.set()
            for listener in room.listeners:
                listener.close()


def _all_rooms() -> dict[Address, SharedPort]:
    try:
        return _rooms.get()
    except LookupError:
        rooms: dict[Address, SharedPort] = {}
        _rooms.set(rooms)
        return rooms


async def _open(place: ListenUrl, ssl_context: ssl.SSLContext | None, limits: HttpLimits) -> SharedPort:
    if place.socket_path is not None:
        listeners = [await open_unix(place.socket_path)]
    else:
        listeners = await open_tcp(place.host, place.port, ssl_context=ssl_context)
    return SharedPort(listeners, ssl_context, limits)
