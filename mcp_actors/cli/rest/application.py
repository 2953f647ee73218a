"""The REST API of a server: an ASGI application that makes calls of requests.

``POST /tools/NAME`` and ``POST /NAME`` call a tool with the JSON object of their body. The answer is the content of the
result: one value, or a list of several, as mcpo writes it for Open WebUI. With ``Accept: text/event-stream`` it comes
as events, behind those of its progress. A client that leaves cancels its call, because the listener cancels the task of
its request.

Each caller has a connection to the server, as the principal that its key names: what the server allows, hides and keeps
is decided there as it is for callers over MCP.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import attrs
import msgspec
import trio

from mcp_actors import Client
from mcp_actors.abc import Frame, FrameChannel, HttpRequest, ServerHandler
from mcp_actors.abc.discovery import server_transport
from mcp_actors.cli.output import plain
from mcp_actors.cli.rest.document import document_of
from mcp_actors.client import Progress
from mcp_actors.errors import (
    INVALID_PARAMS,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
    WrongArguments,
)
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import (
    UNSET,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

__all__ = ["RestApplication"]

# The status of HTTP for the code of an error of JSON-RPC. A code that is such a status itself is its own.
_STATUS = {-32700: 400, -32600: 400, -32601: 404, INVALID_PARAMS: 422, ResourceNotFound.CODE: 404}
_FAILURES = range(400, 600)
_JSON = "application/json"
# What arguments may have, so that a message with them is within the limits of messages. A server cannot answer one that
# is beyond them, because it does not read its id.
_MOST_LEVELS = 120
_MOST_PARTS = 490_000
# What decoding raises.
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
_EVENTS = "text/event-stream"
# Reports of progress that wait for a client that reads slowly; the newest ones are left out beyond that.
_MOST_REPORTS = 64
# Seconds without an event after which a comment shows proxies that the stream is in use: they cut after 60 s or 100 s.
_SILENCE = 15.0
_COMMENT = b":\n\n"
# Callers that have a connection to the server. The one that was away longest loses it to a new one.
_MOST_CALLERS = 100
# What pages of other origins may send, where --allow-origin lets them in. The listener writes which origins these are.
_PREFLIGHT = (
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "accept, authorization, content-type"),
    ("access-control-max-age", "600"),
)
_METHODS = "GET, POST, OPTIONS"

_Header = tuple[str, str]
_Send = Callable[[dict[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[Any]]


@attrs.frozen
class _RestRequest:
    method: str
    """``GET`` for ``HEAD`` too: the listener leaves the body of that answer out."""
    path: tuple[str, ...]
    """Its segments, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = attrs.field(repr=False)


class _RestRefusal(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, message: str, data: Any = None, headers: Sequence[_Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.detail = {"message": message} if data is None else {"message": message, "data": data}
        self.headers = headers


class _CallerConnection:
    """The connection of one caller to the server, with what it knows of its tools.

    Args:
        principal: The caller; ``None`` where no keys are demanded.
    """

    def __init__(self, principal: Principal | None) -> None:
        self._seen = _SeenRequest(principal)
        self._client: Client | None = None
        self._failure: McpError | None = None
        self._opened = trio.Event()
        self.scope = trio.CancelScope()
        self.uses = 0
        """Requests that use it."""
        self.listed: set[str] = set()
        """The names of the tools that were listed last, without those of pages."""
        self.for_pages: set[str] = set()
        """The names of those that only pages of the server may call."""

    async def run(self, handler: ServerHandler) -> None:
        """Keeps the connection until `scope` is cancelled, or the server turns out not to be usable."""
        # It is both sides: an address inside of this process.
        memory: Any = server_transport("memory:")
        # The clocks are those of the server and of the callers, who leave when they have waited enough.
        client = Client(memory, arguments="repair", timeout=math.inf, cap=math.inf)
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(memory.serve, partial(self._serve, handler))
                try:
                    async with client as self._client:
                        self._opened.set()
                        await trio.sleep_forever()
                except McpError as error:
                    self._failure = error
                finally:
                    self._client = None
                    self._opened.set()
                nursery.cancel_scope.cancel()

    async def _serve(self, handler: ServerHandler, channel: FrameChannel) -> None:
        await handler(_CallerChannel(channel, self._seen), self._seen.principal)

    async def until_open(self) -> None:
        """Waits until calls can be made.

        Raises:
            ConnectFailed: The server cannot be used.
        """
        await self._opened.wait()
        if self._failure is not None:
            error = self._failure
            reason = error.message if isinstance(error, RpcError) else str(error)
            raise ConnectFailed(f"the server of the REST API cannot be used: {reason}") from error

    @property
    def client(self) -> Client:
        """The client of the server."""
        if self._client is None:
            raise _RestRefusal(503, "the server is about to end: retry later")
        return self._client

    async def has_tool(self, name: str, *, refresh: bool = True) -> bool:
        """Whether the server lists a tool; with ``refresh`` it is asked, also where its last list is still good."""
        tools = [each async for each in self.client.tools(refresh=refresh, for_apps=True)]
        self.listed = {each.name for each in tools if "model" in each.visibility}
        self.for_pages = {each.name for each in tools} - self.listed
        return name in self.listed


@attrs.frozen
class _SeenRequest:
    """A request as the server sees it: who sent it, and that it came over HTTP.

    By that a caller without a name has no scopes, as over MCP. Nothing that a caller presents is passed on.
    """

    principal: Principal | None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    peer: str = "rest"
    path: str = "/"
    query: str = ""
    version: str = "1.1"


class _CallerChannel(FrameChannel):
    """The server's end of a connection of a caller."""

    def __init__(self, inner: FrameChannel, seen: HttpRequest) -> None:
        self._inner = inner
        self._seen = seen

    @property
    def http_request(self) -> HttpRequest:
        return self._seen

    @property
    def peer(self) -> str:
        return self._inner.peer

    async def send(self, value: Frame) -> None:
        await self._inner.send(value)

    async def receive(self) -> Frame:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()


class RestApplication:
    """The REST API of one server: a route of its listeners, and a companion of them, which has its callers.

    Args:
        authenticate: Returns who sends a request, or the refusal of it, as ``authenticate`` of
            `~mcp_transports.http.server.HttpServerTransport` does; ``None`` where everybody may call.
    """

    is_companion: Literal[True] = True

    def __init__(self, authenticate: Callable[[Any], Any] | None = None) -> None:
        self._authenticate = authenticate
        # The caller that has called last is at the end. Keys of one subject may have different scopes.
        self._callers: dict[tuple[str, frozenset[str]] | None, _CallerConnection] = {}
        self._connect: Callable[[_CallerConnection], None] | None = None
        self._page = _Page()

    def __repr__(self) -> str:
        return f"<RestApplication of {len(self._callers)} callers>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keeps the connections of the callers until it is cancelled.

        Raises:
            ConnectFailed: The server cannot be used, as a bridge cannot whose server is away.
        """
        failure: ConnectFailed | None = None
        async with trio.open_nursery() as nursery:
            self._connect = lambda connection: nursery.start_soon(self._run, connection, handler)
            try:
                async with self._connection(None):
                    task_status.started("")
                await trio.sleep_forever()
            except ConnectFailed as error:
                failure = error
            finally:
                self._connect = None
                self._callers.clear()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def _connection(self, principal: Principal | None) -> AsyncIterator[_CallerConnection]:
        """Yields the connection of a caller, which is not taken from it while the block runs."""
        key = None if principal is None else (principal.key, principal.scopes)
        connection = self._callers.pop(key, None)
        if connection is None:
            if self._connect is None:
                raise _RestRefusal(503, "the server is starting, or about to end: retry later")
            self._make_room()
            connection = _CallerConnection(principal)
            self._connect(connection)
        self._callers[key] = connection
        connection.uses += 1
        try:
            await connection.until_open()
            yield connection
        finally:
            connection.uses -= 1

    async def _run(self, connection: _CallerConnection, handler: ServerHandler) -> None:
        await connection.run(handler)
        # The next request of this caller makes another one.
        self._callers = {key: each for key, each in self._callers.items() if each is not connection}

    def _make_room(self) -> None:
        if len(self._callers) < _MOST_CALLERS:
            return
        for key, connection in self._callers.items():
            if not connection.uses:
                del self._callers[key]
                connection.scope.cancel()
                return
        raise _RestRefusal(503, f"{_MOST_CALLERS} others call at this moment: retry later")

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Answers one request of ASGI; there is no lifespan."""
        if scope["type"] != "http":
            raise NotImplementedError(f"a REST API has no {scope['type']}")
        request = await _read(scope, receive)
        try:
            await self._answer(request, send)
        except _RestRefusal as refused:
            await _send_json(send, {"detail": refused.detail}, refused.status, refused.headers)

    async def _answer(self, request: _RestRequest, send: _Send) -> None:
        if request.method == "OPTIONS":
            await _send(send, b"", None, 204, (("allow", _METHODS), *_PREFLIGHT))
            return
        if request.method == "GET" and request.path in ((), ("docs",)):
            await _send(send, self._page.body, "text/html; charset=utf-8", 200, self._page.headers)
            return
        principal = self._identify(request)
        with _errors_as_statuses():
            async with self._connection(principal) as caller:
                await self._answer_caller(caller, request, send)

    async def _answer_caller(self, caller: _CallerConnection, request: _RestRequest, send: _Send) -> None:
        client = caller.client
        match request.method, request.path:
            case "POST", ("tools", name) | (name,):
                await self._call(caller, name, request, send)
            case "GET", ("openapi.json",):
                await _send_json(send, await document_of(client, with_keys=self._authenticate is not None))
            case "GET", ("tools",):
                await _send_json(send, {"tools": [plain(each) async for each in client.tools()]})
            case "GET", ("resources",):
                await _send_json(send, await _resources(client, request.query.get("uri")))
            case "GET", ("prompts",):
                await _send_json(send, {"prompts": [plain(each) async for each in client.prompts()]})
            case "GET", ("prompts", name):
                await _send_json(send, await _prompt(client, name, request.query))
            case "GET", ("tools", _):
                raise _RestRefusal(405, "POST calls a tool", headers=(("allow", "POST, OPTIONS"),))
            case (("GET" | "POST"), _):
                raise _RestRefusal(404, "there is nothing here: GET /openapi.json says what there is")
            case _:
                raise _RestRefusal(405, "only GET and POST are answered", headers=(("allow", _METHODS),))

    def _identify(self, request: _RestRequest) -> Principal | None:
        if self._authenticate is None:
            return None
        found = self._authenticate(request)
        if not isinstance(found, Principal):
            raise _RestRefusal(found.status, found.message, headers=tuple(found.headers))
        return found

    async def _call(self, caller: _CallerConnection, name: str, request: _RestRequest, send: _Send) -> None:
        arguments = _arguments(request.body)
        if _EVENTS in request.headers.get("accept", ""):
            await _stream(caller, name, arguments, send)
        else:
            await _send_json(send, await _value(caller, name, arguments, None))


# -- Tools and resources -----------------------------------------------------------------------------------------------


async def _value(
    caller: _CallerConnection,
    name: str,
    arguments: dict[str, Any],
    on_progress: Callable[[Progress], None] | None,
) -> Any:
    """Calls a tool, and returns what the answer has."""
    if name not in caller.listed:
        # Arguments are checked by what was listed. A tool that was not is called all the same: the server may say that
        # a scope is missing, or list a part of its tools.
        await caller.has_tool(name, refresh=False)
        if name in caller.for_pages:
            raise _no_tool(name)
    try:
        result = await _result(caller, name, arguments, on_progress)
    except RpcError as error:
        if error.code == INVALID_PARAMS and not await caller.has_tool(name):
            raise _no_tool(name) from error
        raise
    if result.is_error:
        if not await caller.has_tool(name):
            # Some servers answer so for a tool that they do not have.
            raise _RestRefusal(404, f"the tool {name} is not listed, and failed: {_reason(result)}")
        raise _RestRefusal(500, _reason(result))
    return _values(result)


async def _prompt(client: Client, name: str, arguments: Mapping[str, str]) -> Any:
    try:
        prompt = await client.get_prompt(name, arguments)
    except RpcError as error:
        if error.code == INVALID_PARAMS and name not in {each.name async for each in client.prompts()}:
            raise _RestRefusal(
                404, f"there is no prompt {name}: GET /prompts lists those that there are"
            ) from error
        raise
    return plain(prompt.messages)


async def _result(
    caller: _CallerConnection,
    name: str,
    arguments: dict[str, Any],
    on_progress: Callable[[Progress], None] | None,
) -> CallToolResult:
    try:
        return await caller.client.call_tool(name, arguments, on_progress=on_progress)
    except WrongArguments:
        # The tool may have changed since it was listed.
        if not await caller.has_tool(name):
            raise _no_tool(name) from None
        return await caller.client.call_tool(name, arguments, on_progress=on_progress)


async def _stream(caller: _CallerConnection, name: str, arguments: dict[str, Any], send: _Send) -> None:
    """Sends the progress of a call as events, and its result as the last one."""
    reports, taken = trio.open_memory_channel[Progress](_MOST_REPORTS)

    def report(progress: Progress) -> None:
        try:
            reports.send_nowait(progress)
        except trio.WouldBlock:
            log.debug("a report of progress was left out: its client reads slowly", tool=name)

    left: OSError | None = None

    async def show() -> None:
        nonlocal left
        try:
            while True:
                each = None
                with trio.move_on_after(_SILENCE):
                    each = await taken.receive()
                if each is None:
                    await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                    continue
                shown = {"progress": each.progress, "total": each.total, "message": each.message}
                await _send_event(
                    send, "progress", {key: each for key, each in shown.items() if each is not None}
                )
        except trio.EndOfChannel:
            pass
        except OSError as error:
            # The client has left, or takes nothing: so has the listener to learn it, and not in a group.
            left = error
            nursery.cancel_scope.cancel()

    await send({"type": "http.response.start", "status": 200, "headers": _headers(_EVENTS, ())})
    # The client learns at once that the call has begun.
    await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        try:
            with _errors_as_statuses():
                event, data = "result", await _value(caller, name, arguments, report)
        except _RestRefusal as refused:
            event, data = "error", {"status": refused.status, "detail": refused.detail}
        reports.close()
    if left is not None:
        raise left
    await _send_event(send, event, data)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _resources(client: Client, uri: str | None) -> Any:
    if uri is not None:
        return plain((await client.read_resource(uri)).contents)
    listed = [plain(each) async for each in client.resources()]
    templates = [plain(each) async for each in client.resource_templates()]
    return {"resources": listed, "resourceTemplates": templates}


def _arguments(body: bytes) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(body) if body.strip() else {}
    except _NOT_JSON as error:
        raise _RestRefusal(422, f"the body is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _RestRefusal(422, "the body is the JSON object of the arguments")
    if not _fit_into_message(arguments):
        most = f"{_MOST_LEVELS} levels, or {_MOST_PARTS} arrays, objects and members of objects"
        raise _RestRefusal(422, f"the body has more than {most}")
    return arguments


def _fit_into_message(arguments: dict[str, Any]) -> bool:
    level: list[Any] = [arguments]
    parts = 0
    for _ in range(_MOST_LEVELS):
        parts += sum(1 + len(each) if isinstance(each, dict) else 1 for each in level)
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for each in inside for child in each if isinstance(child, dict | list)]
        if not level:
            return parts <= _MOST_PARTS
    return False


def _no_tool(name: str) -> _RestRefusal:
    return _RestRefusal(404, f"there is no tool {name}: GET /tools lists those that there are")


@contextmanager
def _errors_as_statuses() -> Iterator[None]:
    try:
        yield
    except RpcError as error:
        own = error.code if error.code in _FAILURES else 500
        raise _RestRefusal(_STATUS.get(error.code, own), error.message, error.data) from error
    except WrongArguments as error:
        raise _RestRefusal(422, str(error), error.problems) from error
    except CallTimeout as error:
        raise _RestRefusal(504, str(error)) from error
    except LocalProtocolError as error:
        # The server has none of these at all.
        raise _RestRefusal(404, str(error)) from error
    except (ConnectFailed, ConnectionLost, RemoteProtocolError) as error:
        raise _RestRefusal(502, str(error)) from error
    except McpError as error:
        raise _RestRefusal(500, str(error)) from error


# -- Values of results -------------------------------------------------------------------------------------------------


def _reason(result: CallToolResult) -> str:
    first = result.content[0] if result.content else None
    return first.text if isinstance(first, TextContent) else "the tool failed and does not say why"


def _values(result: CallToolResult) -> Any:
    """Returns what the content of a result is in an answer: the only value, or a list."""
    if not result.content and result.structured_content is not UNSET:
        return result.structured_content
    found = [_value_of(each) for each in result.content]
    return found[0] if len(found) == 1 else found


def _value_of(block: Any) -> Any:
    if isinstance(block, TextContent):
        return _text_value(block.text)
    if isinstance(block, ImageContent | AudioContent):
        return f"data:{block.mime_type};base64,{block.data}"
    if isinstance(block, EmbeddedResource):
        contents = block.resource
        if isinstance(contents, TextResourceContents):
            return _text_value(contents.text)
        return f"data:{contents.mime_type or 'application/octet-stream'};base64,{contents.blob}"
    return plain(block)


def _text_value(text: str) -> Any:
    """Returns the value of a text that is JSON, and else the text."""
    try:
        return msgspec.json.decode(text)
    except _NOT_JSON:
        return text


# -- Requests and answers of ASGI --------------------------------------------------------------------------------------


class _Page:
    """The page, and a policy that allows its own script and style, and no request that leaves its server."""

    def __init__(self) -> None:
        text = files(__package__).joinpath("page.html").read_text("utf-8")
        script, style = (_hash(text, part) for part in ("script", "style"))
        policy = (
            f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
        self.body = text.encode()
        self.headers: Sequence[_Header] = (("content-security-policy", policy), ("x-frame-options", "DENY"))


def _hash(text: str, part: str) -> str:
    inside = text.partition(f"<{part}>")[2].partition(f"</{part}>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}"


async def _read(scope: Any, receive: _Receive) -> _RestRequest:
    # The listener bounds the body, and has read it before it makes a request of it.
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    # A name may have a slash in it, which is encoded.
    raw: str = scope["raw_path"].decode("latin-1").removeprefix(scope["root_path"])
    query: str = scope["query_string"].decode("latin-1")
    return _RestRequest(
        "GET" if scope["method"] == "HEAD" else scope["method"],
        tuple(unquote(each) for each in raw.strip("/").split("/") if each),
        dict(parse_qsl(query, keep_blank_values=True)),
        {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        body,
    )


def _headers(kind: str | None, more: Sequence[_Header]) -> list[tuple[bytes, bytes]]:
    own = [] if kind is None else [("content-type", kind), ("x-content-type-options", "nosniff")]
    headers = [*own, ("cache-control", "no-store"), *more]
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _send(
    send: _Send, body: bytes, kind: str | None, status: int, headers: Sequence[_Header] = ()
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _headers(kind, headers)})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: _Send, value: Any, status: int = 200, headers: Sequence[_Header] = ()) -> None:
    await _send(send, msgspec.json.encode(value), _JSON, status, headers)


async def _send_event(send: _Send, event: str, data: Any) -> None:
    # What is encoded has no line breaks between values, and JSON escapes those of texts.
    text = b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
    await send({"type": "http.response.body", "body": text, "more_body": True})
