"""HTTP as the channel needs it: one request, one streamed answer, and typed errors for what goes wrong below."""

from __future__ import annotations

import copy
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpcore2
import httpx2

from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RemoteProtocolError
from mcp_transports.http.client.errors import AccessRefused, HttpRefused, refusal
from mcp_transports.http.client.senders import Body, Headers, PostReply, RequestSender, shown

__all__ = ["Answer", "Body", "Headers", "HttpRequester"]

# What is read of a body that is no JSON-RPC message.
MAX_REFUSAL_BYTES = 4096
# A dead peer behind a silent stream is noticed by TCP alone: servers need not send comments. After 45 s of silence
# three probes, 15 s apart; the names differ between systems, and what one does not know stays at its default.
KEEPALIVE = {"TCP_KEEPIDLE": 45, "TCP_KEEPALIVE": 45, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}

# The same things go wrong in both of the libraries, each of which has classes of its own for them.
_FAILURES = (
    httpx2.HTTPError,
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    httpcore2.UnsupportedProtocol,
)
_NEVER_SENT = (
    *(httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError),
    *(httpx2.UnsupportedProtocol, httpcore2.ConnectError, httpcore2.ConnectTimeout),
)


def _words(error: BaseException) -> str:
    """The first words about an error: a certificate that is refused is two causes down."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


class Answer:
    """An answer whose body has not been read yet; only good inside `HttpRequester.ask`."""

    def __init__(self, reply: PostReply, wire: HttpRequester) -> None:
        self._reply = reply
        self._wire = wire
        self.max_bytes = wire.max_message_bytes
        self.status = reply.status
        self.media_type = (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def streams(self) -> bool:
        """Whether it is an event stream."""
        return self.ok and self.media_type == "text/event-stream"

    @property
    def temporary(self) -> bool:
        """Whether the same question may be answered later."""
        return self.status in (408, 409, 425, 429) or self.status >= 500

    @property
    def json(self) -> bool:
        return self.media_type == "application/json"

    def header(self, name: str) -> str | None:
        """The value of a header, of all that have this name if there are several; ``name`` is in lower case."""
        wanted = name.encode()
        values = [
            value.decode("utf-8", "replace") for each, value in self._reply.headers if each.lower() == wanted
        ]
        return ", ".join(values) if values else None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Close it with `contextlib.aclosing`."""
        try:
            async with aclosing(self._reply.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except _FAILURES as error:
            raise self._wire.typed(error) from error

    async def body(self) -> bytes:
        """All of the body, which leaves the connection to others; raises `RemoteProtocolError` if it is longer than a
        message may be.
        """
        length = self.header("content-length")
        if length is None or not (length.isdecimal() and len(length) < 20) or int(length) <= self.max_bytes:
            data = await self._read(self.max_bytes + 1)
            if len(data) <= self.max_bytes:
                await self._reply.aclose()
                return data
        raise RemoteProtocolError(f"{self._wire.peer} sent an answer longer than {self.max_bytes} bytes")

    async def _read(self, most: int) -> bytes:
        read, length = [], 0
        try:
            async with aclosing(self._reply.pieces()) as pieces:
                async for piece in pieces:
                    read.append(piece)
                    length += len(piece)
                    if length >= most:
                        break
        except _FAILURES as error:
            raise self._wire.typed(error) from error
        return b"".join(read)

    async def refused(self) -> HttpRefused | AccessRefused:
        """What its status says, with the beginning of its body."""
        return self.refused_with(await self._read(MAX_REFUSAL_BYTES))

    def refused_with(self, body: bytes) -> HttpRefused | AccessRefused:
        """The same for a body that has been read."""
        location = None
        if 300 <= self.status < 400 and (named := self.header("location")) is not None:
            try:
                location = shown(self._wire.url.join(named))
            except httpx2.InvalidURL:
                pass
        return refusal(
            self._wire.peer,
            self.status,
            body[:MAX_REFUSAL_BYTES],
            location=location,
            challenge=self.header("www-authenticate"),
        )

    def keep_alive(self) -> None:
        """Has the operating system probe the peer of a stream that may be silent for long."""
        stream = self._reply.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


class HttpRequester:
    """Asks one server by HTTP; the URL is that of ``way``."""

    def __init__(self, way: RequestSender, *, max_message_bytes: int, peer: str) -> None:
        self.peer = peer
        self.max_message_bytes = max_message_bytes
        self._way = way
        self._contacted = False

    @property
    def url(self) -> httpx2.URL:
        return self._way.url

    def at(self, url: httpx2.URL) -> HttpRequester:
        """The same for another URL of the same server."""
        wire = copy.copy(self)
        wire._way = self._way.at(url)
        return wire

    @asynccontextmanager
    async def ask(self, method: str, headers: Headers, body: Body | None = None) -> AsyncIterator[Answer]:
        """Sends a request and yields its answer, which is closed at the end of the block, its connection with it if
        it was not read to its end.

        Raises `ConnectFailed` when nobody was reached at first contact, `ConnectionLost` when the network failed later,
        `LocalProtocolError` for headers that cannot be sent; reading the answer raises `ConnectionLost` and
        `RemoteProtocolError`, the latter for an encoding that is broken.
        """
        reply = await self._send(method, headers, body)
        try:
            yield Answer(reply, self)
        finally:
            await reply.aclose()

    async def _send(self, method: str, headers: Headers, body: Body | None) -> PostReply:
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body.data))]
        try:
            reply = await self._way.send(method, headers, body)
        except _FAILURES as error:
            raise self.typed(error) from error
        self._contacted = True
        return reply

    def typed(self, error: Exception) -> McpError:
        """What went wrong, as one of this package's errors."""
        said = _words(error)
        if isinstance(error, (httpx2.LocalProtocolError, httpcore2.LocalProtocolError)):
            return LocalProtocolError(f"the request cannot be sent by HTTP: {said}")
        if isinstance(error, httpx2.DecodingError):
            return RemoteProtocolError(f"{self.peer} sent a body that cannot be decoded: {said}")
        if isinstance(error, _NEVER_SENT):
            if not self._contacted:
                advice = "" if "certificate" in said else "; is the server running there?"
                return ConnectFailed(f"cannot connect to {self.peer}: {said}{advice}")
            return ConnectionLost(f"{self.peer} cannot be reached any more: {said}")
        return ConnectionLost(f"the connection to {self.peer} broke: {said}")
