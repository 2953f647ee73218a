"""How a request reaches the server: through an HTTP client of httpx2, or on connections of our own."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, Self

import httpcore2
import httpx2
import trio

from mcp_actors.errors import ConnectFailed, LocalProtocolError, McpError
from mcp_transports.http.client.pool import ConnectionPool

__all__ = ["Body", "ClientSender", "Headers", "PooledSender", "PostReply", "RequestSender", "shown"]

Headers = Sequence[tuple[bytes, bytes]]

USER_AGENT = (b"user-agent", f"python-httpx2/{httpx2.__version__}".encode())


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


class PostReply(Protocol):
    """An answer whose body is still to come; ``extensions`` are those of httpcore2."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def extensions(self) -> Mapping[str, Any]: ...

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, decoded. Close it with `contextlib.aclosing`."""
        ...

    async def aclose(self) -> None:
        """Closes its connection if it was not read to its end. Doing so twice is no error."""
        ...


class RequestSender(Protocol):
    """Sends requests to ``url``, each with what its server is always told."""

    url: httpx2.URL

    def at(self, url: httpx2.URL) -> Self:
        """The same for another URL of the same server."""
        ...

    async def send(self, method: str, headers: Headers, body: Body | None) -> PostReply:
        """Returns when the head of the answer is there. Raises what httpx2 or httpcore2 raise."""
        ...


class ClientSender:
    """Through a whole `httpx2.AsyncClient`: what it knows of proxies, authorization and hooks is heeded."""

    def __init__(
        self, client: httpx2.AsyncClient, url: httpx2.URL, headers: Headers, *, connect_timeout: float
    ) -> None:
        self.url = url
        self._client = client
        self._headers = headers
        # Waiting for an answer is timed by the engine's own two clocks, waiting for room in the pool as well.
        self._timeout = httpx2.Timeout(connect=connect_timeout, read=None, write=None, pool=None)

    def at(self, url: httpx2.URL) -> Self:
        way = copy.copy(self)
        way.url = url
        return way

    async def send(self, method: str, headers: Headers, body: Body | None) -> PostReply:
        if self._client.is_closed:
            raise LocalProtocolError("the HTTP client that this transport was given is closed")
        request = self._client.build_request(
            method, self.url, headers=[*self._headers, *headers], content=body, timeout=self._timeout
        )
        try:
            return _ClientPostReply(await self._client.send(request, stream=True, follow_redirects=False))
        except (httpx2.HTTPError, McpError):
            raise
        except Exception as error:
            # An auth flow or an event hook of the user's own client; the other requests must not suffer from it.
            raise ConnectFailed(f"the HTTP client could not ask {shown(self.url)}: {error!r}") from error


class _ClientPostReply:
    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers.raw
        self.extensions = response.extensions
        self.aclose = response.aclose
        self._response = response

    def pieces(self) -> AsyncGenerator[bytes, None]:
        return self._response.aiter_bytes()


class PooledSender:
    """On connections of our own, for servers that need nothing of what a whole client does but these: the user and
    password of the URL, and cookies, by which load balancers know whom they sent where.
    """

    def __init__(self, connections: ConnectionPool, url: httpx2.URL, headers: Headers) -> None:
        self._connections = connections
        self._given = headers
        self._cookies = httpx2.Cookies()
        self._lead_to(url)

    def _lead_to(self, url: httpx2.URL) -> None:
        self.url = url
        self._target = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        given = self._given
        if url.userinfo:
            request = httpx2.Request("POST", url)
            next(httpx2.BasicAuth(url.username, url.password).auth_flow(request))
            authorization = (b"authorization", request.headers["authorization"].encode("ascii"))
            given = [*(each for each in given if each[0].lower() != b"authorization"), authorization]
        names = {name.lower() for name, _ in given}
        own = [(b"host", url.netloc), USER_AGENT]
        self._headers = [*(each for each in own if each[0] not in names), *given]
        self._may_add_cookies = b"cookie" not in names

    def at(self, url: httpx2.URL) -> Self:
        way = copy.copy(self)
        way._lead_to(url)
        return way

    async def send(self, method: str, headers: Headers, body: Body | None) -> PostReply:
        all_headers = [*self._headers, *headers]
        if self._cookies and self._may_add_cookies:
            all_headers += self._cookie_headers(method)
        request = httpcore2.Request(method, self._target, headers=all_headers, content=body)
        connection = await self._connections.take()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._connections.give_back(connection)
            raise
        names = {name.lower() for name, _ in response.headers}
        if b"set-cookie" in names:
            self._keep_cookies(method, response)
        return _PooledPostReply(response, connection, self._connections, encoded=b"content-encoding" in names)

    def _cookie_headers(self, method: str) -> list[tuple[bytes, bytes]]:
        request = httpx2.Request(method, self.url)
        self._cookies.set_cookie_header(request)
        return [each for each in request.headers.raw if each[0].lower() == b"cookie"]

    def _keep_cookies(self, method: str, response: httpcore2.Response) -> None:
        asked = httpx2.Request(method, self.url)
        self._cookies.extract_cookies(
            httpx2.Response(response.status, headers=response.headers, request=asked)
        )


class _PooledPostReply:
    def __init__(
        self,
        response: httpcore2.Response,
        connection: httpcore2.AsyncHTTP11Connection,
        connections: ConnectionPool,
        *,
        encoded: bool,
    ) -> None:
        self.status = response.status
        self.headers = response.headers
        self.extensions = response.extensions
        self._response = response
        self._connection = connection
        self._connections = connections
        self._encoded = encoded
        self._closed = False

    def pieces(self) -> AsyncGenerator[bytes, None]:
        if not self._encoded:
            return self._response.aiter_stream()
        # Compressed though nobody asked for that: decoding is what a whole client knows.
        stream = _Undecoded(self._response)
        return httpx2.Response(self.status, headers=self.headers, stream=stream).aiter_bytes()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            # Cancelled, it may not have come to its end: then the connection is not idle and is closed below.
            await self._response.aclose()
        finally:
            await self._connections.give_back(self._connection)


class _Undecoded(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.aiter_stream():
            yield piece
