"""The REST API of a server: an ASGI application that makes calls of requests.

``POST /tools/NAME`` and ``POST /NAME`` call a tool with the JSON object of their body. The answer is the content of the
result: one value, or a list of several, as mcpo writes it for Open WebUI. With ``Accept: text/event-stream`` it comes
as events, behind those of its progress. A client that leaves cancels its call, because the listener cancels the task of
its request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Literal, NoReturn
from urllib.parse import parse_qsl, unquote

import attrs
import trio

from mcp_actors import Client
from mcp_actors.abc import ServerHandler
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
_EVENTS = "text/event-stream"
# Reports of progress that wait for a client that reads slowly; the newest ones are left out beyond that.
_MOST_REPORTS = 64
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


class RestApplication:
    """The REST API of one server: a route of its listeners, and a companion of them, which has the client.

    Args:
        authenticate: Returns who sends a request, or the refusal of it, as ``authenticate`` of
            `~mcp_transports.http.server.HttpServerTransport` does; ``None`` where everybody may call.
    """

    is_companion: Literal[True] = True

    def __init__(self, authenticate: Callable[[Any], Any] | None = None) -> None:
        self._authenticate = authenticate
        self._client: Client | None = None
        self._known: set[str] = set()
        self._page = _Page()

    def __repr__(self) -> str:
        return "<RestApplication>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keeps a client of the server until it is cancelled.

        Raises:
            ConnectFailed: The server has answered with an error, as a bridge does whose server is away.
            McpError: Whatever else `~mcp_actors.Client` raises.
        """
        # It is both sides: an address inside of this process.
        memory: Any = server_transport("memory:")
        async with trio.open_nursery() as nursery:
            await nursery.start(memory.serve, handler)
            # The clocks are those of the server and of the callers, who leave when they have waited enough.
            client = Client(memory, arguments="repair", timeout=math.inf, cap=math.inf)
            try:
                async with client as self._client:
                    task_status.started("")
                    await trio.sleep_forever()
            except RpcError as error:
                raise ConnectFailed(f"the server of the REST API cannot be used: {error.message}") from error
            finally:
                self._client = None

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
        method = "GET" if request.method == "HEAD" else request.method
        if method == "OPTIONS":
            await _send(send, b"", None, 204, (("allow", _METHODS), *_PREFLIGHT))
            return
        if method == "GET" and request.path in ((), ("docs",)):
            await _send(send, self._page.body, "text/html; charset=utf-8", 200, self._page.headers)
            return
        self._identify(request)
        match method, request.path:
            case "POST", ("tools", name) | (name,):
                await self._call(name, request, send)
            case "GET", ("openapi.json",):
                with _errors_as_statuses():
                    document = await document_of(self.client, with_keys=self._authenticate is not None)
                await _send_json(send, document)
            case "GET", ("tools",):
                with _errors_as_statuses():
                    found = [plain(each) async for each in self.client.tools()]
                await _send_json(send, {"tools": found})
            case "GET", ("resources",):
                await _send_json(send, await self._resources(request.query.get("uri")))
            case "GET", ("prompts",):
                with _errors_as_statuses():
                    prompts = [plain(each) async for each in self.client.prompts()]
                await _send_json(send, {"prompts": prompts})
            case "GET", ("prompts", name):
                with _errors_as_statuses():
                    prompt = await self.client.get_prompt(name, request.query)
                await _send_json(send, plain(prompt.messages))
            case (("GET" | "POST"), _):
                raise _RestRefusal(404, "there is nothing here: GET /openapi.json says what there is")
            case _:
                raise _RestRefusal(405, "only GET and POST are answered", headers=(("allow", _METHODS),))

    @property
    def client(self) -> Client:
        """The client of the server."""
        if self._client is None:
            raise _RestRefusal(503, "the server is starting, or about to end: retry later")
        return self._client

    def _identify(self, request: _RestRequest) -> None:
        if self._authenticate is None:
            return
        found = self._authenticate(request)
        status = getattr(found, "status", None)
        if status is not None:
            raise _RestRefusal(status, found.message, headers=tuple(found.headers))

    # -- tools -------------------------------------------------------------------------------------------------------

    async def _call(self, name: str, request: _RestRequest, send: _Send) -> None:
        arguments = _arguments(request.body)
        if _EVENTS in request.headers.get("accept", ""):
            await self._stream(name, arguments, send)
        else:
            await _send_json(send, await self._value(name, arguments, None))

    async def _value(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[Progress], None] | None
    ) -> Any:
        """Calls a tool, and returns what the answer has."""
        with _errors_as_statuses():
            if name not in self._known and not await self._is_listed(name):
                raise _no_tool(name)
            try:
                result = await self._result(name, arguments, on_progress)
            except RpcError as error:
                if error.code == INVALID_PARAMS and not await self._is_listed(name):
                    raise _no_tool(name) from error
                raise
            if result.is_error:
                if not await self._is_listed(name):
                    raise _no_tool(name)
                raise _RestRefusal(500, _reason(result))
        return _values(result)

    async def _result(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[Progress], None] | None
    ) -> CallToolResult:
        try:
            return await self.client.call_tool(name, arguments, on_progress=on_progress)
        except WrongArguments:
            # The tool may have changed since it was listed.
            if not await self._is_listed(name):
                raise _no_tool(name) from None
            return await self.client.call_tool(name, arguments, on_progress=on_progress)

    async def _is_listed(self, name: str) -> bool:
        self._known = {each.name async for each in self.client.tools(refresh=name in self._known)}
        return name in self._known

    async def _stream(self, name: str, arguments: dict[str, Any], send: _Send) -> None:
        """Sends the progress of a call as events, and its result as the last one."""
        reports, taken = trio.open_memory_channel[Progress](_MOST_REPORTS)

        def report(progress: Progress) -> None:
            try:
                reports.send_nowait(progress)
            except trio.WouldBlock:
                log.debug("a report of progress was left out: its client reads slowly", tool=name)

        async def show() -> None:
            async for each in taken:
                shown = {"progress": each.progress, "total": each.total, "message": each.message}
                await _send_event(
                    send, "progress", {key: each for key, each in shown.items() if each is not None}
                )

        await send({"type": "http.response.start", "status": 200, "headers": _headers(_EVENTS, ())})
        # The client learns at once that the call has begun.
        await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show)
            try:
                event, data = "result", await self._value(name, arguments, report)
            except _RestRefusal as refused:
                event, data = "error", {"status": refused.status, "detail": refused.detail}
            reports.close()
        await _send_event(send, event, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    # -- resources ---------------------------------------------------------------------------------------------------

    async def _resources(self, uri: str | None) -> Any:
        with _errors_as_statuses():
            if uri is not None:
                return plain((await self.client.read_resource(uri)).contents)
            listed = [plain(each) async for each in self.client.resources()]
            templates = [plain(each) async for each in self.client.resource_templates()]
        return {"resources": listed, "resourceTemplates": templates}


def _arguments(body: bytes) -> dict[str, Any]:
    try:
        arguments = json.loads(body, parse_constant=_no_constant) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _RestRefusal(422, f"the body is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _RestRefusal(422, "the body is the JSON object of the arguments")
    return arguments


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
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    # RFC 8259 section 6: Infinity and NaN, which Python reads, are not JSON.
    raise ValueError(f"{name} is not JSON")


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
        scope["method"],
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
    await _send(send, json.dumps(value, ensure_ascii=False).encode(), _JSON, status, headers)


async def _send_event(send: _Send, event: str, data: Any) -> None:
    # JSON has no line breaks outside of its texts, and escapes them in there.
    text = f"event: {event}\ndata: {json.dumps(data)}\n\n"
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
