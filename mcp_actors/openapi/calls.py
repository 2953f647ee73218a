"""Calls of an API: a request with the caller's credentials, the response within bounds, and what a model is told of it.

Credentials are asked for at each call, go into the request, and are kept nowhere: not in a message, not in the log. The
cookies that an API sets are dropped, because the next call may be somebody else's.
"""

from __future__ import annotations

import base64
import inspect
import logging
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urljoin, urlsplit

import attrs
import httpx2
import msgspec
import trio

from mcp_actors._schema.validate import Validator, compile_schema
from mcp_actors.errors import ToolError, UrlRefused
from mcp_actors.openapi.document import object_of, text_of
from mcp_actors.openapi.operations import Operation, SecurityScheme
from mcp_actors.openapi.requests import RequestParts, request_parts
from mcp_actors.openapi.schemas import plain_text
from mcp_actors.server import Context
from mcp_actors.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

__all__ = [
    "ApiAnswer",
    "ApiCalls",
    "CallSettings",
    "Credential",
    "Credentials",
    "RequestHeaders",
    "result_of",
]

Credential = str | tuple[str, str] | None
"""A token or a key; for ``basic`` a user and a password, also as ``user:password``; ``None`` if the caller has none."""
Credentials = Callable[[Context, SecurityScheme], Credential | Awaitable[Credential]]
"""Returns what the caller of a call has for a security scheme."""
RequestHeaders = Callable[[Context], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Returns further headers for the requests of a call."""

BytesT = TypeVar("BytesT", bytes, bytearray)

# Seconds for a connection, and for the pauses before a request is made again.
CONNECT_TIME = 10.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# Redirections within one origin.
MAX_REDIRECTS = 5
# Answers after which the same request may well succeed (RFC 9110, RFC 6585).
_PASSING = frozenset((429, 502, 503, 504))
# Failures of a connection before anything was sent.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
# Bytes of an answer between two reports of progress, and those from which on there are any.
REPORTED_BYTES = 256 * 1024
# Characters of what an API says about a failure.
MOST_OF_FAILURE = 2_000
# The member of a result's ``_meta`` with the status of the response.
STATUS = "mcp-actors/http-status"


@attrs.frozen
class CallSettings:
    """Settings of all calls of one API."""

    credentials: Credentials | None
    headers: RequestHeaders | None
    timeout: float
    """Seconds for a call, pauses and repetitions included."""
    retries: int
    max_bytes: int
    """Bytes of an answer, unpacked."""


class ApiAnswer(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: httpx2.Headers
    body: bytes

    @property
    def media_type(self) -> str:
        found: str = self.headers.get("content-type", "")
        return found.partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        charset = re.search(r"charset=\"?([\w-]+)", self.headers.get("content-type", ""), re.IGNORECASE)
        try:
            return self.body.decode(charset[1] if charset else "utf-8", "replace")
        except (LookupError, UnicodeError):
            # Some encodings of Python know no replacements, and no HTTP either.
            return self.body.decode("utf-8", "replace")

    @property
    def has_json(self) -> bool:
        return self.media_type in ("application/json", "text/json") or self.media_type.endswith("+json")

    def json(self) -> Any:
        """Raises `ValueError` for a body that is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except RecursionError:
            raise ValueError("it is nested too deep") from None


class ApiCalls:
    """Makes the calls of one API, by HTTP clients that live as long as the server is served.

    Args:
        settings: What holds for all calls.
        base_of: Returns the URL that the path of an operation is put behind, and which client it is called by.
        clients: Functions that make a client, or return that of the program, by their names.
        own: Whether the clients are closed at the end; that of the program is not.
        in_trio: Whether calls are made in Trio. In process they are made in the loop of the application.
    """

    def __init__(
        self,
        settings: CallSettings,
        base_of: Callable[[Operation], tuple[str, str]],
        clients: Mapping[str, Callable[[], httpx2.AsyncClient]],
        *,
        own: bool,
        in_trio: bool = True,
    ) -> None:
        self._settings = settings
        self._base_of = base_of
        self._makers = clients
        self._own = own
        self._in_trio = in_trio
        self._clients: dict[str, httpx2.AsyncClient] = {}
        self._users = 0
        logging.getLogger("httpx2").addFilter(_without_secrets)
        self._timeout = httpx2.Timeout(settings.timeout, connect=min(CONNECT_TIME, settings.timeout))

    def __repr__(self) -> str:
        return f"<ApiCalls {'open' if self._users else 'closed'}>"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Closes the clients after the block, or after the last of several that run at once."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                clients, self._clients = self._clients, {}
                for each in clients.values() if self._own else ():
                    await each.aclose()

    async def call(self, operation: Operation, arguments: Mapping[str, Any], ctx: Context) -> ApiAnswer:
        """Makes one request, or several if it may be repeated. Cancelled, it closes the connection.

        Raises:
            ToolError: There was no whole answer, or no request; the text says why to a model.
        """
        parts = request_parts(operation, arguments)
        has_secret_query = await self._authorize(parts, operation, ctx)
        base, name = self._base_of(operation)
        token = _hides_urls.set(has_secret_query)
        try:
            if not self._in_trio:
                return await self._attempts(parts, operation, base, self._client(name), ctx)
            with trio.fail_after(self._settings.timeout):
                return await self._attempts(parts, operation, base, self._client(name), ctx)
        except trio.TooSlowError:
            raise ToolError(f"the API gave no whole answer within {self._settings.timeout:g} s") from None
        except UrlRefused as error:
            raise ToolError(str(error)) from None
        except httpx2.HTTPError as error:
            # The text of a library's exception may have the URL, and that a secret; so the class has to do.
            raise ToolError(f"the API cannot be reached, or broke off: {type(error).__name__}") from None
        finally:
            _hides_urls.reset(token)

    def _client(self, name: str) -> httpx2.AsyncClient:
        if name not in self._clients:
            self._clients[name] = self._makers[name]()
        return self._clients[name]

    # -- credentials ---------------------------------------------------------------------------------------------

    async def _authorize(self, parts: RequestParts, operation: Operation, ctx: Context) -> bool:
        """Adds what the caller has to a request. Returns whether there is a secret in its query."""
        if self._settings.headers is not None:
            further = self._settings.headers(ctx)
            for name, value in (await further if inspect.isawaitable(further) else further).items():
                parts.headers = [each for each in parts.headers if each[0].lower() != name.lower()]
                parts.add_header(name, value)
        if self._settings.credentials is None or not operation.security:
            return False
        asked: dict[str, Credential] = {}
        for alternative in operation.security:
            for scheme in alternative:
                if scheme.name not in asked:
                    asked[scheme.name] = await self._credential(ctx, scheme)
            if all(asked[each.name] is not None for each in alternative):
                for scheme in alternative:
                    _add_credential(parts, scheme, asked[scheme.name])
                return any(each.place == "query" for each in alternative)
        names = " or ".join(" and ".join(each.name for each in some) for some in operation.security)
        raise ToolError(f"the API wants to know who calls, and there are no credentials for {names}")

    async def _credential(self, ctx: Context, scheme: SecurityScheme) -> Credential:
        assert self._settings.credentials is not None
        found = self._settings.credentials(ctx, scheme)
        return await found if inspect.isawaitable(found) else found

    # -- requests ------------------------------------------------------------------------------------------------

    async def _attempts(
        self, parts: RequestParts, operation: Operation, base: str, client: httpx2.AsyncClient, ctx: Context
    ) -> ApiAnswer:
        """Makes a request again where that does no harm: nothing was sent, or a second time changes nothing more."""
        for attempt in range(self._settings.retries + 1):
            is_last = attempt == self._settings.retries
            pause = FIRST_PAUSE * 2**attempt
            try:
                answer = await self._follow(parts, base, client, ctx)
            except _NEVER_SENT:
                if is_last:
                    raise
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if is_last or not operation.is_idempotent:
                    raise
            else:
                wanted = _retry_after(answer)
                pause = pause if wanted is None else wanted
                may_repeat = operation.is_idempotent and answer.status in _PASSING
                if is_last or not may_repeat or pause > LONGEST_PAUSE:
                    return answer
            await trio.sleep(pause)
        raise AssertionError

    async def _follow(
        self, parts: RequestParts, base: str, client: httpx2.AsyncClient, ctx: Context
    ) -> ApiAnswer:
        url = base.rstrip("/") + parts.path + ("?" if parts.query else "") + "&".join(parts.query)
        for _ in range(MAX_REDIRECTS):
            answer = await self._exchange(parts, url, client, ctx)
            location = answer.headers.get("location")
            if (
                answer.status not in (301, 302, 307, 308)
                or not location
                or parts.method not in ("GET", "HEAD")
            ):
                return answer
            following = urljoin(url, location)
            if _origin(following) != _origin(url):
                # What is there gets neither the caller's credentials nor our trust.
                return answer
            url = following
        return answer

    async def _exchange(
        self, parts: RequestParts, url: str, client: httpx2.AsyncClient, ctx: Context
    ) -> ApiAnswer:
        headers = [
            ("accept", "application/json, */*;q=0.5"),
            ("accept-encoding", "gzip"),
            *((name, value) for name, value in client.headers.items() if name not in _OF_THE_LIBRARY),
        ]
        own = {name.lower() for name, _ in parts.headers}
        headers = [each for each in headers if each[0].lower() not in own] + parts.headers
        if parts.cookies:
            headers.append(("cookie", "; ".join(parts.cookies)))
        # Made here and not by the client, whose cookies are those of other callers.
        request = httpx2.Request(
            parts.method,
            url,
            # The library takes text for ASCII; RFC 9110 section 5.5 has latin-1.
            headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in headers],
            content=parts.content,
            extensions={"timeout": self._timeout.as_dict()},
        )
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            client.cookies.clear()
            return ApiAnswer(response.status_code, response.headers, await self._read(response, ctx))
        finally:
            await response.aclose()

    async def _read(self, response: httpx2.Response, ctx: Context) -> bytes:
        most = self._settings.max_bytes
        if response.is_stream_consumed:
            # A transport of the program has read it already, and unpacked it.
            return _bounded(response.content, most)
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip"):
            raise ToolError("the API answers in an encoding that it was not asked for")
        unpack = None if encoding == "identity" else zlib.decompressobj(31)
        length = response.headers.get("content-length", "")
        total = int(length) if length.isascii() and length.isdigit() else None
        body = bytearray()
        received = reported = 0
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                received += len(chunk)
                try:
                    # A short body may unpack to one without an end.
                    body += chunk if unpack is None else unpack.decompress(chunk, most + 1 - len(body))
                except zlib.error:
                    raise ToolError("the API answers with a body that cannot be unpacked") from None
                _bounded(body, most)
                if received - reported >= REPORTED_BYTES:
                    reported = received
                    await ctx.progress(received, total if total and total >= received else None, "bytes")
        return bytes(body)


def _bounded(body: BytesT, most: int) -> BytesT:
    if len(body) > most:
        raise ToolError(
            f"the answer of the API has more than {most} bytes: ask for less, for example for a smaller page"
        )
    return body


# What the library adds by itself to every client, and what belongs to one connection.
_OF_THE_LIBRARY = frozenset(("accept", "accept-encoding", "connection", "host", "content-length", "cookie"))


def _add_credential(parts: RequestParts, scheme: SecurityScheme, credential: Credential) -> None:
    if scheme.kind == "basic":
        text = credential if isinstance(credential, str) else ":".join(credential or ())
        _set_authorization(parts, f"Basic {base64.b64encode(text.encode()).decode()}")
        return
    if not isinstance(credential, str):
        raise TypeError(f"credentials for {scheme.name} are one text, such as a token")
    if scheme.kind == "bearer":
        _set_authorization(parts, f"Bearer {credential}")
    elif scheme.kind == "apiKey" and scheme.place == "query":
        parts.add_query(scheme.parameter, credential)
    elif scheme.kind == "apiKey" and scheme.place == "cookie":
        parts.add_cookie(scheme.parameter, credential)
    elif scheme.kind == "apiKey":
        parts.add_header(scheme.parameter, credential)
    else:
        _set_authorization(parts, credential)


def _set_authorization(parts: RequestParts, value: str) -> None:
    parts.headers = [each for each in parts.headers if each[0].lower() != "authorization"]
    parts.add_header("authorization", value)


_hides_urls: ContextVar[bool] = ContextVar("hides_urls", default=False)


def _without_secrets(record: logging.LogRecord) -> bool:
    """Whether a line may be written: the library's line about each request has the URL, and that may have a key."""
    return not _hides_urls.get()


def _retry_after(answer: ApiAnswer) -> float | None:
    """The seconds that an API asks to wait; a date is answered with the longest pause, so that nothing is repeated."""
    value = answer.headers.get("retry-after")
    if value is None:
        return None
    return float(value) if re.fullmatch("[0-9]{1,6}", value) else 2 * LONGEST_PAUSE


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


# -- what a model is told --------------------------------------------------------------------------------------------


def result_of(operation: Operation, answer: ApiAnswer, arguments: Mapping[str, Any]) -> CallToolResult:
    """Returns the result of a call.

    With an output schema the structured content is the body, if it fits. A body that does not fit is returned as text,
    and marked as a failure, as the protocol allows no other result without structured content; it says that the call
    was carried out.

    Raises:
        ToolError: The API says that the call has failed; the text has its words.
    """
    if answer.status >= 400:
        raise ToolError(failure_text(answer))
    meta = {STATUS: answer.status}
    if not 200 <= answer.status < 300:
        location = answer.headers.get("location", "")
        text = (
            f"{_status_text(answer.status)}{f', location: {location[:MOST_OF_FAILURE]}' if location else ''}"
        )
        is_misfit = operation.output_schema is not None
        return CallToolResult([TextContent(text)], is_error=is_misfit or None, meta=meta)
    value, problem = _value(operation, answer)
    content = _content(operation, answer)
    following = _next_page(operation, answer, arguments)
    if following:
        content.append(TextContent(f"There is a next page: call again with {following}."))
    if problem:
        said = f"{_status_text(answer.status)}: the call was carried out, but {problem}. The body is:"
        return CallToolResult([TextContent(said), *content], is_error=True, meta=meta)
    if value is _NOTHING:
        return CallToolResult(content, meta=meta)
    return CallToolResult(content, value, meta=meta)


_NOTHING = object()


def _value(operation: Operation, answer: ApiAnswer) -> tuple[Any, str]:
    """The structured content of an answer, and what is wrong with it."""
    value: Any = _NOTHING
    problem = "its body is no JSON"
    if answer.has_json:
        try:
            value = answer.json()
        except ValueError:
            pass
    if operation.output_schema is None:
        return value, ""
    if value is _NOTHING:
        return value, problem
    problems = _compiled(operation).problems(value)
    return value, f"its body is not as declared ({'; '.join(problems[:3])})" if problems else ""


@lru_cache(2_000)
def _compiled(operation: Operation) -> Validator:
    return compile_schema(operation.output_schema or {})


def _content(operation: Operation, answer: ApiAnswer) -> list[ContentBlock]:
    kind = answer.media_type
    if not answer.body:
        return [TextContent(f"{_status_text(answer.status)}, without a body")]
    if kind.startswith("image/") and kind != "image/svg+xml":
        return [ImageContent(base64.b64encode(answer.body).decode(), kind)]
    if kind.startswith("audio/"):
        return [AudioContent(base64.b64encode(answer.body).decode(), kind)]
    if is_text(answer):
        return [TextContent(answer.text)]
    blob = base64.b64encode(answer.body).decode()
    name = re.search(r'filename="?([^";]{1,200})', answer.headers.get("content-disposition", ""))
    uri = f"attachment:{re.sub('[^A-Za-z0-9._-]', '_', name[1] if name else operation.name)}"
    return [EmbeddedResource(BlobResourceContents(uri, blob, kind or "application/octet-stream"))]


def is_text(answer: ApiAnswer) -> bool:
    """Whether a body is text, by its media type or, without one, by its bytes."""
    kind = answer.media_type
    if not kind:
        return b"\0" not in answer.body[:1024]
    return (
        answer.has_json
        or kind.startswith("text/")
        or kind.endswith(("xml", "yaml", "javascript", "x-www-form-urlencoded", "ndjson", "json-seq"))
    )


def _next_page(operation: Operation, answer: ApiAnswer, arguments: Mapping[str, Any]) -> str:
    """The arguments that the link to the next page (RFC 8288) has and the call had not."""
    link = re.search(r'<([^<>]{1,2000})>\s*;[^,<]{0,200}\brel="?next"?', answer.headers.get("link", ""))
    if link is None:
        return ""
    values = dict(parse_qsl(urlsplit(link[1]).query))
    names = {each.wire: each.name for each in operation.arguments if each.place == "query"}
    return ", ".join(
        f"{names[wire]}={value[:200]}"
        for wire, value in values.items()
        if wire in names and str(arguments.get(names[wire])) != value
    )


def failure_text(answer: ApiAnswer) -> str:
    """Returns the words of an API about a failure: its status, and its answer as far as that is for reading."""
    said = _status_text(answer.status)
    wait = answer.headers.get("retry-after", "")
    if re.fullmatch("[0-9]{1,6}", wait):
        said += f" (it asks to wait {wait} s)"
    words = _words(answer)
    return f"{said}: {words}" if words else said


def _words(answer: ApiAnswer) -> str:
    if answer.has_json:
        try:
            value = answer.json()
        except ValueError:
            value = None
        # RFC 9457, and what most APIs have in its place.
        lone = object_of(value)
        for member in ("detail", "message", "error", "title"):
            if len(lone) <= 3 and (text := text_of(lone.get(member))):
                more = {
                    key: each for key, each in lone.items() if key != member and isinstance(each, (str, list))
                }
                return _cut(f"{text} {msgspec.json.encode(more).decode() if more else ''}".strip())
        return "" if value is None else _cut(msgspec.json.encode(value).decode())
    if answer.media_type == "text/html":
        # A page for people: its title, and no more of it.
        title = re.search(r"<title[^>]{0,200}>([^<]{1,300})", answer.text, re.IGNORECASE)
        return plain_text(title[1], 300) if title else ""
    return _cut(answer.text) if is_text(answer) else ""


def _cut(text: str) -> str:
    return text if len(text) <= MOST_OF_FAILURE else f"{text[:MOST_OF_FAILURE]}…"


def _status_text(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"
