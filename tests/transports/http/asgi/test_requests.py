"""Requests of an ASGI server on asyncio, driven by hand: eras, mounts, limits, slow peers, disconnects and ends."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Context, Server
from mcp_actors.asyncio import Client
from mcp_transports.http.asgi import websocket
from mcp_transports.http.asgi.response import AnswerCutOff
from mcp_transports.http.h1.limits import HttpLimits
from tests import messages
from tests.messages import LEGACY
from tests.transports.http.asgi import test_websocket

SECONDS = 60.0
HOST = (b"host", b"localhost")
POSTED = (HOST, (b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream"))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens in another thread
            await asyncio.sleep(0.001)


class Exchange:
    """One request as an ASGI server brings it, and what the application has sent."""

    def __init__(self, *, keep_alive: bool = True, takes: bool = True) -> None:
        # uvicorn tells by it, in the object that `receive` belongs to, that it ends.
        self.keep_alive = keep_alive
        self.sent: list[Any] = []
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._takes = takes
        self.has_begun = asyncio.Event()

    async def receive(self) -> Any:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.has_begun.set()
        if not self._takes and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(each["body"] for each in self.sent[1:])


def scope_of(method: str, path: str, headers: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 4711),
        **more,
    }


async def ask(
    app: Any, body: Any = None, path: str = "/mcp", headers: Any = POSTED, method: str = "POST", **more: Any
) -> Exchange:
    exchange = Exchange()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange.incoming.put_nowait({"type": "http.request", "body": data})
    async with asyncio.timeout(SECONDS):
        await app(scope_of(method, path, headers, **more), exchange.receive, exchange.send)
    return exchange


INITIALIZE = messages.initialize(0, LEGACY)


class Site:
    """A server, and what its tools and its lifespan went through."""

    def __init__(self, **settings: Any) -> None:
        self.seen: list[str] = []
        self.called = asyncio.Event()
        loop = asyncio.get_running_loop()

        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncIterator[None]:
            self.seen.append("begun")
            try:
                yield
            finally:
                self.seen.append("ended")

        self.server = server = Server("site", lifespan=lifespan)

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def hang(ctx: Context) -> str:
            loop.call_soon_threadsafe(self.called.set)
            try:
                await trio.sleep_forever()
            finally:
                self.seen.append("cancelled")

        self.app = server.asgi(**settings)

    async def saw(self, what: str) -> None:
        await until(lambda: what in self.seen)


async def session(app: Any, **more: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Begins a session, and returns the headers of its requests."""
    begun = await ask(app, INITIALIZE, **more)
    assert begun.status == 200
    headers = (*POSTED, (b"mcp-session-id", begun.headers[b"mcp-session-id"]))
    assert (await ask(app, messages.INITIALIZED, headers=headers, **more)).status == 202
    return headers


def call(tool: str, **arguments: Any) -> Any:
    return {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }


def on_asyncio(fn: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an asyncio loop of its own."""

    def test() -> None:
        asyncio.run(asyncio.wait_for(fn(), 2 * SECONDS))

    test.__name__ = fn.__name__
    return test


@on_asyncio
async def test_a_session_lives_from_the_first_request_without_a_lifespan() -> None:
    site = Site()
    headers = await session(site.app)
    answer = await ask(site.app, call("add", a=1, b=2), headers=headers)
    assert json.loads(answer.body)["result"]["content"][0]["text"] == "3"
    assert (await ask(site.app, method="DELETE", headers=headers)).status == 200
    assert (await ask(site.app, call("add", a=1, b=2), headers=headers)).status == 404


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("", "/mcp", 200),
        ("/tools", "/tools/mcp", 200),
        ("/tools", "/mcp", 200),
        ("/mcp", "/mcp", 200),
        ("/mcp", "/mcp/mcp", 200),
        ("/mcp", "/mcp/", 200),
        ("", "/mcp/", 200),
        ("/tools", "/tools/mcp/", 200),
        ("", "/mcp//", 404),
        ("/tools", "/toolsmcp", 404),
        ("/tools", "/tools", 404),
    ],
)
def test_both_conventions_of_mounts_lead_to_the_endpoint(root: str, path: str, status: int) -> None:
    async def run() -> None:
        assert (await ask(Site().app, INITIALIZE, path=path, root_path=root)).status == status

    asyncio.run(run())


@on_asyncio
async def test_clients_of_http_sse_are_told_where_to_post_below_the_mount() -> None:
    site, exchange = Site(), Exchange()
    headers = (HOST, (b"accept", b"text/event-stream"))
    scope = scope_of("GET", "/a b/sse", headers, root_path="/a b")
    task = asyncio.ensure_future(site.app(scope, exchange.receive, exchange.send))
    await until(lambda: len(exchange.sent) == 2)
    assert b"data: /a%20b/messages?session_id=" in exchange.body
    exchange.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(task, SECONDS)


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (400, {"headers": (HOST, HOST)}),
        (400, {"headers": ()}),
        (400, {"headers": ((b"host", b"a b"),)}),
        (400, {"headers": (HOST, (b"content-length", b"-1"))}),
        (413, {"headers": (HOST, (b"content-length", b"1001"))}),
        (413, {"body": b"x" * 1001}),
        (414, {"path": "/" + "x" * 9000}),
        (414, {"query_string": b"x" * 9000}),
        (431, {"headers": (HOST, (b"x", b"y" * 40000))}),
        (431, {"headers": (HOST, *((b"x", b"y") for _ in range(101)))}),
        (501, {"method": "BREW"}),
        (403, {"headers": ((b"host", b"evil.example"),)}),
        (404, {"path": "/elsewhere"}),
        (405, {"method": "PUT"}),
    ],
)
def test_what_our_own_listener_refuses_is_refused(status: int, more: dict[str, Any]) -> None:
    async def run() -> None:
        refused = await ask(Site(limits=HttpLimits(body_bytes=1000)).app, **{"body": b"", **more})
        assert refused.status == status
        if status == 403:
            assert b"allowed_hosts" in refused.body

    asyncio.run(run())


def modern(tool: str, **arguments: Any) -> tuple[Any, tuple[tuple[bytes, bytes], ...]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = call(tool, **arguments)
    body["params"]["_meta"] = meta
    headers = (
        *POSTED,
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", tool.encode()),
    )
    return body, headers


async def begin_hanging(site: Site) -> tuple[Exchange, asyncio.Task[None]]:
    body, headers = modern("hang")
    exchange = Exchange()
    exchange.incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
    scope = scope_of("POST", "/mcp", headers)
    task = asyncio.ensure_future(site.app(scope, exchange.receive, exchange.send))
    await asyncio.wait_for(site.called.wait(), SECONDS)
    return exchange, task


@on_asyncio
async def test_a_client_that_leaves_cancels_its_call() -> None:
    site = Site()
    exchange, task = await begin_hanging(site)
    exchange.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(task, SECONDS)
    await site.saw("cancelled")
    assert exchange.sent == []


@on_asyncio
async def test_a_server_that_cancels_the_application_cancels_the_call() -> None:
    site = Site()
    _, task = await begin_hanging(site)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
    await site.saw("cancelled")


async def open_stream(app: Any, *, takes: bool = True) -> tuple[Exchange, asyncio.Task[None]]:
    exchange = Exchange(takes=takes)
    headers = await session(app)
    task = asyncio.ensure_future(app(scope_of("GET", "/mcp", headers), exchange.receive, exchange.send))
    await asyncio.wait_for(exchange.has_begun.wait(), SECONDS)
    return exchange, task


@on_asyncio
async def test_a_stream_that_never_ends_lets_a_server_end_that_waits_for_it() -> None:
    exchange, task = await open_stream(Site().app)
    exchange.keep_alive = False
    await asyncio.wait_for(task, SECONDS)
    assert exchange.status == 200


@on_asyncio
async def test_a_client_that_reads_nothing_is_dropped() -> None:
    site = Site(limits=HttpLimits(write_timeout=1.0), keepalive=0.1)
    exchange, task = await open_stream(site.app, takes=False)
    with pytest.raises(AnswerCutOff):
        await asyncio.wait_for(task, SECONDS)
    assert exchange.status == 200


class Lifespan:
    """A lifespan as a server runs it."""

    def __init__(self, app: Any) -> None:
        self.exchange = Exchange()
        self.task = asyncio.ensure_future(
            app({"type": "lifespan"}, self.exchange.receive, self.exchange.send)
        )

    async def tell(self, kind: str, answers: int) -> Any:
        self.exchange.incoming.put_nowait({"type": kind})
        await until(lambda: len(self.exchange.sent) == answers)
        return self.exchange.sent[-1]


@on_asyncio
async def test_a_server_lives_as_long_as_the_last_lifespan() -> None:
    site = Site()
    one, two = Lifespan(site.app), Lifespan(site.app)
    for each in (one, two):
        assert await each.tell("lifespan.startup", 1) == {"type": "lifespan.startup.complete"}
    assert site.seen == ["begun"]
    assert await one.tell("lifespan.shutdown", 2) == {"type": "lifespan.shutdown.complete"}
    assert site.seen == ["begun"]
    assert await two.tell("lifespan.shutdown", 2) == {"type": "lifespan.shutdown.complete"}
    assert site.seen == ["begun", "ended"]


@on_asyncio
async def test_a_server_that_cannot_begin_says_why_in_one_line() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    answer = await Lifespan(Server("broken", lifespan=lifespan).asgi()).tell("lifespan.startup", 1)
    assert answer == {"type": "lifespan.startup.failed", "message": "ValueError: no database"}


@on_asyncio
async def test_a_framework_runs_the_lifespan_of_the_application() -> None:
    site = Site()
    async with site.app.lifespan(object()):
        assert site.seen == ["begun"]
        assert (await ask(site.app, INITIALIZE)).status == 200
    assert site.seen == ["begun", "ended"]


def test_a_loop_that_ends_takes_its_server_along_and_the_next_one_begins_another() -> None:
    seen: list[str] = []

    async def run() -> None:
        site = Site()
        site.seen = seen
        await session(site.app)

    asyncio.run(run())
    asyncio.run(run())
    assert seen == ["begun", "ended", "begun", "ended"]


# -- Bodies that an ASGI server brings late, in pieces, or not at all ------------------------------------


@on_asyncio
async def test_a_server_that_never_waits_and_never_ends_a_body_is_refused() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": True}

    exchange = Exchange()
    await Site().app(scope_of("POST", "/mcp", POSTED), receive, exchange.send)
    assert exchange.status == 400


@on_asyncio
async def test_a_body_that_does_not_come_is_given_up() -> None:
    exchange = Exchange()
    app = Site(limits=HttpLimits(body_time=0.05)).app
    await app(scope_of("POST", "/mcp", POSTED), exchange.receive, exchange.send)
    assert exchange.status == 408


@on_asyncio
async def test_the_bytes_of_a_body_are_held_until_its_request_is_answered() -> None:
    app = Site(limits=HttpLimits(held_bytes=200_000, held_bytes_per_address=200_000)).app
    headers = await session(app)
    long = {**call("add", a=1, b=2), "filler": "x" * 150_000}
    for _ in range(4):
        assert (await ask(app, long, headers=headers)).status == 200
    assert app._bodies.budget.held == 0
    refused = await ask(app, {**long, "filler": "x" * 250_000}, headers=headers)
    assert refused.status == 503


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_body_that_comes_late_and_in_pieces_is_read(pause: float) -> None:
    pieces = [json.dumps(INITIALIZE).encode()[start:end] for start, end in ((0, 9), (9, 20), (20, None))]

    class Received:
        """What another server returns from ``receive``: awaitable, and no coroutine."""

        def __await__(self) -> Any:
            yield from asyncio.sleep(pause).__await__()
            yield from asyncio.sleep(pause).__await__()
            return {"type": "http.request", "body": pieces.pop(0), "more_body": len(pieces) > 0}

    async def run() -> None:
        exchange = Exchange()
        await Site().app(scope_of("POST", "/mcp", POSTED), Received, exchange.send)
        assert exchange.status == 200

    asyncio.run(run())


@on_asyncio
async def test_a_server_that_fails_while_a_body_is_awaited_gets_its_error_back() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0)
        raise OSError("reset")

    with pytest.raises(OSError, match="reset"):
        await Site().app(scope_of("POST", "/mcp", POSTED), receive, Exchange().send)


@on_asyncio
async def test_a_request_that_is_cancelled_while_its_body_is_awaited_cancels_the_wait() -> None:
    seen: list[str] = []

    async def receive() -> Any:
        try:
            seen.append("waits")
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    task = asyncio.ensure_future(Site().app(scope_of("POST", "/mcp", POSTED), receive, Exchange().send))
    await until(lambda: seen == ["waits"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["waits", "cancelled"]


@on_asyncio
async def test_a_client_that_leaves_in_mid_body_is_answered_with_nothing() -> None:
    exchange = Exchange()
    exchange.incoming.put_nowait({"type": "http.disconnect"})
    await Site().app(scope_of("POST", "/mcp", POSTED), exchange.receive, exchange.send)
    assert exchange.sent == []


# -- Memory of requests that have ended: none waits for the garbage collector ----------------------------

ROUNDS = 10


@on_asyncio
async def test_a_request_leaves_no_cycle_whatever_its_answer() -> None:
    site = Site()
    async with site.app.lifespan():
        session_headers = await session(site.app)
        requests = {
            200: {"headers": session_headers},
            404: {"headers": session_headers, "path": "/other"},
            403: {"headers": ((b"host", b"other.example"), *POSTED[1:])},
            400: {"headers": (HOST, HOST)},
        }
        cyclic: dict[int, int] = {}
        for status, options in requests.items():
            # What is made once, by any thread of the process, is not there a second time.
            for rounds in (2, ROUNDS, ROUNDS):
                gc.collect()
                gc.disable()
                try:
                    for _ in range(rounds):
                        exchange = await ask(site.app, call("add", a=1, b=2), **options)  # type: ignore[arg-type]
                        assert exchange.status == status
                    # The engine has ended with it when it answers another one.
                    del exchange
                    await ask(site.app, call("add", a=1, b=2), headers=session_headers)
                    found = gc.collect()
                    if rounds == ROUNDS:
                        cyclic[status] = min(found, cyclic.get(status, found))
                finally:
                    gc.enable()
    assert all(each < ROUNDS for each in cyclic.values()), cyclic


# -- What ASGI servers and programs may do to an application, and what it costs: nothing but what did it ---


@on_asyncio
async def test_a_request_behind_the_stop_of_its_server_costs_no_other_server() -> None:
    site = Site()
    async with Client(Server("another")) as client:
        await session(site.app)
        site.server.stop()
        await site.saw("ended")
        assert (await ask(site.app, INITIALIZE)).status == 503
        begun = await Lifespan(site.app).tell("lifespan.startup", 1)
        assert begun["type"] == "lifespan.startup.failed"
        assert "the server was stopped" in begun["message"]
        await client.ping()


@on_asyncio
async def test_a_lifespan_that_breaks_off_leaves_the_server_to_the_others() -> None:
    site = Site()
    one, two = Lifespan(site.app), Lifespan(site.app)
    for each in (one, two):
        await each.tell("lifespan.startup", 1)
    two.task.cancel()
    await asyncio.wait([two.task])
    await session(site.app)
    assert site.seen == ["begun"]
    await one.tell("lifespan.shutdown", 2)
    assert site.seen == ["begun", "ended"]


async def test_a_websocket_whose_server_sends_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with test_websocket.site() as at:
        peer = at.connect()
        await peer.open()
        monkeypatch.setattr(websocket, "WRITE_TIME", 0.1)
        monkeypatch.setattr(websocket, "CLOSE_TIME", 0.1)
        # Nothing of it is ever taken.
        peer.say(messages.call(1, "flood"))
        with trio.fail_after(60):
            await peer.ended.wait()
