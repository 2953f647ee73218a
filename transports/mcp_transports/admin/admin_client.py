"""A client of the admin endpoint: what ``mcp-actors top`` looks through.

Nothing that it is sent is believed: a snapshot has a bound on its bytes and the members that it must have.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore2
import msgspec
import trio

from mcp_actors.errors import ConnectFailed, ConnectionLost, RemoteProtocolError
from mcp_actors.telemetry.live_view import Action, ActionOutcome
from mcp_actors.telemetry.snapshot import Snapshot, cleaned
from mcp_transports._sockets import why_not_connected
from mcp_transports.admin.access import is_trusted
from mcp_transports.http.client.pool import AnySocket, ClientConnection, encode_header_lines

__all__ = ["AdminClient", "AdminRefused"]

# Bytes of a snapshot of all nodes, or of any other answer.
LONGEST = 32 * 1024 * 1024
# Seconds until there is a connection, and until an answer begins or goes on. Snapshots of slow servers are far apart.
CONNECT_TIME = 10.0
SILENCE = 60.0
_RECEIVE_BYTES = 65536
_EVENT = b"data: "

T = TypeVar("T")

_SNAPSHOT: msgspec.json.Decoder[Snapshot] = msgspec.json.Decoder(Snapshot)
_OUTCOME: msgspec.json.Decoder[ActionOutcome] = msgspec.json.Decoder(ActionOutcome)


class AdminRefused(ConnectFailed):
    """The endpoint answered with a status that is not that of success.

    Args:
        status: The HTTP status.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Bytes:
    """A stream of Trio for a `ClientConnection`."""

    def __init__(self, stream: trio.abc.Stream, connected: AnySocket) -> None:
        self.socket = connected
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def receive(self) -> bytes:
        try:
            with trio.fail_after(SILENCE):
                return bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            raise httpcore2.ReadError(str(error) or "the endpoint is silent") from error

    def is_readable(self) -> bool:
        return False

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class AdminClient:
    """Looks through one admin endpoint. Every request has a connection of its own.

    Args:
        where: ``unix:/run/x.sock`` or a path, or a URL, with the token behind ``#`` as the server has shown it.
        token: The token, if it is not in the URL.

    Raises:
        ValueError: It is neither a socket nor a URL of HTTP.
    """

    def __init__(self, where: str, token: str | None = None) -> None:
        parts = urlsplit(where)
        self._path: str | None = None
        self._host, self._port, self._secure = "localhost", 0, parts.scheme == "https"
        if parts.scheme in ("http", "https"):
            if not parts.hostname or parts.path not in ("", "/"):
                raise ValueError("a live view is at http://HOST:PORT, without a path")
            self._host, self._port = parts.hostname, parts.port or (443 if self._secure else 80)
            token = token or parts.fragment or None
        elif parts.scheme == "unix" or where.startswith(("/", "./", "../")):
            path = where.removeprefix("unix:")
            if not path:
                raise ValueError("unix: needs a path: unix:admin.sock or unix:/run/weather/admin.sock")
            self._path = "/" + path.lstrip("/") if path.startswith("//") else path
        else:
            raise ValueError(
                f"a live view is at unix:PATH or http://HOST:PORT, not at {where.partition('#')[0]!r}"
            )
        self._token = token

    def __repr__(self) -> str:
        return f"<AdminClient {self.name}>"

    @property
    def name(self) -> str:
        """The address, without the token."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f"http{'s' if self._secure else ''}://{self._authority}"

    @property
    def _authority(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._path is not None else f"{host}:{self._port}"

    async def snapshot(self) -> Snapshot:
        """Returns one snapshot.

        Raises:
            ConnectFailed: No endpoint answers there; `AdminRefused` if one refuses.
            ConnectionLost: The connection broke.
            RemoteProtocolError: The answer is not a snapshot.
        """
        async with self._exchange("GET", "/snapshot") as connection:
            return _decoded(_SNAPSHOT, await _body(connection))

    async def act(self, action: Action) -> ActionOutcome:
        """Does something at the server. Raises as `snapshot` does."""
        body = msgspec.json.encode(action)
        async with self._exchange("POST", "/actions", body, refused=(400, 409)) as connection:
            return _decoded(_OUTCOME, await _body(connection))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[AsyncIterator[Snapshot]]:
        """Yields an iterator over snapshots as they come, for the length of an ``async with`` block.

        The block, and each step of the iterator, raise as `snapshot` does; the iterator ends with the server.
        """
        async with self._exchange("GET", "/events") as connection:
            yield _Snapshots(connection)

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes = b"", refused: tuple[int, ...] = ()
    ) -> AsyncIterator[ClientConnection]:
        connection = ClientConnection(await self._connect())
        try:
            await connection.exchange(self._head(method, path, body) + body)
            if connection.status != 200 and connection.status not in refused:
                raise AdminRefused(connection.status, _refusal(connection.status, self.name))
            yield connection
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise ConnectionLost(f"the connection to {self.name} ended: {cleaned(str(error))}") from error
        finally:
            await connection.aclose()

    def _head(self, method: str, path: str, body: bytes) -> bytes:
        headers = [(b"host", self._authority.encode()), (b"connection", b"close")]
        if self._token is not None:
            headers.append((b"authorization", f"Bearer {self._token}".encode()))
        if body:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        return f"{method} {path} HTTP/1.1\r\n".encode() + encode_header_lines(headers) + b"\r\n"

    async def _connect(self) -> _Bytes:
        try:
            with trio.fail_after(CONNECT_TIME):
                if self._path is not None:
                    stream = await trio.open_unix_socket(self._path)
                    if not is_trusted(stream.socket):
                        # Another user may have put a socket there, who must not receive the secret.
                        self._token = None
                else:
                    stream = await trio.open_tcp_stream(self._host, self._port)
                if self._secure:
                    return _Bytes(await self._secured(stream), stream.socket)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError) as error:
            # Trio says of a handshake that failed only that it did.
            cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
            reason = why_not_connected(cause) if isinstance(cause, OSError) else str(cause or "")
            reason = reason or "no answer in time"
            raise ConnectFailed(
                f"no live view at {self.name}: {cleaned(reason)}; "
                "a server has one where `mcp-actors serve --admin` says"
            ) from error
        return _Bytes(stream, stream.socket)

    async def _secured(self, stream: trio.SocketStream) -> trio.abc.Stream:
        """Returns the stream with TLS; closes it if that fails or is cancelled."""
        secured = trio.SSLStream(
            stream, ssl.create_default_context(), server_hostname=self._host, https_compatible=True
        )
        try:
            await secured.do_handshake()
        except BaseException:
            stream.socket.close()
            raise
        return secured


class _Snapshots:
    """The events of a response, decoded."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._received = bytearray()

    def __aiter__(self) -> _Snapshots:
        return self

    async def __anext__(self) -> Snapshot:
        while (end := self._received.find(b"\n\n")) < 0:
            more = await self._connection.read()
            if not more:
                raise StopAsyncIteration
            self._received += more
            _check(len(self._received))
        event = bytes(self._received[:end])
        del self._received[: end + 2]
        if not event.startswith(_EVENT):
            raise RemoteProtocolError("what was sent is no snapshot of a server")
        return _decoded(_SNAPSHOT, event[len(_EVENT) :])


async def _body(connection: ClientConnection) -> bytes:
    received = bytearray()
    while more := await connection.read():
        received += more
        _check(len(received))
    return bytes(received)


def _check(size: int) -> None:
    if size > LONGEST:
        raise RemoteProtocolError(f"a snapshot is longer than {LONGEST} bytes")


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The reason has what was sent in it.
        raise RemoteProtocolError(
            f"what was sent is no snapshot of a server: {cleaned(str(error))}"
        ) from error


def _refusal(status: int, name: str) -> str:
    if status == 401:
        return (
            f"{name} asks for its token, and was given none or another: give the URL with #TOKEN, as the server "
            "has shown it, or set MCP_ACTORS_ADMIN_TOKEN"
        )
    if status == 403:
        return f"{name} is not for this user or this token, or was called by another name than its own"
    if status == 503:
        return f"{name} has as many watchers or connections as it takes"
    return f"{name} answered with status {status}: it is no live view of a server"
