"""HTTP as the channel uses it: one request, one streamed response, and errors of this project for all failures.

A response that does not answer the request becomes an error whose text says what to do next. An event stream that ended
early can be resumed; `StreamPosition` says where, and after what delay.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType

import httpcore2
import httpx2
import msgspec

from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    RemoteProtocolError,
    Unavailable,
)
from mcp_actors.errors.protocol import see_page
from mcp_transports._sockets import advice_about, enable_keepalive
from mcp_transports.http.client.senders import (
    AccessWaiter,
    Headers,
    RawResponse,
    RequestBody,
    RequestSender,
    without_secrets,
)
from mcp_transports.http.sse import ServerSentEvent, SseDecoder

__all__ = [
    "MAX_ERROR_BYTES",
    "AccessRefused",
    "Headers",
    "HttpRefused",
    "HttpRequester",
    "HttpResponse",
    "HttpUnavailable",
    "RequestBody",
    "StreamPosition",
    "error_for_status",
    "is_outage",
    "names_forgotten_session",
    "read_events",
]

# Servers need not send comments on a silent stream, so only TCP can notice that its peer is dead: by three probes, 15 s
# apart, after 45 s of silence.
KEEPALIVE = {"idle": 45, "interval": 15, "probes": 3}

# Both libraries have classes of their own for the same failures.
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

# Bytes of an event beside its message: the names of fields, the id.
OTHER_LINES = 4096
# Seconds to wait before resuming a stream that named no time.
DEFAULT_RETRY = 1.0
# Seconds: attempts that fail wait twice as long each time, within these bounds.
LONGEST_BACKOFF = 30.0
SHORTEST_BACKOFF = 0.1
# Milliseconds: what a server says is taken within these bounds, or it would have us ask without a pause, or never.
SHORTEST_RETRY, LONGEST_RETRY = 100, 3_600_000

# Characters of a body that an error shows.
MAX_TEXT = 200
# Bytes that are read of a body that is not a JSON-RPC message.
MAX_ERROR_BYTES = 4096
# Seconds of a Retry-After header that are believed: more of them would be no wait but a refusal.
MAX_RETRY_AFTER = 3600
# What servers say of a session that they do not know, where they should answer 404 (MCP 2025-11-25, Transports, Session
# Management): "No valid session ID provided", "Session not found", "Server not initialized".
_FORGOTTEN = ("session", "not initialized")

_ADVICE = {
    400: "does it speak MCP at this path?",
    404: "check the path; MCP endpoints often end in /mcp or /sse",
    405: "check the path; nothing here takes a POST",
    406: "it offers neither JSON nor an event stream",
    413: "the message is too long for it",
    415: "it takes no JSON",
    421: "it does not serve this host name",
    429: "it is asked too much; try again later",
    502: "the server behind the proxy does not answer",
    503: "it is overloaded or being restarted; try again later",
    504: "the server behind the proxy does not answer in time",
}


# -- Requests and responses ------------------------------------------------------------------------


def _message_of(error: BaseException) -> str:
    """Returns the first text in a chain of causes: that of a refused certificate is two causes down."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


class HttpResponse:
    """A response whose body has not been read yet. It is valid inside the block of `HttpRequester.request` only."""

    def __init__(self, raw: RawResponse, requester: HttpRequester) -> None:
        self._raw = raw
        self._requester = requester
        self.max_bytes = requester.max_message_bytes
        self.status = raw.status
        self.media_type = (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.ok and self.media_type == "text/event-stream"

    @property
    def is_temporary_failure(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 409, 425, 429) or self.status >= 500

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON, according to its media type."""
        return self.media_type == "application/json"

    def header(self, name: str) -> str | None:
        """Returns the value of a header, joined with commas if it came several times; ``name`` is in lower case."""
        wanted = name.encode()
        values = [
            value.decode("utf-8", "replace") for each, value in self._raw.headers if each.lower() == wanted
        ]
        return ", ".join(values) if values else None

    def all_headers(self) -> dict[str, str]:
        """Returns the headers by names in lower case, joined with commas where one came several times."""
        found: dict[str, str] = {}
        for raw, value in self._raw.headers:
            name, text = raw.decode("latin-1").lower(), value.decode("utf-8", "replace")
            found[name] = f"{found[name]}, {text}" if name in found else text
        return found

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives. Close it with `contextlib.aclosing`.

        Raises:
            McpError: a `ConnectionLost` if the connection broke, a `RemoteProtocolError` if the body cannot be decoded.
        """
        try:
            async with aclosing(self._raw.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except _FAILURES as error:
            raise self._requester.to_mcp_error(error) from error

    async def read_body(self) -> bytes:
        """Reads the whole body and releases the connection for other requests.

        Raises:
            ConnectionLost: the connection broke.
            RemoteProtocolError: the body is longer than a message may be, or cannot be decoded.
        """
        length = self.header("content-length")
        if length is None or not (length.isdecimal() and len(length) < 20) or int(length) <= self.max_bytes:
            data = await self._read(self.max_bytes + 1)
            if len(data) <= self.max_bytes:
                await self._raw.aclose()
                return data
        raise RemoteProtocolError(f"{self._requester.peer} sent an answer longer than {self.max_bytes} bytes")

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return await self._raw.read(max_bytes)
        except _FAILURES as error:
            raise self._requester.to_mcp_error(error) from error

    async def read_error(self) -> HttpRefused | AccessRefused:
        """Reads the beginning of the body and returns the error that the response is. Raises as `chunks` does."""
        return self.error(await self._read(MAX_ERROR_BYTES))

    def error(self, body: bytes) -> HttpRefused | AccessRefused:
        """Returns the error that the response is, for a body that has been read."""
        location = None
        if 300 <= self.status < 400 and (reference := self.header("location")) is not None:
            try:
                location = without_secrets(self._requester.url.join(reference))
            except httpx2.InvalidURL:
                pass
        return error_for_status(
            self._requester.peer,
            self.status,
            body[:MAX_ERROR_BYTES],
            location=location,
            challenge=self.header("www-authenticate"),
            retry_after=self.header("retry-after"),
        )

    def enable_tcp_keepalive(self) -> None:
        """Makes the operating system probe the peer of a stream that may be silent for long."""
        connection = self._raw.socket
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            enable_keepalive(connection, **KEEPALIVE)


class OpenRequest:
    """A request, in whose block there is its response; made by `HttpRequester.request`.

    It is not a generator, because every call needs one.
    """

    __slots__ = ("_body", "_headers", "_method", "_raw", "_requester", "_waiter")

    def __init__(
        self,
        requester: HttpRequester,
        method: str,
        headers: Headers,
        body: RequestBody | None,
        waiter: AccessWaiter | None,
    ) -> None:
        self._requester = requester
        self._method = method
        self._headers = headers
        self._body = body
        self._waiter = waiter

    async def __aenter__(self) -> HttpResponse:
        self._raw = await self._requester.send(self._method, self._headers, self._body, self._waiter)
        return HttpResponse(self._raw, self._requester)

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._raw.aclose()


class HttpRequester:
    """Makes requests to one URL of one server, which is that of ``sender``.

    Args:
        sender: sends the requests.
        max_message_bytes: the longest body, and the longest event, that is accepted.
        peer: the URL as it may be shown.
    """

    def __init__(self, sender: RequestSender, *, max_message_bytes: int, peer: str) -> None:
        self.peer = peer
        self.max_message_bytes = max_message_bytes
        self._sender = sender
        self._was_reached = False

    @property
    def url(self) -> httpx2.URL:
        """The URL that the requests go to."""
        return self._sender.url

    def with_url(self, url: httpx2.URL) -> HttpRequester:
        """Returns a requester for another URL of the same server."""
        requester = copy.copy(self)
        requester._sender = self._sender.with_url(url)
        return requester

    def request(
        self,
        method: str,
        headers: Headers,
        body: RequestBody | None = None,
        waiter: AccessWaiter | None = None,
    ) -> OpenRequest:
        """Returns a context manager that sends a request and gives its response, which it closes at its end.

        The connection is closed with it unless the body was read to its end. ``waiter`` learns if access has to be had
        first.

        Raises:
            AuthorizationError: access could not be had.
            ConnectFailed: no connection could be made, and none was before; or the user's HTTP client failed.
            ConnectionLost: no connection could be made any more, or it broke.
            LocalProtocolError: the headers cannot be sent, or the user's HTTP client is closed.
            RemoteProtocolError: the body cannot be decoded.
        """
        return OpenRequest(self, method, headers, body, waiter)

    async def send(
        self, method: str, headers: Headers, body: RequestBody | None, waiter: AccessWaiter | None
    ) -> RawResponse:
        """Sends a request and waits for the head of its response, which is to be closed.

        Raises:
            McpError: one of those that `request` names.
        """
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body.data))]
        sender = self._sender
        try:
            raw = await sender.send(method, headers, body, waiter)
            if raw.status in (307, 308) and (moved := _slash_redirect(sender.url, raw.headers)) is not None:
                await raw.aclose()
                # The requests after this one go there at once.
                self._sender = sender = sender.with_url(moved)
                raw = await sender.send(method, headers, body, waiter)
        except _FAILURES as error:
            raise self.to_mcp_error(error) from error
        self._was_reached = True
        return raw

    def to_mcp_error(self, error: Exception) -> McpError:
        """Returns an error of httpx2 or httpcore2 as one of this project."""
        text = _message_of(error)
        if isinstance(error, (httpx2.LocalProtocolError, httpcore2.LocalProtocolError)):
            return LocalProtocolError(f"the request cannot be sent by HTTP: {text}")
        if isinstance(error, httpx2.DecodingError):
            return RemoteProtocolError(f"{self.peer} sent a body that cannot be decoded: {text}")
        if isinstance(error, _NEVER_SENT):
            if not self._was_reached:
                return ConnectFailed(f"cannot connect to {self.peer}: {text}{advice_about(error)}")
            return ConnectionLost(f"{self.peer} cannot be reached any more: {text}", never_run=True)
        return ConnectionLost(f"the connection to {self.peer} broke: {text}")


def _slash_redirect(url: httpx2.URL, headers: Headers) -> httpx2.URL | None:
    """Returns the URL of a redirection that adds a slash to the path, or takes one away, and changes nothing else.

    Web frameworks answer so where the URL of an endpoint was written in the other way.
    """
    reference = next((value for name, value in headers if name.lower() == b"location"), b"")
    try:
        moved = url.join(reference.decode("ascii"))
    except (httpx2.InvalidURL, UnicodeDecodeError):
        return None
    origin, other_origin = (url.scheme, url.host, url.port), (moved.scheme, moved.host, moved.port)
    path, other = url.raw_path.partition(b"?")[0], moved.raw_path.partition(b"?")[0]
    is_slash_alone = other in (path + b"/", path.removesuffix(b"/")) and other != path
    if origin != other_origin or not is_slash_alone or url.query != moved.query:
        return None
    return url.copy_with(raw_path=moved.raw_path)


# -- Event streams ---------------------------------------------------------------------------------


class StreamPosition:
    """The position up to which a stream was read, and the delay before it is resumed."""

    def __init__(self) -> None:
        self.last_event_id: str | None = None
        self.retry: float | None = None
        """Seconds, as the server named them, within bounds."""
        self.failures = 0
        """Attempts in a row that brought no event."""

    def advance(self, event: ServerSentEvent) -> None:
        """Notes an event that was read."""
        self.failures = 0
        if event.id is not None:
            self.last_event_id = event.id or None

    @property
    def delay(self) -> float:
        """Seconds from the end of the stream to the next attempt: what the server said, or more after failures."""
        delay: float = DEFAULT_RETRY if self.retry is None else self.retry
        if not self.failures:
            return delay
        return max(delay, min(max(delay, SHORTEST_BACKOFF) * 2.0**self.failures, LONGEST_BACKOFF))


async def read_events(
    response: HttpResponse, position: StreamPosition
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yields the events of a stream as they arrive and notes each in ``position``.

    Close it with `contextlib.aclosing`.

    Raises:
        ConnectionLost: the connection broke.
        RemoteProtocolError: an event is longer than a message may be, or the body cannot be decoded.
    """
    response.enable_tcp_keepalive()
    decoder = SseDecoder(response.max_bytes + OTHER_LINES)
    try:
        async with aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                for event in decoder.feed(chunk):
                    position.advance(event)
                    yield event
                if decoder.failure is not None:
                    raise decoder.failure
    finally:
        # A retry field counts as soon as it was read, whether an event followed it or not.
        if decoder.retry is not None:
            position.retry = min(max(decoder.retry, SHORTEST_RETRY), LONGEST_RETRY) / 1000


# -- The errors for HTTP responses -----------------------------------------------------------------


class _Data(msgspec.Struct):
    begun: bool | None = None


class _Error(msgspec.Struct):
    message: str
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Refused(msgspec.Struct):
    error: _Error


class HttpRefused(RemoteProtocolError):
    """The server refused a request with an HTTP status."""

    def __init__(self, message: str, *, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.text = text
        """The first words of the body."""

    @property
    def suggests_http_sse(self) -> bool:
        """Whether a server that speaks HTTP+SSE only may answer ``initialize`` with this status.

        MCP 2025-11-25, Transports, Backwards Compatibility, names 400, 404 and 405; servers also send 406 and 415.
        """
        return self.status in (400, 404, 405, 406, 415)


class HttpUnavailable(HttpRefused, Unavailable):
    """The server, or a proxy before it, answered 408, 425, 429 or 5xx: the same request may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        text: str = "",
        retry_after: float | None = None,
        never_run: bool = False,
    ) -> None:
        super().__init__(message, status=status, text=text)
        self.retry_after = retry_after
        self.never_run = never_run


class AccessRefused(ConnectFailed):
    """The server demands authorization, or denies access."""

    def __init__(self, message: str, *, status: int, www_authenticate: str | None, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, 401 or 403."""
        self.www_authenticate = www_authenticate
        """The challenge that came with it, if any."""
        self.text = text
        """The first words of the body."""


def is_outage(status: int) -> bool:
    """Whether a status says that the same request may succeed later, and nothing about the protocol that is spoken."""
    return status in (408, 425, 429) or status >= 500


class _Answer(msgspec.Struct):
    """As much of a JSON-RPC error as says which request it answers."""

    id: int | str | None = None


def names_forgotten_session(data: bytes, request: int | str | None) -> bool:
    """Whether the body of a 400 says that the session is not known; an error that answers ``request`` never does."""
    text = data[:MAX_ERROR_BYTES].decode("utf-8", "replace").lower()
    if not any(words in text for words in _FORGOTTEN):
        return False
    try:
        answered = msgspec.json.decode(data, type=_Answer).id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return answered is None or answered != request


def error_for_status(
    peer: str,
    status: int,
    body: bytes,
    *,
    location: str | None = None,
    challenge: str | None = None,
    retry_after: str | None = None,
) -> HttpRefused | AccessRefused:
    """Returns the error for a response of ``peer`` that does not answer the request.

    Args:
        peer: the server's URL, as it may be shown.
        status: the HTTP status.
        body: the beginning of the body.
        location: the URL that a redirection leads to. Redirections are not followed, but for a slash at the end of the
            path, because the body and the headers may hold secrets, and an answer that was not encrypted might lead
            anywhere.
        challenge: the ``WWW-Authenticate`` header.
        retry_after: the ``Retry-After`` header; only seconds are understood (RFC 9110 section 10.2.3).
    """
    text = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    text = " ".join(text.split())[:MAX_TEXT]
    error = _error_in(body)
    said = "" if error is None else "".join(c if c.isprintable() else " " for c in error.message)[:MAX_TEXT]
    quoted = f": {said or text}" if text and not text.startswith("<") else ""
    if status == 401:
        message = (
            f"{peer} asks for authorization (HTTP 401{quoted}); give Client(auth=OAuth()), "
            f"or auth=BearerToken(…) for a key of the server's own; {see_page('authorization')}"
        )
        return AccessRefused(message, status=status, www_authenticate=challenge, text=text)
    if status == 403:
        message = f"{peer} does not let us in (HTTP 403{quoted})"
        return AccessRefused(message, status=status, www_authenticate=challenge, text=text)
    if location is not None:
        message = (
            f"{peer} redirects (HTTP {status}) to {location}; redirections are not followed, use that URL"
        )
        return HttpRefused(message, status=status, text=text)
    advice = _ADVICE.get(status) or ("it failed; its log may say why" if status >= 500 else None)
    if said and status >= 500:
        advice = None  # an MCP server says itself what is the matter
    message = f"{peer} answered with HTTP {status}{quoted}" + (f" ({advice})" if advice else "")
    if is_outage(status):
        seconds = _seconds(retry_after)
        never_run = _was_never_begun(status, seconds, error)
        return HttpUnavailable(message, status=status, text=text, retry_after=seconds, never_run=never_run)
    return HttpRefused(message, status=status, text=text)


def _error_in(body: bytes) -> _Error | None:
    """Returns the JSON-RPC error that a body is, whose message is for people; ``None`` for any other body."""
    try:
        return msgspec.json.decode(body, type=_Refused).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _was_never_begun(status: int, retry_after: float | None, error: _Error | None) -> bool:
    """Whether a refusal says that nothing of the request was begun.

    A JSON-RPC error says so itself, as that of a server that stops. Any other body is from a proxy, or from what counts
    requests before they are read: 429 (RFC 6585 section 4), and 503 that says when to come again (RFC 9110 section
    15.6.4). Without that, a 503 may be of a program that has failed in the middle.
    """
    if error is None:
        return status == 429 or (status == 503 and retry_after is not None)
    try:
        return msgspec.json.decode(error.data, type=_Data).begun is False
    except msgspec.MsgspecError:
        return False


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None or not (retry_after.isascii() and retry_after.isdecimal()):
        return None
    # A number of more digits than the limit has is not read.
    return float(min(int(retry_after[:5]), MAX_RETRY_AFTER))
