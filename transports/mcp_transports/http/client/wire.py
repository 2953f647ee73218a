"""HTTP as the channel needs it: one request, one streamed answer, and typed errors for what goes wrong below."""

from __future__ import annotations

import copy
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import httpx2
import trio

from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RemoteProtocolError
from mcp_transports.http.client.errors import AccessRefused, HttpRefused, refusal

__all__ = ["Answer", "Body", "Headers", "Wire", "shown"]

Headers = Sequence[tuple[bytes, bytes]]

# What is read of a body that is no JSON-RPC message.
MAX_REFUSAL_BYTES = 4096
# A dead peer behind a silent stream is noticed by TCP alone: servers need not send comments. After 45 s of silence
# three probes, 15 s apart; the names differ between systems, and what one does not know stays at its default.
KEEPALIVE = {"TCP_KEEPIDLE": 45, "TCP_KEEPALIVE": 45, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}

_NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def _words(error: BaseException) -> str:
    """The first words about an error: a certificate that is refused is two causes down."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def shown(url: httpx2.URL) -> str:
    """A URL for logs and messages: without the places in which secrets are kept."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


class Body(httpx2.AsyncByteStream):
    """What is sent; ``sent`` is set when all of it was written."""

    def __init__(self, data: bytes, sent: trio.Event) -> None:
        self.data = data
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data
        self._sent.set()


class Answer:
    """An answer whose body has not been read yet; only good inside `Wire.ask`."""

    def __init__(self, response: httpx2.Response, wire: Wire) -> None:
        self._response = response
        self._wire = wire
        self._peer = wire.peer
        self.max_bytes = wire.max_message_bytes
        self.status = response.status_code
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()

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
        value: str | None = self._response.headers.get(name)
        return value

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Close it with `contextlib.aclosing`."""
        try:
            async with aclosing(self._response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    yield piece
        except httpx2.HTTPError as error:
            raise self._wire.typed(error) from error

    async def body(self) -> bytes:
        """All of the body; raises `RemoteProtocolError` if it is longer than a message may be."""
        length = self.header("content-length")
        if length is None or not (length.isdecimal() and len(length) < 20) or int(length) <= self.max_bytes:
            data = await self._read(self.max_bytes + 1)
            if len(data) <= self.max_bytes:
                return data
        raise RemoteProtocolError(f"{self._peer} sent an answer longer than {self.max_bytes} bytes")

    async def _read(self, most: int) -> bytes:
        data = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) >= most:
                    break
        return bytes(data)

    async def refused(self) -> HttpRefused | AccessRefused:
        """What its status says, with the beginning of its body."""
        return self.refused_with(await self._read(MAX_REFUSAL_BYTES))

    def refused_with(self, body: bytes) -> HttpRefused | AccessRefused:
        """The same for a body that has been read."""
        location = None
        if 300 <= self.status < 400 and (named := self.header("location")) is not None:
            try:
                location = shown(self._response.url.join(named))
            except httpx2.InvalidURL:
                pass
        return refusal(
            self._peer,
            self.status,
            body[:MAX_REFUSAL_BYTES],
            location=location,
            challenge=self.header("www-authenticate"),
        )

    def keep_alive(self) -> None:
        """Has the operating system probe the peer of a stream that may be silent for long."""
        stream = self._response.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Wire:
    """Asks one server by HTTP. ``url`` is where to, ``headers`` come with every request."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: httpx2.URL,
        headers: Headers,
        *,
        connect_timeout: float,
        max_message_bytes: int,
        peer: str,
    ) -> None:
        self.url = url
        self.peer = peer
        self.max_message_bytes = max_message_bytes
        self._client = client
        self._headers = headers
        # Waiting for an answer is timed by the engine's own two clocks, waiting for room in the pool as well.
        self._timeout = httpx2.Timeout(connect=connect_timeout, read=None, write=None, pool=None)
        self._contacted = False

    def at(self, url: httpx2.URL) -> Wire:
        """The same for another URL of the same server."""
        wire = copy.copy(self)
        wire.url = url
        return wire

    @asynccontextmanager
    async def ask(self, method: str, headers: Headers, body: Body | None = None) -> AsyncIterator[Answer]:
        """Sends a request and yields its answer, which is closed at the end of the block, its connection with it if
        it was not read to its end.

        Raises `ConnectFailed` when nobody was reached at first contact, `ConnectionLost` when the network failed later,
        `LocalProtocolError` for headers that cannot be sent; reading the answer raises `ConnectionLost` and
        `RemoteProtocolError`, the latter for an encoding that is broken.
        """
        response = await self._send(method, headers, body)
        try:
            yield Answer(response, self)
        finally:
            await response.aclose()

    async def _send(self, method: str, headers: Headers, body: Body | None) -> httpx2.Response:
        all_headers = [*self._headers, *headers]
        if body is not None:
            all_headers.append((b"content-length", b"%d" % len(body.data)))
        if self._client.is_closed:
            raise LocalProtocolError("the HTTP client that this transport was given is closed")
        request = self._client.build_request(
            method, self.url, headers=all_headers, content=body, timeout=self._timeout
        )
        try:
            response = await self._client.send(request, stream=True, follow_redirects=False)
        except httpx2.HTTPError as error:
            raise self.typed(error) from error
        except McpError:
            raise
        except Exception as error:
            # An auth flow or an event hook of the user's own client; the other requests must not suffer from it.
            raise ConnectFailed(f"the HTTP client could not ask {self.peer}: {error!r}") from error
        self._contacted = True
        return response

    def typed(self, error: httpx2.HTTPError) -> McpError:
        """What went wrong, as one of this package's errors."""
        said = _words(error)
        if isinstance(error, httpx2.LocalProtocolError):
            return LocalProtocolError(f"the request cannot be sent by HTTP: {said}")
        if isinstance(error, httpx2.DecodingError):
            return RemoteProtocolError(f"{self.peer} sent a body that cannot be decoded: {said}")
        if isinstance(error, _NEVER_SENT):
            if not self._contacted:
                advice = "" if "certificate" in said else "; is the server running there?"
                return ConnectFailed(f"cannot connect to {self.peer}: {said}{advice}")
            return ConnectionLost(f"{self.peer} cannot be reached any more: {said}")
        return ConnectionLost(f"the connection to {self.peer} broke: {said}")
