"""Transports by URL scheme: the URL of a server, and the field that drives it, in whole writes or in ragged ones."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from benchmarks.suite.server import ServerProcess
from mcp_actors.cli.bench.http import HttpField
from mcp_actors.cli.bench.plan import Era, LoadError
from mcp_actors.cli.bench.streams import Ends, Lines, StreamField, WebSocketFrames, upgrade

__all__ = ["TRANSPORTS", "RaggedWrites", "Transport", "raw_field", "transport"]

CONNECT_WITHIN_SECONDS = 30.0
MOST_IN_A_GROUP = 8


@dataclass(frozen=True)
class Transport:
    """``url`` is where the server serves; {port}, {directory} and {quoted}, which is a directory with its slashes
    percent-encoded, are filled in. ``drive`` says how it is loaded:
    ``pipe``, ``lines``, ``http`` and ``ws`` raw; ``channel`` through the transport's own client; ``memory`` in one
    process with the server; ``none`` not at all.
    """

    scheme: str
    url: str
    drive: str = "channel"

    def address(self, port: int, directory: str) -> str:
        return self.url.format(port=port, directory=directory, quoted=quote(directory, safe=""))


TRANSPORTS = {
    each.scheme: each
    for each in (
        Transport("stdio", "stdio:", "pipe"),
        Transport("memory", "memory:benchmark", "memory"),
        Transport("http", "http://127.0.0.1:{port}/mcp", "http"),
        Transport("http+unix", "http+unix://{quoted}%2Fhttp/mcp", "http"),
        Transport("tcp", "tcp://127.0.0.1:{port}", "lines"),
        Transport("unix", "unix://{directory}/socket", "lines"),
        Transport("ws", "ws://127.0.0.1:{port}/mcp", "ws"),
        Transport("codec", "codec:", "none"),
    )
}


def transport(text: str) -> Transport:
    """``scheme``, or ``scheme=URL`` for one whose URL is not ``scheme://127.0.0.1:{port}``."""
    scheme, given, url = text.partition("=")
    if given:
        known = TRANSPORTS.get(scheme)
        return Transport(scheme, url, known.drive if known else "channel")
    return TRANSPORTS.get(scheme) or Transport(scheme, f"{scheme}://127.0.0.1:{{port}}")


class RaggedWrites:
    """Writes lines as ``os.write`` does, but a few at a time, and of the last of them in half of the cases the first
    bytes alone, an odd number of them. So the rest of a line comes with the next write.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data[: self.cut(data)])

    def cut(self, data: bytes) -> int:
        """Returns how many bytes are written at once: at least one."""
        start = end = 0
        for _ in range(self._chance.randint(1, MOST_IN_A_GROUP)):
            if end < len(data):
                start, end = end, data.find(b"\n", end) + 1 or len(data)
        if self._chance.getrandbits(1) or end - start < 2:
            return end
        return start + self._chance.randrange(1, end - start, 2)


def raw_field(
    here: Transport,
    era: Era,
    server: ServerProcess,
    token: str = "",
    write: Callable[[int, bytes], int] = os.write,
) -> StreamField | HttpField:
    """Returns the field that drives ``server`` with raw bytes; over HTTP with an access token, if there is one.

    ``write`` writes to pipes and sockets that carry lines.
    """
    parts = urlsplit(server.url)
    host = f"127.0.0.1:{server.port}"
    if here.drive == "pipe":
        return StreamField(era, server.take_pipes, Lines, write)
    if here.drive == "lines":
        return StreamField(era, lambda: _ends(_connect(server)), Lines, write)
    if here.drive == "ws":

        def open_web_socket() -> Ends:
            connection = _connect(server)
            upgrade(connection, host, parts.path)
            return _ends(connection)

        return StreamField(era, open_web_socket, WebSocketFrames)

    def open_http() -> socket.socket:
        connection = _connect(server)
        connection.setblocking(False)
        return connection

    headers = {"authorization": f"Bearer {token}"} if token else {}
    return HttpField(era, open_http, host, parts.path or "/", headers)


def _connect(server: ServerProcess) -> socket.socket:
    server.wait_until_open()
    try:
        if server.socket_path:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(CONNECT_WITHIN_SECONDS)
            connection.connect(server.socket_path)
            return connection
        connection = socket.create_connection(("127.0.0.1", server.port), CONNECT_WITHIN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    except OSError as error:
        raise LoadError(f"{server.url}: {error}{server.complaint()}") from error


def _ends(connection: socket.socket) -> Ends:
    descriptor = connection.detach()
    os.set_blocking(descriptor, False)
    return Ends(descriptor, descriptor, lambda: os.close(descriptor))
