"""A server of both eras that follows every rule, as a function from messages to messages, in which a test breaks one.

Nothing of the engine takes part in it: what is right and wrong here was written down by hand.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc import Frame, FrameChannel, HttpAnswer, HttpEvent

MODERN = "2026-07-28"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
INFO = {"name": "fake", "version": "1"}
META = {"io.modelcontextprotocol/serverInfo": INFO}
CACHED = {"ttlMs": 0, "cacheScope": "private"}
URL = "http://127.0.0.1:9/mcp"

DECLARED = {
    "tools": {},
    "resources": {},
    "prompts": {},
    "logging": {},
    "extensions": {"com.example/one": {}},
}
TOOL_ONE = {
    "name": "one",
    "inputSchema": {"type": "object", "properties": {"where": {"type": "string", "x-mcp-header": "Where"}}},
    "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "annotations": {"readOnlyHint": True},
}
LISTS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "tools/list": ("tools", [TOOL_ONE, {"name": "two", "inputSchema": {"type": "object"}}]),
    "resources/list": ("resources", [{"uri": "a:one", "name": "one"}]),
    "resources/templates/list": ("resourceTemplates", [{"uriTemplate": "a:{name}", "name": "any"}]),
    "prompts/list": ("prompts", [{"name": "greet", "arguments": [{"name": "who"}]}]),
}


@attrs.define
class Exchange:
    """One message of a client and what the server does about it, before a test changes it."""

    message: dict[str, Any] | None
    """``None`` for what is no JSON object, and for GET and DELETE."""
    headers: Mapping[str, str] | None
    """Those of HTTP; ``None`` over a channel."""
    verb: str = "POST"
    data: bytes = b""
    status: int = 200
    replies: list[Any] = attrs.field(factory=list)
    """Messages to send; ``bytes`` are sent as they are."""
    answered: dict[str, str] = attrs.field(factory=dict)
    """The headers of the response."""
    streamed: bool = False
    ended: bool = True
    body: bytes = b""

    @property
    def method(self) -> str:
        return str((self.message or {}).get("method", ""))

    @property
    def params(self) -> dict[str, Any]:
        return dict((self.message or {}).get("params") or {})

    @property
    def meta(self) -> dict[str, Any]:
        return dict(self.params.get("_meta") or {})

    @property
    def is_modern(self) -> bool:
        mirrored = self.headers is not None and "mcp-method" in self.headers
        return VERSION in self.meta or mirrored or self.method == "server/discover"

    @property
    def reply(self) -> dict[str, Any]:
        """The last message, which is the response."""
        last: dict[str, Any] = self.replies[-1]
        return last

    @property
    def result(self) -> dict[str, Any] | None:
        found = self.reply.get("result") if self.replies and isinstance(self.replies[-1], dict) else None
        return found if isinstance(found, dict) else None

    def succeed(self, **result: Any) -> None:
        stamp = {"resultType": "complete", "_meta": META} if self.is_modern else {}
        # A change must not reach the next answer.
        own = copy.deepcopy({**result, **stamp})
        self.replies = [{"jsonrpc": "2.0", "id": (self.message or {})["id"], "result": own}]

    def fail(self, code: int, status: int = 200, **data: Any) -> None:
        own = {"id": self.message["id"]} if self.message is not None and "id" in self.message else {}
        error = {"code": code, "message": "no", **({"data": data} if data else {})}
        self.replies, self.status = [{"jsonrpc": "2.0", **own, "error": error}], status


Change = Callable[[Exchange], None]


def unchanged(exchange: Exchange) -> None:
    """Leaves what the server does as it is."""


class FakeServer:
    """Answers as the specification wants, and then as ``change`` wants.

    Args:
        change: Is given each exchange with the right answer in it.
        eras: The eras that it speaks.
        streams: Whether it answers by streams of events over HTTP.
        token: The token that it asks for over HTTP; ``None`` for none.
    """

    def __init__(
        self,
        change: Change = unchanged,
        *,
        eras: tuple[str, ...] = ("modern", "legacy"),
        streams: bool = True,
        token: str | None = None,
    ) -> None:
        self.change = change
        self.eras = eras
        self.streams = streams
        self.token = token
        self.sessions: set[str] = set()
        self.begun = 0
        self.calls: list[str] = []
        self.seen: list[Exchange] = []

    def answer(self, exchange: Exchange) -> Exchange:
        self.seen.append(exchange)
        if exchange.headers is None or not self._refused_by_http(exchange):
            if exchange.verb != "POST":
                self._without_message(exchange)
            elif exchange.message is None:
                exchange.fail(-32700, 400)
            elif "id" not in exchange.message:
                exchange.status = 202
            elif exchange.is_modern and "modern" in self.eras:
                self._modern(exchange)
            elif not exchange.is_modern and "legacy" in self.eras:
                self._legacy(exchange)
            elif exchange.method == "initialize":
                exchange.fail(-32601, 400, supported=[MODERN])
            else:
                exchange.fail(-32601 if exchange.headers is None else -32600, 400)
        if exchange.headers is not None and self.streams and exchange.status == 200 and exchange.replies:
            exchange.streamed = True
            exchange.answered["x-accel-buffering"] = "no"
        self.change(exchange)
        return exchange

    # -- HTTP ------------------------------------------------------------------------------------------------------

    def _refused_by_http(self, exchange: Exchange) -> bool:
        headers = exchange.headers or {}
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            exchange.status = 401
            exchange.answered["www-authenticate"] = (
                'Bearer resource_metadata="http://127.0.0.1:9/.well-known/oauth-protected-resource/mcp"'
            )
        elif "origin" in headers:
            exchange.status = 403
        elif exchange.verb == "POST" and not exchange.is_modern and exchange.method != "initialize":
            version = headers.get("mcp-protocol-version")
            session = headers.get("mcp-session-id", "").strip() or None
            if (version is not None and version not in LEGACY) or (
                session is None and exchange.message is not None
            ):
                exchange.status = 400
            elif session is not None and session not in self.sessions:
                exchange.status = 404
        return exchange.status != 200

    def _without_message(self, exchange: Exchange) -> None:
        session = (exchange.headers or {}).get("mcp-session-id", "").strip()
        if "legacy" not in self.eras or (exchange.verb == "DELETE" and session not in self.sessions):
            exchange.status = 405
        elif exchange.verb == "DELETE":
            self.sessions.remove(session)
            exchange.status = 204
        else:
            exchange.streamed, exchange.ended = True, False

    # -- both eras -------------------------------------------------------------------------------------------------

    def _features(self, exchange: Exchange) -> None:
        method, params = exchange.method, exchange.params
        cached = CACHED if exchange.is_modern else {}
        if method in LISTS:
            name, items = LISTS[method]
            cursor = params.get("cursor")
            if cursor is None and len(items) > 1:
                exchange.succeed(**{name: items[:1]}, nextCursor="1", **cached)
            elif cursor in (None, "1"):
                exchange.succeed(**{name: items[1:] if cursor else items}, **cached)
            else:
                exchange.fail(-32602)
        elif method == "resources/read":
            exchange.fail(-32602 if exchange.is_modern else -32002)
        elif method == "prompts/get":
            exchange.fail(-32602)
        elif method == "tools/call":
            self.calls.append(params["name"])
            if params["name"] == "one":
                exchange.succeed(content=[{"type": "text", "text": "1"}], structuredContent={"n": 1})
            else:
                exchange.fail(-32602)
        else:
            exchange.fail(-32601, 404 if exchange.is_modern else 200)

    def _legacy(self, exchange: Exchange) -> None:
        if exchange.method == "initialize":
            asked = exchange.params["protocolVersion"]
            named = asked if asked in LEGACY else LEGACY[-1]
            exchange.succeed(protocolVersion=named, capabilities=DECLARED, serverInfo=INFO)
            if exchange.headers is not None:
                self.begun += 1
                self.sessions.add(f"s{self.begun}")
                exchange.answered["mcp-session-id"] = f"s{self.begun}"
        elif exchange.method == "ping":
            exchange.succeed()
        elif exchange.method == "logging/setLevel":
            exchange.fail(-32602)
        else:
            self._features(exchange)

    def _modern(self, exchange: Exchange) -> None:
        headers, meta = exchange.headers, exchange.meta
        if headers is not None and "mcp-protocol-version" not in headers:
            exchange.fail(-32020, 400)
        elif VERSION not in meta or CAPABILITIES not in meta:
            exchange.fail(-32602, 400)
        elif headers is not None and headers["mcp-protocol-version"] != meta[VERSION]:
            exchange.fail(-32020, 400)
        elif meta[VERSION] != MODERN:
            exchange.fail(-32022, 400, supported=[MODERN], requested=meta[VERSION])
        elif headers is not None and not _mirrors(exchange, headers):
            exchange.fail(-32020, 400)
        elif meta.get(LOG_LEVEL) == "loud":
            exchange.fail(-32602)
        elif exchange.method == "server/discover":
            exchange.succeed(supportedVersions=[MODERN], capabilities=DECLARED, **CACHED)
        elif exchange.method == "subscriptions/listen":
            own = {"io.modelcontextprotocol/subscriptionId": (exchange.message or {})["id"]}
            params = {"_meta": own, "notifications": exchange.params["notifications"]}
            method = "notifications/subscriptions/acknowledged"
            exchange.replies = [{"jsonrpc": "2.0", "method": method, "params": params}]
            exchange.ended = False
        else:
            self._features(exchange)


def _mirrors(exchange: Exchange, headers: Mapping[str, str]) -> bool:
    if headers.get("mcp-method") != exchange.method:
        return False
    target = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(exchange.method)
    return target is None or headers.get("mcp-name") == exchange.params.get(target)


def _encoded(message: Any) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


class FakeChannel(FrameChannel):
    """A channel to a `FakeServer`, which answers within `send`."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._to_receive: list[Frame] = []
        self.ended = False

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        try:
            message = json.loads(value.data)
        except ValueError:
            message = None
        for each in message if isinstance(message, list) else (message,):
            exchange = self._server.answer(Exchange(each, None, data=value.data))
            self._to_receive += [Frame(_encoded(reply)) for reply in exchange.replies]
            self.ended = self.ended or exchange.status == 0

    async def receive(self) -> Frame:
        await trio.lowlevel.checkpoint()
        if self._to_receive:
            return self._to_receive.pop(0)
        if self.ended:
            raise trio.EndOfChannel
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class FakeStream:
    """A transport over channels."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.connections = 0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        self.connections += 1
        yield FakeChannel(self.server)


class FakeHttp(FakeStream):
    """A transport that can make single requests.

    Args:
        server: Answers them.
        token: The token that each request has; ``None`` for none.
    """

    def __init__(self, server: FakeServer, token: str | None = None) -> None:
        super().__init__(server)
        self._own = {} if token is None else {"authorization": f"Bearer {token}"}

    @asynccontextmanager
    async def open_requests(self) -> AsyncIterator[FakeHttp]:
        yield self

    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        path: str | None = None,
        enough: Callable[[HttpEvent], bool] | None = None,
        linger: float = 0.0,
    ) -> HttpAnswer | None:
        await trio.lowlevel.checkpoint()
        if path is not None:
            document = {"resource": URL, "authorization_servers": ["https://login.example"]}
            exchange = Exchange(None, headers, "metadata", body=json.dumps(document).encode())
            self.server.change(exchange)
            return HttpAnswer(exchange.status, {"content-type": "application/json"}, exchange.body)
        try:
            message = None if body is None else json.loads(body)
        except ValueError:
            message = None
        batch = message if isinstance(message, list) else [message]
        each = [
            self.server.answer(Exchange(one, {**self._own, **headers}, method, body or b"")) for one in batch
        ]
        first, replies = each[0], [reply for one in each for reply in one.replies]
        kind = "text/event-stream" if first.streamed else "application/json"
        found = (
            {"content-type": kind, **first.answered} if replies or first.streamed else dict(first.answered)
        )
        if first.status == 0:
            return None
        if first.streamed:
            events = tuple(HttpEvent(_encoded(reply)) for reply in replies)
            for event in events if enough is not None else ():
                assert enough is not None
                enough(event)
            return HttpAnswer(first.status, found, b"", events, first.ended)
        data = first.body or (
            _encoded(replies if isinstance(message, list) else replies[0]) if replies else b""
        )
        return HttpAnswer(first.status, found, data, (), first.ended)
