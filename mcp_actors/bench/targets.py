"""From a URL to the field that drives its server: raw where there is one, otherwise through the transport's client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import unquote, urlsplit

from mcp_actors.bench.eras import Era
from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.fields.http import HttpField
from mcp_actors.bench.fields.streams import Ends, Lines, StreamField
from mcp_actors.bench.fields.websocket import WebSocketFrames, upgrade
from mcp_actors.platform.command_lines import split_line

__all__ = ["PipedServers", "RawField", "has_raw_field", "raw_field"]

_CONNECT_WITHIN_SECONDS = 5.0
_END_WITHIN_SECONDS = 2.0
_RAW = frozenset({"stdio", "http", "http+unix", "tcp", "unix", "ws"})

_NOT_HERE = "raw loads need Linux; elsewhere the engine's client makes the load"

RawField = StreamField | HttpField


class _Opener(Protocol):
    def __call__(self) -> socket.socket: ...


def has_raw_field(url: str) -> bool:
    """Returns whether a URL has a field without a scheduler: on Linux, and without TLS."""
    return sys.platform == "linux" and url.partition(":")[0].lower() in _RAW


class PipedServers:
    """The processes of servers over stdio, one for each lane. Leaving the block ends all of them.

    Each is the first of a process group, so that what it starts ends with it.
    """

    def __init__(self, command: str) -> None:
        self._words = split_line(command)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PipedServers:
        return self

    def open(self) -> Ends:
        """Starts one more. Raises `LoadError` if there is no such program."""
        if sys.platform == "win32":
            raise LoadError(_NOT_HERE)
        # Those that have ended are waited for, so that a server which crashes leaves nothing behind.
        self._running = [each for each in self._running if each.poll() is None]
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise LoadError(f"{self._words[0]}: {error.strerror}") from error
        self._running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        ends = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        for descriptor in ends:
            os.set_blocking(descriptor, False)

        def close() -> None:
            for descriptor in ends:
                os.close(descriptor)

        return Ends(*ends, close)

    def __exit__(self, *_: object) -> None:
        if sys.platform == "win32":
            return
        # The ends of the pipes are closed already: that is how a server is told to end.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for process in self._running:
                if number is not None and process.poll() is None:
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + _END_WITHIN_SECONDS
            while any(each.poll() is None for each in self._running) and time.monotonic() < deadline:
                time.sleep(0.01)


def raw_field(url: str, era: Era, headers: Mapping[str, str], servers: PipedServers | None) -> RawField:
    """Returns the field for a URL that `has_raw_field`; ``servers`` start those over stdio."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if servers is not None:
        return StreamField(era, servers.open, Lines)
    if scheme == "tcp":
        return StreamField(era, lambda: _ends(_tcp(url)), Lines)
    if scheme == "unix":
        return StreamField(era, lambda: _ends(_unix(unquote(parts.path))), Lines)
    if scheme == "ws":

        def open_web_socket() -> Ends:
            connection = _tcp(url)
            try:
                upgrade(connection, parts.netloc, path, headers)
            except (OSError, LoadError) as error:
                connection.close()
                raise LoadError(str(error)) from error
            return _ends(connection)

        return StreamField(era, open_web_socket, WebSocketFrames)
    over_unix = scheme == "http+unix"
    opener: _Opener = (lambda: _unix(unquote(parts.netloc))) if over_unix else (lambda: _tcp(url))
    host = "localhost" if over_unix else parts.netloc.rpartition("@")[2]
    return HttpField(era, _unblocked(opener), host, path, headers)


def _unblocked(opener: _Opener) -> Callable[[], socket.socket]:
    def opened() -> socket.socket:
        connection = opener()
        connection.setblocking(False)
        return connection

    return opened


def _tcp(url: str) -> socket.socket:
    parts = urlsplit(url)
    place = parts.hostname or "127.0.0.1", parts.port or 80
    try:
        connection = socket.create_connection(place, _CONNECT_WITHIN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise LoadError(f"{place[0]}:{place[1]}: {error.strerror or error}") from error
    return connection


def _unix(path: str) -> socket.socket:
    if sys.platform == "win32":
        raise LoadError(_NOT_HERE)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_WITHIN_SECONDS)
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise LoadError(f"{path}: {error.strerror or error}") from error
    return connection


def _ends(connection: socket.socket) -> Ends:
    if sys.platform == "win32":
        raise LoadError(_NOT_HERE)
    descriptor = connection.detach()
    os.set_blocking(descriptor, False)
    return Ends(descriptor, descriptor, lambda: os.close(descriptor))
