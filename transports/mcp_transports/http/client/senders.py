"""The two senders of requests: one through an HTTP client of httpx2, and one on connections of our own."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, Self

import httpcore2
import httpx2
import trio

from mcp_actors.errors import ConnectFailed, LocalProtocolError, McpError
from mcp_transports.http.client.pool import AnySocket, ClientConnection, ConnectionPool, encode_header_lines

__all__ = [
    "AccessWaiter",
    "ClientSender",
    "Headers",
    "PooledSender",
    "RawResponse",
    "RequestBody",
    "RequestSender",
    "read_chunks",
    "without_secrets",
]

Headers = Sequence[tuple[bytes, bytes]]

USER_AGENT = (b"user-agent", f"python-httpx2/{httpx2.__version__}".encode())


def without_secrets(url: httpx2.URL) -> str:
    """Returns a URL for logs and messages: without user, password, query and fragment, which may hold secrets."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


class RequestBody(httpx2.AsyncByteStream):
    """The body of a request. ``sent`` is set when all of it was written.

    It ``is_repeatable`` if its message changes nothing, or the same whether it comes once or twice.
    """

    def __init__(self, data: bytes, sent: trio.Event, *, is_repeatable: bool = False) -> None:
        self.data = data
        self.sent = sent
        self.is_repeatable = is_repeatable

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data
        self.sent.set()


class RawResponse(Protocol):
    """A response whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def socket(self) -> AnySocket | None:
        """The socket that it comes from, where that is known."""
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives, decoded. Close it with `contextlib.aclosing`."""
        ...

    async def read(self, enough: int) -> bytes:
        """Returns the body, decoded, or its beginning if that has ``enough`` bytes or more."""
        ...

    async def aclose(self) -> None:
        """Closes the response, and its connection unless the body was read to its end. May be called twice."""
        ...


async def read_chunks(chunks: AsyncGenerator[bytes, None], enough: int) -> bytes:
    """Reads and closes ``chunks``, up to the one with which there are ``enough`` bytes."""
    parts, length = [], 0
    async with aclosing(chunks):
        async for chunk in chunks:
            parts.append(chunk)
            length += len(chunk)
            if length >= enough:
                break
    return b"".join(parts)


class AccessWaiter(Protocol):
    """A message that a request carries, seen from a sender that may have to get access to the server first."""

    is_refused: bool
    """Set while access is being had, because the server did not take the message."""

    @property
    def operation(self) -> str:
        """The method and the name of what the message is about, ``"tools/call:echo"``; empty if it asks for nothing."""

    def hold(self) -> None:
        """A person begins to be asked: no clock of the message may run."""

    def release(self) -> None:
        """The person is asked no more. Follows each `hold`."""


class RequestSender(Protocol):
    """Sends requests to ``url``, each with the headers that all requests to this server have."""

    url: httpx2.URL

    def with_url(self, url: httpx2.URL) -> Self:
        """Returns a sender for another URL of the same server."""
        ...

    async def send(
        self, method: str, headers: Headers, body: RequestBody | None, waiter: AccessWaiter | None = None
    ) -> RawResponse:
        """Sends a request and waits for the head of its response; ``waiter`` learns if access has to be had first.

        Errors of httpx2 and httpcore2 are raised as they are; `HttpRequester` translates them. Cancelled, it closes the
        connection, and the request may have been sent.
        """
        ...


class ClientSender:
    """Sends through an `httpx2.AsyncClient`, with its proxies, authorization and event hooks.

    Args:
        client: the client; it is not closed.
        url: the URL that the requests go to.
        headers: headers that every request has.
        connect_timeout: seconds for a connection to be made.
    """

    def __init__(
        self, client: httpx2.AsyncClient, url: httpx2.URL, headers: Headers, *, connect_timeout: float
    ) -> None:
        self.url = url
        self._client = client
        self._headers = headers
        # The engine's deadlines bound the wait for a response and for a free connection.
        self._timeout = httpx2.Timeout(connect=connect_timeout, read=None, write=None, pool=None)

    def with_url(self, url: httpx2.URL) -> Self:
        sender = copy.copy(self)
        sender.url = url
        return sender

    async def send(
        self, method: str, headers: Headers, body: RequestBody | None, waiter: AccessWaiter | None = None
    ) -> RawResponse:
        """Sends a request and waits for the head of its response; see `RequestSender.send`.

        Raises:
            ConnectFailed: the client's authorization or one of its event hooks failed.
            LocalProtocolError: the client is closed.
        """
        if self._client.is_closed:
            raise LocalProtocolError("the HTTP client that this transport was given is closed")
        request = self._client.build_request(
            method, self.url, headers=[*self._headers, *headers], content=body, timeout=self._timeout
        )
        try:
            return _ClientResponse(await self._client.send(request, stream=True, follow_redirects=False))
        except (httpx2.HTTPError, McpError):
            raise
        except Exception as error:
            # It came from an authorization flow or an event hook of the user's client.
            raise ConnectFailed(
                f"the HTTP client could not ask {without_secrets(self.url)}: {error!r}"
            ) from error


class _ClientResponse:
    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers.raw
        self.aclose = response.aclose
        self._response = response

    @property
    def socket(self) -> AnySocket | None:
        stream = self._response.extensions.get("network_stream")
        return None if stream is None else stream.get_extra_info("socket")

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self._response.aiter_bytes()

    async def read(self, enough: int) -> bytes:
        return await read_chunks(self.chunks(), enough)


class PooledSender:
    """Sends on connections of our own, for servers that need few of the features of a whole HTTP client.

    It sends the user and password of the URL, and cookies, by which load balancers find the right server again.

    Args:
        pool: the connections.
        url: the URL that the requests go to.
        headers: headers that every request has.
    """

    def __init__(self, pool: ConnectionPool, url: httpx2.URL, headers: Headers) -> None:
        self._pool = pool
        self._given_headers = headers
        self._cookies = httpx2.Cookies()
        self._set_url(url)

    def _set_url(self, url: httpx2.URL) -> None:
        self.url = url
        given = self._given_headers
        if url.userinfo:
            request = httpx2.Request("POST", url)
            next(httpx2.BasicAuth(url.username, url.password).auth_flow(request))
            authorization = (b"authorization", request.headers["authorization"].encode("ascii"))
            given = [*(each for each in given if each[0].lower() != b"authorization"), authorization]
        names = {name.lower() for name, _ in given}
        own = [(b"host", url.netloc), USER_AGENT]
        self._headers = [*(each for each in own if each[0] not in names), *given]
        self._may_add_cookies = b"cookie" not in names
        # The beginning of each request, by method.
        self._beginnings: dict[str, bytes] = {}

    def with_url(self, url: httpx2.URL) -> Self:
        sender = copy.copy(self)
        sender._set_url(url)
        return sender

    async def send(
        self, method: str, headers: Headers, body: RequestBody | None, waiter: AccessWaiter | None = None
    ) -> RawResponse:
        if self._cookies and self._may_add_cookies:
            headers = [*headers, *self._cookie_headers(method)]
        beginning = self._beginnings.get(method) or self._beginning(method)
        request = b"%b%b\r\n" % (beginning, encode_header_lines(headers))
        sent: trio.Event | None = None
        if body is not None:
            request, sent = request + body.data, body.sent
        connection = await self._pool.acquire()
        was_idle = connection.is_idle
        try:
            await connection.exchange(request, sent)
        except (httpcore2.ReadError, httpcore2.RemoteProtocolError):
            await self._pool.release(connection)
            if not _may_be_repeated(connection, was_idle, headers, body):
                raise
            connection = await self._exchanged_anew(request, sent)
        except BaseException:
            await self._pool.release(connection)
            raise
        response = _PooledResponse(connection, self._pool)
        if b"set-cookie" in response.names:
            self._store_cookies(method, response)
        return response

    async def _exchanged_anew(self, request: bytes, sent: trio.Event | None) -> ClientConnection:
        connection = await self._pool.acquire(is_new=True)
        try:
            await connection.exchange(request, sent)
        except BaseException:
            await self._pool.release(connection)
            raise
        return connection

    def _beginning(self, method: str) -> bytes:
        lines = encode_header_lines(self._headers)
        beginning = b"%b %b HTTP/1.1\r\n%b" % (method.encode("ascii"), self.url.raw_path, lines)
        self._beginnings[method] = beginning
        return beginning

    def _cookie_headers(self, method: str) -> list[tuple[bytes, bytes]]:
        request = httpx2.Request(method, self.url)
        self._cookies.set_cookie_header(request)
        return [each for each in request.headers.raw if each[0].lower() == b"cookie"]

    def _store_cookies(self, method: str, response: RawResponse) -> None:
        request = httpx2.Request(method, self.url)
        self._cookies.extract_cookies(
            httpx2.Response(response.status, headers=response.headers, request=request)
        )


def _may_be_repeated(
    connection: ClientConnection, was_idle: bool, headers: Headers, body: RequestBody | None
) -> bool:
    """Whether a request whose connection has ended may be sent once more, on a new one.

    A server that did not get all of it has not carried it out. One that closes an idle connection does not see what
    arrives just then, but whether it was so cannot be known: what is repeated then are requests that RFC 9110 section
    9.2.2 and this project call idempotent (RFC 9112 section 9.3.1). A proof of possession is good for one use.
    """
    if not connection.is_unanswered:
        return False
    if not connection.was_sent:
        return True
    is_idempotent = body is None or body.is_repeatable
    return was_idle and is_idempotent and not any(name == b"dpop" for name, _ in headers)


class _PooledResponse:
    """The response of a connection, which it keeps until it is closed."""

    __slots__ = ("_connection", "_is_closed", "_pool", "headers", "names", "status")

    def __init__(self, connection: ClientConnection, pool: ConnectionPool) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.names = {name for name, _ in connection.headers}
        self._connection = connection
        self._pool = pool
        self._is_closed = False

    @property
    def socket(self) -> AnySocket:
        return self._connection.stream.socket

    def chunks(self) -> AsyncGenerator[bytes, None]:
        if b"content-encoding" not in self.names:
            return self._parts()
        # A server may compress although we asked for identity. Only httpx2 has the decoders for that.
        stream = _EncodedStream(self._parts)
        return httpx2.Response(self.status, headers=self.headers, stream=stream).aiter_bytes()

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        while not self._is_closed and (part := await self._connection.read()):
            yield part

    async def read(self, enough: int) -> bytes:
        if b"content-encoding" in self.names:
            return await read_chunks(self.chunks(), enough)
        data = await self._connection.read()
        if not data or len(data) >= enough:
            return data
        parts, length = [data], len(data)
        while length < enough and (data := await self._connection.read()):
            parts.append(data)
            length += len(data)
        return b"".join(parts)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._pool.release(self._connection)


class _EncodedStream(httpx2.AsyncByteStream):
    def __init__(self, parts: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                yield part
