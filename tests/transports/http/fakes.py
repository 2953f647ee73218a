"""Fakes for the endpoint: a response that remembers what it was told, and a server behind it that a test plays."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import attrs
import trio
import trio.testing

from mcp_actors.abc import EventLog, Frame, FrameChannel, Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_actors.shared import MemoryEventLog, MemoryState
from mcp_actors.supervision.budget import Budget
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Authenticate, HookAuthentication
from mcp_transports.http.server.endpoint import Endpoint, EndpointPaths
from mcp_transports.http.server.http_sse import HttpSseChannels
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.sessions import SessionLimits, SessionTable
from mcp_transports.http.server.sse_response import OpenSseResponses, StreamSettings

BOTH = "application/json, text/event-stream"


class FakeResponse:
    """What `Response` promises, without a connection."""

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.chunks: list[bytes] = []
        self.streaming = self.ended = self.aborted = self.gone = self.full = False
        self.on_gone: Callable[[], None] | None = None
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._room = trio.Event()

    def answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        if self.status is not None:
            raise LocalProtocolError("this request was answered already")
        self._head(status, content_type, headers)
        self.body = body
        self.ended = True

    def start(
        self,
        status: int = 200,
        *,
        content_type: str | None,
        headers: Iterable[tuple[str, str]] = (),
        first: bytes = b"",
    ) -> None:
        if self.status is not None:
            raise LocalProtocolError("this request was answered already")
        self._head(status, content_type, headers)
        self.streaming = True
        if first:
            self.chunks.append(first)

    def _head(self, status: int, content_type: str | None, headers: Iterable[tuple[str, str]]) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        if content_type is not None:
            self.headers["content-type"] = content_type

    def write(self, data: bytes) -> None:
        assert self.streaming, "no stream is open"
        assert not self.ended, "the stream has ended"
        if self.gone:
            raise trio.BrokenResourceError
        self.chunks.append(data)

    def end(self, last: bytes = b"") -> None:
        assert self.streaming, "no stream is open"
        assert not self.ended, "ended twice"
        self.ended = True
        if last and not self.gone:
            self.chunks.append(last)

    async def drained(self) -> None:
        if self.gone:
            raise trio.BrokenResourceError
        await self._room.wait()
        if self.gone:
            raise trio.BrokenResourceError

    def make_room(self) -> None:
        self.full = False
        self._room.set()
        self._room = trio.Event()

    def abort(self) -> None:
        if not self.ended:
            self.ended = self.aborted = True
            self.leave()

    def leave(self) -> None:
        """The peer hangs up."""
        if not self.gone:
            self.gone = True
            self._scope.cancel()
            self._room.set()
            if (self.aborted or not self.ended) and self.on_gone is not None:
                self.on_gone()

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._run, fn)

    async def _run(self, fn: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            await fn()

    # -- for the test --------------------------------------------------------------------------------------------------

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        """(id, message) of every event; ``None`` for one without data."""
        events = []
        for block in b"".join(self.chunks).decode().split("\n\n"):
            fields = dict(line.split(": ", 1) if ": " in line else (line, "") for line in block.splitlines())
            if "data" in fields or "data:" in fields:
                data = fields.get("data")
                events.append((fields.get("id"), json.loads(data) if data else None))
        return events

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.events if message is not None]

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.events if id is not None]


@attrs.define
class FakeArrival:
    message: Any
    era: Literal["legacy", "modern"]
    requests: int
    initializes: bool
    refusal: Frame | None = None

    @property
    def stateless(self) -> bool:
        return self.era == "modern"


def answer(id: Any, result: Any = "done") -> Frame:
    data = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
    return Frame(data, about=id, last=True)


def error(id: Any, code: int, *, refusal: bool = True) -> Frame:
    data = json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}).encode()
    return Frame(data, about=id, last=True, refusal=code if refusal else None)


def notification(text: str = "news", about: Any = None) -> Frame:
    return Frame(json.dumps({"jsonrpc": "2.0", "method": text}).encode(), about=about, method=text)


def question(id: Any, about: Any = None) -> Frame:
    data = json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode()
    return Frame(data, about=about, method="ping", request=id)


class FakeSession:
    """A session that a test plays: ``delivered`` holds what arrived, each with its outlet."""

    def __init__(self, outlet: Outlet, principal: Principal | None) -> None:
        self.outlet = outlet
        self.principal = principal
        self.initialized = self.busy = self.closed = False
        self.resumes = True
        self.delivered: list[tuple[Any, Outlet]] = []

    def deliver(self, arrival: Any, outlet: Outlet) -> None:
        assert not self.closed
        message = arrival.message
        if message == {"crash": 1}:
            raise RuntimeError("a bug")
        if arrival.initializes:
            params = message.get("params", {})
            self.resumes = params.get("resumes", True)
            self.initialized = "refuse" not in params
            if "hold" not in params:
                outlet.post(answer(message["id"]) if self.initialized else error(message["id"], -32602))
        else:
            self.delivered.append((message, outlet))

    def close(self) -> None:
        self.closed = True

    def outlet_of(self, id: Any) -> Outlet:
        return next(outlet for message, outlet in self.delivered if message.get("id") == id)


class FakeHandler:
    """The server's side; ``exchange`` and ``connection`` are what a test lets it do."""

    def __init__(self) -> None:
        self.leaving, self.stopping = trio.Event(), trio.Event()
        self.shared = MemoryState()
        self.legacy = True
        self.scopes: frozenset[str] = frozenset()
        self.sessions: list[FakeSession] = []
        self.principals: list[Principal | None] = []
        self.on_exchange: Callable[[Any, Outlet], Awaitable[None]] | None = None
        self.on_connection: Callable[[FrameChannel], Awaitable[None]] | None = None
        self.nursery: trio.Nursery | None = None

    @property
    def has_sessions(self) -> bool:
        return self.legacy

    def sort(self, frame: Frame, *, in_session: bool = False) -> FakeArrival:
        assert frame.metadata is not None
        if not self.legacy or frame.metadata.get("mcp-protocol-version") == "unknown":
            return FakeArrival(None, "legacy", 0, False, error(None, -32022))
        era: Literal["legacy", "modern"] = "modern" if frame.metadata.get("era") == "modern" else "legacy"
        try:
            message = json.loads(frame.data)
        except ValueError:
            return FakeArrival(None, era, 0, False, error(None, -32700))
        messages = message if isinstance(message, list) else [message]
        requests = sum("method" in each and "id" in each for each in messages)
        initializes = messages[0].get("method") == "initialize" and era == "legacy"
        return FakeArrival(message, era, requests, initializes)

    def scopes_needed(self, arrival: Any) -> frozenset[str]:
        return self.scopes

    async def exchange(
        self, arrival: Any, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        self.principals.append(principal)
        assert self.on_exchange is not None
        await self.on_exchange(arrival.message, outlet)

    def begin(
        self, arrival: Any, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> Callable[[], None]:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await self.exchange(arrival, outlet, principal)

        assert self.nursery is not None
        self.nursery.start_soon(run)
        return scope.cancel

    def open_session(
        self, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> FakeSession:
        session = FakeSession(outlet, principal)
        self.sessions.append(session)
        return session

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        self.principals.append(principal)
        assert self.on_connection is not None
        await self.on_connection(channel)


class FakeListener:
    """Plays the HTTP server in front of an endpoint, and holds the engine that a test plays behind it."""

    def __init__(
        self,
        nursery: trio.Nursery | None = None,
        *,
        sessions: bool = True,
        store: EventLog | Literal["memory"] | None = "memory",
        json_replies: bool = False,
        idle: float = 100.0,
        max_sessions: int = 10,
        max_sessions_per_peer: int | None = 1_000,
        keepalive: float = 15.0,
        authenticate: Authenticate | None = None,
        longest: int = 10_000,
        posted: int = 1_000_000,
        legacy: bool = True,
    ) -> None:
        self.handler = FakeHandler()
        self.handler.nursery = nursery
        self.handler.legacy = legacy
        self.nursery = nursery
        # Where the requests seem to come from.
        self.peer = "peer"
        self.open_streams = OpenSseResponses(keepalive)
        self.store = MemoryEventLog() if store == "memory" else store
        settings = StreamSettings(self.open_streams, longest, self.store, json_replies, 700)
        self.table = SessionTable(settings, SessionLimits(idle, max_sessions, max_sessions_per_peer))
        self.http_sse = HttpSseChannels(self.open_streams, "/messages", longest, Budget(posted))
        self.endpoint = Endpoint(
            self.handler,
            OriginPolicy("127.0.0.1"),
            settings,
            EndpointPaths("/mcp", "/sse"),
            sessions=self.table if sessions else None,
            http_sse=self.http_sse,
            authentication=HookAuthentication(authenticate) if authenticate is not None else None,
        )

    def send(
        self, method: str, path: str = "/mcp", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> FakeResponse:
        path, _, query = path.partition("?")
        response = FakeResponse(self.nursery)
        request = Request(
            method, path, path, query, {"host": "127.0.0.1", **(headers or {})}, body, "1.1", True, self.peer
        )
        self.endpoint(request, response)  # type: ignore[arg-type]
        return response

    def post(self, message: Any, session: str | None = None, **headers: str) -> FakeResponse:
        """``headers`` with underscores for their hyphens; an empty value leaves one out."""
        given = {"content_type": "application/json", "accept": BOTH, **headers}
        if session is not None:
            given["mcp_session_id"] = session
        named = {name.replace("_", "-"): value for name, value in given.items() if value}
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.send("POST", body=body, headers=named)

    def get(
        self, session: str | None = None, last_event_id: str | None = None, **headers: str
    ) -> FakeResponse:
        given = {"accept": "text/event-stream", **headers}
        if session is not None:
            given["mcp_session_id"] = session
        if last_event_id is not None:
            given["last_event_id"] = last_event_id
        return self.send(
            "GET", headers={name.replace("_", "-"): value for name, value in given.items() if value}
        )

    def delete(self, session: str | None = None, **headers: str) -> FakeResponse:
        given = dict(headers) if session is None else {**headers, "mcp-session-id": session}
        return self.send("DELETE", headers=given)

    def open(self, **params: Any) -> tuple[str, FakeSession]:
        """Begins a session: its id, and the engine's side of it."""
        headers = {"authorization": who} if (who := params.pop("who", None)) else {}
        response = self.post(request(0, "initialize", **params), **headers)
        assert response.status == 200, response.body
        return response.headers["mcp-session-id"], self.handler.sessions[-1]


def request(id: Any, method: str = "tools/call", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def numbers(response: FakeResponse) -> list[int]:
    """What was said, of tests that say numbers."""
    return [int(message["method"]) for message in response.messages if "method" in message]


async def resume(listener: FakeListener, session: str, last_event_id: str) -> FakeResponse:
    """A GET that goes on after an event."""
    response = listener.get(session, last_event_id)
    await trio.testing.wait_all_tasks_blocked()
    return response


def plain(frame: Frame) -> Any:
    """An exchange that has one thing to say."""

    async def exchange(message: Any, outlet: Outlet) -> None:
        await outlet.send(frame)

    return exchange
