"""The server of a load: asked once through the ordinary client, then driven raw where there is a field for its URL."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import attrs
import click
import trio

from mcp_actors import Client
from mcp_actors.cli.arguments import fitted, tool_arguments
from mcp_actors.cli.bench.http import HttpField
from mcp_actors.cli.bench.plan import Era, LoadError, PlannedCall, tool_call
from mcp_actors.cli.bench.streams import Ends, Lines, StreamField, WebSocketFrames, upgrade
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, takes_headers
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.progress import CallView
from mcp_actors.errors import McpError
from mcp_actors.supervision.platform import split_line

__all__ = ["BenchTarget", "PipedServers", "RawField", "has_raw_field", "look_at", "raw_field"]


# The oldest binding over HTTP has its answers on a stream of their own.
_OF_TWO_STREAMS = "/sse"


@attrs.frozen
class BenchTarget:
    """The description that a server gives of itself."""

    era: str
    version: str
    server: str
    calls: list[PlannedCall]
    through_client: bool
    login: bool


def look_at(
    connection: ConnectionOptions, tool: str | None, words: Sequence[str], calls: list[PlannedCall]
) -> BenchTarget:
    """Connects once, and leaves.

    Args:
        connection: The server.
        tool: The tool to be called, if one was named.
        words: Its arguments as they were written.
        calls: The calls of a file, otherwise.

    Raises:
        WrongUsage: The server has no such tool.
        CommandFailure: It cannot be reached, or asks for a login.
        McpError: It failed in another way.
    """
    values = tool_arguments(words)
    needed = (
        {tool} if tool else {str(each.params.get("name")) for each in calls if each.method == "tools/call"}
    )

    async def work(client: Client) -> BenchTarget:
        schemas: dict[str, Any] = {}
        if client.server_capabilities.tools is not None:
            async for each in client.tools():
                schemas[each.name] = each.input_schema
        missing = sorted(needed - schemas.keys())
        if missing:
            raise WrongUsage(_no_tool(missing[0], sorted(schemas)))
        planned = calls
        if tool:
            planned = [tool_call(tool, fitted(values, words, schemas.get(tool)))]
        named = f"{client.server_info.name} {client.server_info.version}".strip()
        return BenchTarget(client.era, client.version, named, planned, False, False)

    view = CallView()
    found = run_with_client(connection, work, view)
    login = _has_login(connection)
    # A sign of the oldest binding: its own client finds the place for the requests by itself.
    two_streams = connection.url.partition("?")[0].endswith(_OF_TWO_STREAMS)
    through_client = login or two_streams or not has_raw_field(connection.url)
    return attrs.evolve(found, through_client=through_client, login=login)


def _has_login(connection: ConnectionOptions) -> bool:
    if not takes_headers(connection.url) or "authorization" in map(str.lower, connection.headers):
        return False
    try:
        auth = trio.run(importlib.import_module("mcp_actors.cli.login").stored_auth, connection.url)
    except McpError as error:
        raise click.ClickException(str(error)) from error
    return auth is not None


def _no_tool(tool: str, names: list[str]) -> str:
    close = difflib.get_close_matches(tool, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"the server has no tool {tool!r}{meant}\nits tools: {', '.join(names[:10]) or 'none'}"


# -- From a URL to the field that drives its server ----------------------------------------------------

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
        """Starts one more. Raises `LoadError` if the program does not exist."""
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
        # The ends of the pipes are closed already: a server ends on that.
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
