"""A real server behind the endpoint, over real sockets: both eras, sessions that are lost and found, HTTP+SSE."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Context, Limits, Server
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.http.sse import ServerSentEvent, SseDecoder
from tests.transports.http.raw import RawPeer, eventually

MODERN, LEGACY, BATCHING = "2026-07-28", "2025-11-25", "2025-03-26"
BOTH = {"accept": "application/json, text/event-stream"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class Site:
    """A server at a URL, a client of it that knows HTTP alone, and what its tools went through."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server("site", limits=Limits(drain_grace=2))
        self.transport = HttpServerTransport(options.pop("url", "http://127.0.0.1:0/mcp"), **options)
        self.url = ""
        self.go = trio.Event()
        self.ends: list[str] = []
        self.http = httpx2.AsyncClient(timeout=10)

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def wait(ctx: Context) -> str:
            await ctx.progress(1)
            try:
                await self.go.wait()
            except trio.Cancelled:
                self.ends.append("cancelled")
                raise
            await ctx.progress(2)
            self.ends.append("finished")
            return "waited"

        @server.tool
        async def silent() -> str:
            await self.go.wait()
            return "at last"

        @server.tool
        async def ask(ctx: Context) -> str:
            result = await ctx.elicit("who are you?", SCHEMA)
            return f"hello {(result.content or {})['name']}"

        @server.tool
        async def leave(ctx: Context) -> str:
            ctx.close_stream()
            await self.go.wait()
            return "welcome back"

    async def post(self, message: Any, session: str | None = None, **headers: str) -> httpx2.Response:
        return await self.http.post(self.url, json=message, headers=_headers(session, headers))

    @asynccontextmanager
    async def stream(
        self, method: str, message: Any = None, session: str | None = None, path: str = "/mcp", **headers: str
    ) -> AsyncIterator[Events]:
        """An event stream on a connection of its own, which is closed under it after the block."""
        body = b"" if message is None else json.dumps(message).encode()
        named = {"host": "localhost", "content-type": "application/json", **_headers(session, headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        head = f"{method} {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        port = int(self.url.split(":")[2].partition("/")[0])
        peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
        try:
            await peer.send(head.encode() + body)
            yield Events(peer)
        finally:
            await peer.aclose()

    async def open(self, version: str = LEGACY) -> str:
        response = await self.post(initialize(version))
        assert response.json()["result"]["protocolVersion"] == version
        session = response.headers["mcp-session-id"]
        assert (await self.post(INITIALIZED, session)).status_code == 202
        return str(session)


def _headers(session: str | None, more: dict[str, str]) -> dict[str, str]:
    named = {} if session is None else {"mcp-session-id": session}
    return {**BOTH, **named, **more}


class Events:
    """The events of a stream; iterating ends when it was ended properly."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self._decoder = SseDecoder(1_000_000)
        self._waiting: list[ServerSentEvent] = []
        self._begun = False

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> ServerSentEvent:
        if not self._begun:
            head = await self._peer.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: text/event-stream" in head
            self._begun = True
        while not self._waiting:
            chunk = await self._peer.chunk()
            if not chunk:
                raise StopAsyncIteration
            self._waiting += self._decoder.feed(chunk)
        return self._waiting.pop(0)


@asynccontextmanager
async def site(**options: Any) -> AsyncIterator[Site]:
    made = Site(**options)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, made.http:
            (made.url,) = await nursery.start(made.server.serve, made.transport)
            yield made
            nursery.cancel_scope.cancel()


def call(id: Any, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": str(id)}}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def modern(id: Any, name: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    message = call(id, name, **arguments)
    message["params"]["_meta"] |= {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return message, {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}


def initialize(version: str) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def text(message: Any) -> str:
    return str(message["result"]["content"][0]["text"])


async def message_of(events: Events) -> Any:
    async for event in events:
        if event.is_message:
            return json.loads(event.data)
    raise AssertionError("the stream ended")


# -- the modern era ---------------------------------------------------------------------------------------------------


async def test_both_eras_are_served_at_one_url() -> None:
    async with site() as at:
        message, headers = modern(1, "add", a=1, b=2)
        response = await at.post(message, **headers)
        assert response.headers["content-type"] == "application/json"
        assert text(response.json()) == "3"
        session = await at.open()
        assert text((await at.post(call(1, "add", a=2, b=2), session)).json()) == "4"
        assert text((await at.post(message, **headers)).json()) == "3"
        unknown = {**message, "method": "ping"}
        response = await at.post(unknown, **{**headers, "mcp-method": "ping"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)
        response = await at.post(message, **{**headers, "mcp-name": "other"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("name", ["wait", "silent"])
async def test_a_modern_client_that_hangs_up_cancels_its_call(name: str) -> None:
    async with site() as at:
        message, headers = modern(1, name)
        async with at.stream("POST", message, **headers):
            await eventually(lambda: bool(at.server.tree().exchanges))
        await eventually(lambda: not at.server.tree().exchanges)
        assert at.ends == (["cancelled"] if name == "wait" else [])


# -- the legacy era ---------------------------------------------------------------------------------------------------


async def test_a_lost_call_goes_on_and_is_found_again() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            primer = await anext(events)
            assert primer.id
            assert primer.data == b""
            progress = await anext(events)
            assert json.loads(progress.data)["params"]["progress"] == 1
        at.go.set()
        await eventually(lambda: at.ends == ["finished"])
        async with at.stream("GET", None, session, **{"last-event-id": progress.id or ""}) as events:
            rest = [json.loads(event.data) async for event in events]
        assert rest[0]["params"]["progress"] == 2
        assert text(rest[1]) == "waited"
        assert len(rest) == 2


async def test_a_stream_that_the_server_closes_is_taken_up_again() -> None:
    async with site(retry=5) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "leave"), session) as events:
            seen = [event async for event in events]
        assert seen[0].data == b""
        assert [event.retry for event in seen if event.retry is not None] == [5]
        async with at.stream("GET", None, session, **{"last-event-id": seen[0].id or ""}) as events:
            at.go.set()
            assert text(await message_of(events)) == "welcome back"


async def test_a_question_travels_on_the_stream_of_its_call() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "ask"), session) as events:
            question = await message_of(events)
            assert question["method"] == "elicitation/create"
            answer = {"action": "accept", "content": {"name": "Ann"}}
            reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
            assert (await at.post(reply, session)).status_code == 202
            assert text(await message_of(events)) == "hello Ann"


async def test_a_call_that_is_cancelled_by_message_gets_no_answer() -> None:
    async with site() as at:
        session = await at.open()
        params = {"requestId": 1, "reason": "enough"}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        async with at.stream("POST", call(1, "wait"), session) as events:
            await message_of(events)
            assert (await at.post(cancel, session)).status_code == 202
            assert [event async for event in events] == []
        assert at.ends == ["cancelled"]
        responses: list[httpx2.Response] = []

        async def call_silently() -> None:
            responses.append(await at.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_silently)
            await eventually(lambda: bool(at.server.tree().sessions[0].calls))
            await at.post(cancel, session)
        assert (responses[0].status_code, responses[0].content) == (202, b"")


async def test_one_id_in_flight_twice_is_two_calls() -> None:
    async with site() as at:
        session = await at.open()
        answers = {}

        async def ask(a: int) -> None:
            answers[a] = text((await at.post(call(1, "add", a=a, b=0), session)).json())

        async with trio.open_nursery() as nursery:
            for a in range(20):
                nursery.start_soon(ask, a)
        assert answers == {a: str(a) for a in range(20)}


async def test_a_batch_is_answered_whole_where_its_revision_has_them() -> None:
    async with site() as at:
        session = await at.open(BATCHING)
        batch = [call(1, "add", a=1, b=1), INITIALIZED, call(2, "add", a=2, b=2)]
        response = await at.post(batch, session)
        assert {each["id"]: text(each) for each in response.json()} == {1: "2", 2: "4"}
        at.go.set()
        async with at.stream("POST", [call(1, "wait"), call(2, "add", a=2, b=2)], session) as events:
            messages = [json.loads(event.data) async for event in events]
        answers = [each for message in messages if isinstance(message, list) for each in message]
        assert {each["id"] for each in answers} == {1, 2}
        session = await at.open()
        response = await at.post(batch, session)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)


async def test_changed_lists_are_told_on_the_standalone_stream() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("GET", None, session) as events:
            assert (await anext(events)).data == b""
            assert (await at.http.get(at.url, headers=_headers(session, {}))).status_code == 409
            at.server.remove_tool("add")
            assert (await message_of(events))["method"] == "notifications/tools/list_changed"


async def test_json_replies_and_no_sessions() -> None:
    async with site(json_replies=True) as at:
        at.go.set()
        session = await at.open()
        assert text((await at.post(call(1, "wait"), session)).json()) == "waited"
    async with site(sessions=False) as at:
        response = await at.post(initialize(LEGACY))
        assert "mcp-session-id" not in response.headers
        assert (await at.post(INITIALIZED)).status_code == 202
        response = await at.post(call(1, "add", a=1, b=2), **{"mcp-protocol-version": LEGACY})
        assert text(response.json()) == "3"


async def test_a_deleted_session_takes_its_calls_along() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            await message_of(events)
            headers = {"mcp-session-id": session, "mcp-protocol-version": "1999-01-01"}
            assert (await at.http.delete(at.url, headers=headers)).status_code == 400
            assert (await at.http.delete(at.url, headers={"mcp-session-id": session})).status_code == 200
            assert [event async for event in events] == []
        await eventually(lambda: at.ends == ["cancelled"])
        assert (await at.post(call(2, "add", a=1, b=1), session)).status_code == 404
        assert not at.server.tree().sessions


# -- HTTP+SSE ---------------------------------------------------------------------------------------------------------


async def test_http_and_sse_beside_it() -> None:
    async with site() as at:
        base = at.url.removesuffix("/mcp")
        async with at.stream("GET", path="/sse") as events:
            first = await anext(events)
            assert first.event == "endpoint"
            endpoint = base + first.data.decode()
            for message in (initialize("2024-11-05"), INITIALIZED, call(1, "add", a=1, b=2)):
                assert (await at.http.post(endpoint, json=message)).status_code == 202
            assert (await message_of(events))["result"]["protocolVersion"] == "2024-11-05"
            assert text(await message_of(events)) == "3"
            assert at.transport.statistics().pipes == 1
        await eventually(lambda: at.transport.statistics().pipes == 0)
        assert (await at.http.post(endpoint, json=INITIALIZED)).status_code == 404


# -- where, and until when --------------------------------------------------------------------------------------------


async def test_a_stop_ends_open_streams_and_lets_calls_finish() -> None:
    at = Site()
    with trio.fail_after(20):
        async with at.http, trio.open_nursery() as nursery:
            (at.url,) = await nursery.start(at.server.serve, at.transport)
            session = await at.open()
            async with (
                at.stream("GET", None, session) as standalone,
                at.stream("GET", path="/sse") as pipe,
                at.stream("POST", call(1, "wait"), session) as events,
            ):
                await message_of(events)
                at.server.stop()
                assert [event.event async for event in pipe] == ["endpoint"]
                assert not [event async for event in standalone if event.is_message]
                at.go.set()
                messages = [json.loads(event.data) async for event in events]
                assert text(messages[-1]) == "waited"
    assert at.ends == ["finished"]
    assert repr(at.transport) == "<HttpServerTransport http://127.0.0.1:0/mcp: not served>"


async def test_a_unix_socket_and_a_second_server_there(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    url = f"http+unix://{str(path).replace('/', '%2F')}/mcp"
    async with site(url=url) as at:
        assert at.url == url
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path))) as http:
            response = await http.post("http://localhost/mcp", json=initialize(LEGACY), headers=BOTH)
            assert response.status_code == 200
        with pytest.raises(LocalProtocolError):
            await at.transport.serve(None)  # type: ignore[arg-type]
        with pytest.raises(ConnectFailed):
            await Site(url=url).server.serve(HttpServerTransport(url))
    assert not path.exists()


def test_what_cannot_be_served_is_said_at_once() -> None:
    for url in (
        "ftp://x/mcp",
        "http:///mcp",
        "http://127.0.0.1/mcp?x=1",
        "https://127.0.0.1/mcp",
        "http+unix:///x",
    ):
        with pytest.raises(ValueError, match=r"URL|ssl_context"):
            HttpServerTransport(url)
    with pytest.raises(ValueError, match="ssl_context"):
        HttpServerTransport("http://127.0.0.1/mcp", ssl_context=ssl.create_default_context())
    for path in ("/sse", "/messages"):
        with pytest.raises(ValueError, match="sse_path"):
            HttpServerTransport(f"http://127.0.0.1{path}")
    HttpServerTransport("http://127.0.0.1/sse", sse_path=None)
    assert (
        repr(HttpServerTransport("http://[::1]:8000"))
        == "<HttpServerTransport http://[::1]:8000/mcp: not served>"
    )
    assert (
        repr(HttpServerTransport("http://localhost/"))
        == "<HttpServerTransport http://localhost/: not served>"
    )


async def test_a_server_of_the_modern_era_alone() -> None:
    server = Server("modern", versions=[MODERN])
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, httpx2.AsyncClient() as http:
            (url,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp"))
            for method in ("GET", "DELETE"):
                response = await http.request(method, url, headers={"accept": "text/event-stream"})
                assert (response.status_code, response.headers["allow"]) == (405, "POST")
            response = await http.post(url, json=initialize(LEGACY), headers=BOTH)
            assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
            nursery.cancel_scope.cancel()
