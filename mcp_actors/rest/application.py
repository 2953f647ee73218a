"""The REST API of a server: an ASGI application that makes calls of requests.

``POST /tools/NAME`` and ``POST /NAME`` call a tool with the JSON object of their body. The answer is the content of the
result: one value, or a list of several. With ``Accept: text/event-stream`` it comes as events, behind those of its
progress. A client that leaves cancels its call, because the listener cancels the task of its request.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import attrs
import trio

from mcp_actors import Client, McpError, Progress, RpcError
from mcp_actors.cli.rest.document import document_of
from mcp_actors.errors import CallTimeout, ConnectFailed, ConnectionLost, InputRequired, WrongArguments
from mcp_actors.supervision.logging import log
from mcp_actors.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

__all__ = ["RestApplication"]

# What the code of an error of JSON-RPC is as a status of HTTP; any other is 500.
_STATUS = {-32700: 400, -32600: 400, -32601: 404, -32602: 422, -32002: 404}
_JSON = "application/json"
_EVENTS = "text/event-stream"
# Reports of progress that wait for a client that reads slowly; the newest ones are left out beyond that.
_MOST_REPORTS = 64
_PAGE_HEADERS = ((b"content-security-policy", b"default-src 'self' 'unsafe-inline'"),)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class Caller(Protocol):
    """The part of a request that says who sends it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""


@attrs.frozen
class _Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


class _Refused(Exception):
    """The request is not answered with a result."""

    def __init__(self, status: int, message: str, data: Any = None, headers: Any = ()) -> None:
        super().__init__(message)
        self.status = status
        self.detail = {"message": message} if data is None else {"message": message, "data": data}
        self.headers = tuple(headers)


class RestApplication:
    """The REST API of one server, for the routes of a listener.

    Args:
        connect: Returns a client of the server, which is entered while the application is served.
        authenticate: Says who sends a request, as `~mcp_transports.http.server.HttpServerTransport` has it; ``None``
            where anybody may call.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        authenticate: Callable[[Any], Any] | None = None,
    ) -> None:
        self._connect = connect
        self._authenticate = authenticate
        self._client: Client | None = None

    def __repr__(self) -> str:
        return "<RestApplication>"

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serves one scope of ASGI: ``http`` or ``lifespan``."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self._connect() as self._client:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except McpError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        request = await _read(scope, receive)
        try:
            await self._serve(request, send)
        except _Refused as refused:
            await _send_json(send, {"detail": refused.detail}, refused.status, refused.headers)

    async def _serve(self, request: _Request, send: Send) -> None:
        parts = [unquote(each) for each in request.path.strip("/").split("/")]
        if parts in ([""], ["docs"]) and request.method == "GET":
            page = files(__package__).joinpath("page.html").read_bytes()
            await _send(send, page, "text/html; charset=utf-8", 200, _PAGE_HEADERS)
            return
        self._identify(request)
        match request.method, parts:
            case "POST", ["tools", name] | [name] if name:
                await self._call(name, request, send)
            case "GET", ["openapi.json"]:
                await _send_json(send, await document_of(self.client))
            case "GET", ["tools"]:
                await _send_json(send, [await _listed(each) async for each in self.client.tools()])
            case "GET", ["resources"]:
                await self._resources(request, send)
            case "GET", ["prompts", *name]:
                await self._prompts(name, request, send)
            case _, ["tools" | "resources" | "prompts" | "openapi.json" | "docs" | "", *_]:
                raise _Refused(405, f"{request.method} is not answered here", headers=((b"allow", b"GET, POST"),))
            case _:
                raise _Refused(404, f"there is no {request.path}: see GET /openapi.json")

    @property
    def client(self) -> Client:
        """The client of the server."""
        if self._client is None:
            raise _Refused(503, "the server is not there yet")
        return self._client

    def _identify(self, request: _Request) -> None:
        if self._authenticate is None:
            return
        refusal = self._authenticate(request)
        status = getattr(refusal, "status", None)
        if status is not None:
            headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers]
            raise _Refused(status, refusal.text, headers=headers)

    # -- tools -------------------------------------------------------------------------------------------------------

    async def _call(self, name: str, request: _Request, send: Send) -> None:
        try:
            arguments = json.loads(request.body) if request.body.strip() else {}
        except ValueError as error:
            raise _Refused(422, f"the body is not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise _Refused(422, "the body is the JSON object of the arguments")
        if not await self._has(name):
            raise _Refused(404, f"there is no tool {name}")
        if _EVENTS in request.headers.get("accept", ""):
            await self._stream(name, arguments, send)
        else:
            await _send_json(send, await self._result(name, arguments, None))

    async def _has(self, name: str) -> bool:
        with _errors_as_statuses():
            return any([each.name == name async for each in self.client.tools()])

    async def _result(self, name: str, arguments: dict[str, Any], on_progress: Any) -> Any:
        with _errors_as_statuses():
            result = await self.client.call_tool(name, arguments, on_progress=on_progress)
        if result.is_error:
            raise _Refused(500, result.text or "the tool failed and does not say why")
        return _values(result)

    async def _stream(self, name: str, arguments: dict[str, Any], send: Send) -> None:
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
                await _send_event(send, "progress", {key: value for key, value in shown.items() if value is not None})

        await send({"type": "http.response.start", "status": 200, "headers": _headers(_EVENTS)})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show)
            try:
                event, data = "result", await self._result(name, arguments, report)
            except _Refused as refused:
                event, data = "error", {"status": refused.status, "detail": refused.detail}
            reports.close()
        await _send_event(send, event, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    # -- resources and prompts ---------------------------------------------------------------------------------------

    async def _resources(self, request: _Request, send: Send) -> None:
        uri = request.query.get("uri")
        with _errors_as_statuses():
            if uri is not None:
                found = await self.client.read_resource(uri)
                await _send_json(send, [_plain(each) for each in found.contents])
                return
            listed = [_plain(each) async for each in self.client.resources()]
            templates = [_plain(each) async for each in self.client.resource_templates()]
        await _send_json(send, {"resources": listed, "resourceTemplates": templates})

    async def _prompts(self, name: list[str], request: _Request, send: Send) -> None:
        with _errors_as_statuses():
            if len(name) == 1:
                prompt = await self.client.get_prompt(name[0], request.query)
                await _send_json(send, [_plain(each) for each in prompt.messages])
                return
            await _send_json(send, [_plain(each) async for each in self.client.prompts()])


# -- Requests and answers of ASGI --------------------------------------------------------------------------------------


async def _read(scope: Any, receive: Receive) -> _Request:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    path = scope["path"].removeprefix(scope["root_path"]) or "/"
    return _Request(
        scope["method"],
        path,
        dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
        {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        body,
    )


def _headers(kind: str, more: Any = ()) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), *more]


async def _send(send: Send, body: bytes, kind: str, status: int, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _headers(kind, headers)})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, value: Any, status: int = 200, headers: Any = ()) -> None:
    await _send(send, json.dumps(value).encode(), _JSON, status, headers)


async def _send_event(send: Send, event: str, data: Any) -> None:
    text = f"event: {event}\ndata: {json.dumps(data)}\n\n"
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
