"""Scopes and events that no ASGI server should bring: 20,000 of them, mutated by a seed, and some by hand."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcp_actors import Server
from mcp_actors.errors import LocalProtocolError
from mcp_transports.http.asgi.response import AnswerCutOff
from mcp_transports.http.h1.limits import HttpLimits
from tests import messages
from tests.messages import LEGACY, MODERN

# Each brings so many messages: scopes, and the events behind them.
SEEDS = range(20)
MESSAGES_OF_A_SEED = 1000
HOST = (b"host", b"localhost")
DISCONNECTS = {
    "http": "http.disconnect",
    "websocket": "websocket.disconnect",
    "lifespan": "lifespan.shutdown",
}
# What an application may raise: both are documented.
DOCUMENTED = (LocalProtocolError, AnswerCutOff)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    "",
    "x",
    "\udc80",
    "\x00\r\n",
    "ä" * 3000,
    b"",
    b"\xff\xfe",
    b"{",
    b"x" * 70_000,
    [],
    {},
    [None],
    [(b"a",)],
    [(b"a", b"b", b"c")],
    [("a", "b")],
    [[b"host", None]],
    {"type": {}},
    ("127.0.0.1",),
    ("::1", "port"),
    object(),
)
SCOPES = ("http", "websocket", "lifespan")


def make_server() -> Server:
    server = Server("attacked")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


def scope_of(
    kind: str, method: str = "POST", path: str = "/mcp", *headers: tuple[bytes, bytes]
) -> dict[str, Any]:
    if kind == "lifespan":
        return {"type": "lifespan", "asgi": {"version": "3.0"}}
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [HOST, *headers],
        "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 80),
        "subprotocols": ["mcp"],
        "extensions": {"websocket.http.response": {}},
    }


BOTH = (b"accept", b"application/json, text/event-stream")
JSON = (b"content-type", b"application/json")
CALL = json.dumps(messages.modern_call(1, "add", a=1, b=2)).encode()
MODERN_HEADERS = (
    BOTH,
    JSON,
    (b"mcp-protocol-version", MODERN.encode()),
    (b"mcp-method", b"tools/call"),
    (b"mcp-name", b"add"),
)
INITIALIZE = json.dumps(messages.initialize(0, LEGACY)).encode()


def good_runs() -> list[list[dict[str, Any]]]:
    """Scopes with the events behind them, as a server brings them."""
    half = len(CALL) // 2
    return [
        [scope_of("http", "POST", "/mcp", *MODERN_HEADERS), {"type": "http.request", "body": CALL}],
        [
            scope_of("http", "POST", "/mcp", *MODERN_HEADERS),
            {"type": "http.request", "body": CALL[:half], "more_body": True},
            {"type": "http.request", "body": CALL[half:], "more_body": False},
        ],
        [scope_of("http", "POST", "/mcp", BOTH, JSON), {"type": "http.request", "body": INITIALIZE}],
        [scope_of("http", "GET", "/mcp", BOTH), {"type": "http.request", "body": b""}],
        [scope_of("http", "GET", "/sse", BOTH), {"type": "http.request"}],
        [scope_of("http", "DELETE", "/mcp", (b"mcp-session-id", b"x")), {"type": "http.request"}],
        [
            scope_of("websocket", "GET", "/ws"),
            {"type": "websocket.connect"},
            {"type": "websocket.receive", "text": INITIALIZE.decode()},
            {"type": "websocket.receive", "text": CALL.decode(), "bytes": None},
            {"type": "websocket.disconnect", "code": 1000},
        ],
        [scope_of("lifespan"), {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}],
    ]


class Mutator:
    """Breaks runs of messages, the same way for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def run(self) -> list[Any]:
        """Returns a scope, and the events behind it."""
        chosen = self._random.choice(good_runs())
        for _ in range(self._random.randint(1, 3)):
            self._random.choice(
                (
                    self._omit,
                    self._replace,
                    self._replace,
                    self._replace_inside,
                    self._repeat,
                    self._swap,
                    self._cross,
                )
            )(chosen)
        return chosen

    def _omit(self, run: list[Any]) -> None:
        target = self._random.choice(run)
        if isinstance(target, dict) and target:
            del target[self._random.choice(list(target))]

    def _replace(self, run: list[Any]) -> None:
        target = self._random.choice(run)
        if isinstance(target, dict) and target:
            target[self._random.choice(list(target))] = self._random.choice(ODD)

    def _replace_inside(self, run: list[Any]) -> None:
        """Puts something odd among the headers or subprotocols, which are lists."""
        for name in self._random.sample(("headers", "subprotocols"), 2):
            value = run[0].get(name) if isinstance(run[0], dict) else None
            if isinstance(value, list):
                value.insert(self._random.randint(0, len(value)), self._random.choice(ODD))
                return

    def _repeat(self, run: list[Any]) -> None:
        run.insert(self._random.randint(1, len(run)), dict(run[self._random.randrange(len(run))]))

    def _swap(self, run: list[Any]) -> None:
        """Changes the order of two events."""
        if len(run) > 2:
            one, two = self._random.sample(range(1, len(run)), 2)
            run[one], run[two] = run[two], run[one]

    def _cross(self, run: list[Any]) -> None:
        """Brings an event of another kind of scope, or none of a kind at all."""
        other = self._random.choice(good_runs())
        event = self._random.choice(
            [*other[1:], {}, {"type": "http.disconnect"}, {"type": "websocket.disconnect"}]
        )
        run.insert(self._random.randint(1, len(run)), event)


class Exchange:
    """What the application receives: a run, then that its client has left, as often as it asks."""

    def __init__(self, run: list[Any]) -> None:
        self.scope, self._events = run[0], list(run[1:])
        kind = self.scope.get("type")
        self._last = {"type": DISCONNECTS.get(kind if isinstance(kind, str) else "http", "http.disconnect")}
        self._is_answered = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self._events:
            return self._events.pop(0)
        # The client leaves once it has an answer, or soon.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_answered.wait(), 0.02)
        return self._last

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] in ("http.response.body", "websocket.send", "websocket.close"):
            self._is_answered.set()

    async def of(self, app: Any) -> BaseException | None:
        """Returns what the application raised."""
        try:
            async with asyncio.timeout(20):
                await app(self.scope, self.receive, self.send)
        except Exception as error:
            return error
        return None


async def next_call(app: Any) -> None:
    """A good request is answered as ever."""
    exchange = Exchange(
        [scope_of("http", "POST", "/mcp", *MODERN_HEADERS), {"type": "http.request", "body": CALL}]
    )
    # A client that waits.
    left = asyncio.Event()
    events = [{"type": "http.request", "body": CALL}]

    async def receive() -> Any:
        if not events:
            await left.wait()
        return events.pop(0)

    async with asyncio.timeout(20):
        await app(exchange.scope, receive, exchange.send)
    assert exchange.sent[0]["status"] == 200
    assert b'"3"' in b"".join(each["body"] for each in exchange.sent[1:])


async def settled(server: Server, before: set[Any], sessions: int) -> None:
    """Returns when no task is left in this loop, and no more sessions in the engine than those of HTTP."""
    async with asyncio.timeout(20):
        while asyncio.all_tasks() - before or len(server.tree().sessions) > sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def attack(runs: list[list[Any]], sessions: int) -> list[BaseException]:
    """Returns what was raised that is not documented."""
    server = make_server()
    limits = HttpLimits(body_bytes=60_000)
    app = server.asgi(websocket="/ws", limits=limits, sessions=sessions > 0, max_sessions=max(sessions, 1))
    raised: list[BaseException] = []
    with capture_logs():
        async with app.lifespan():
            before = asyncio.all_tasks()
            for number, run in enumerate(runs):
                shown = repr(run)[:600]
                error = await Exchange(run).of(app)
                if error is not None and not isinstance(error, DOCUMENTED):
                    error.add_note(shown)
                    raised.append(error)
                if number % 50 == 0:
                    await next_call(app)
            await next_call(app)
            await settled(server, before, sessions)
    return raised


@pytest.mark.parametrize("seed", SEEDS)
def test_no_mutated_message_raises_or_leaves_anything(seed: int) -> None:
    mutator, runs, count = Mutator(seed), list[list[Any]](), 0
    while count < MESSAGES_OF_A_SEED:
        runs.append(mutator.run())
        count += len(runs[-1])
    raised = asyncio.run(attack(runs, sessions=seed % 2 * 25))
    assert [f"{error!r} {error.__notes__}" for error in raised] == []


# -- by hand: orders that the mutator does not find --------------------------------------------------------------------


class Silent(Exchange):
    """Says nothing more behind its events, for ever: a server that keeps a connection it has lost."""

    async def receive(self) -> Any:
        if self._events:
            return self._events.pop(0)
        return await asyncio.get_running_loop().create_future()


WS, CONNECT = scope_of("websocket", "GET", "/ws"), {"type": "websocket.connect"}
POST, LEFT = scope_of("http", "POST", "/mcp", *MODERN_HEADERS), {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("run", "is_refused"),
    [
        ([WS, {"type": "websocket.disconnect", "code": 1006}], False),
        ([WS, {"type": "websocket.receive", "text": "{}"}], True),
        ([WS, CONNECT, {"type": "websocket.receive", "text": 5}], False),
        ([WS, CONNECT, {"type": "websocket.receive", "text": "\udc80"}], False),
        ([WS, CONNECT, {"type": "websocket.receive", "bytes": b"{}"}], False),
        ([WS, CONNECT, {"type": "websocket.disconnect"}, {"type": "websocket.receive", "text": "{}"}], False),
        ([WS, CONNECT, CONNECT], False),
        ([WS, CONNECT, None], False),
        ([{**WS, "subprotocols": 5}, CONNECT], True),
        ([{**WS, "extensions": "websocket.http.response"}, CONNECT], True),
        ([{**WS, "headers": None}, CONNECT], True),
        ([POST, LEFT], False),
        ([POST, {"type": "http.request", "body": CALL, "more_body": True}, LEFT], False),
        ([POST, {"type": "http.request", "body": "text"}], True),
        ([POST, {"type": "http.request", "body": None}], True),
        ([POST, {"type": "http.request", "body": 10**9}], True),
        ([POST, CONNECT], False),
        ([POST, {}], True),
        ([{**POST, "path": b"/mcp"}, {"type": "http.request", "body": CALL}], True),
        ([{**POST, "path": "/\udc80", "root_path": "/x"}, {"type": "http.request", "body": CALL}], True),
        ([{**POST, "client": 5}, {"type": "http.request", "body": CALL}], True),
        ([{**POST, "query_string": "a=b"}, {"type": "http.request", "body": CALL}], True),
        ([{**POST, "headers": {b"host": b"localhost"}}, {"type": "http.request", "body": CALL}], True),
        ([{**POST, "method": ["POST"]}, {"type": "http.request", "body": CALL}], True),
        ([scope_of("lifespan"), {"type": "lifespan.shutdown"}], True),
        ([scope_of("lifespan"), {"type": "http.request"}], True),
        ([{"type": "tcp"}], True),
        ([{}], True),
    ],
)
def test_what_comes_in_no_order_ends_at_once_and_leaves_nothing(run: list[Any], is_refused: bool) -> None:
    async def check() -> None:
        server = make_server()
        app = server.asgi(websocket="/ws", sessions=False)
        with capture_logs():
            async with app.lifespan():
                before = asyncio.all_tasks()
                error = await Silent(run).of(app)
                await next_call(app)
                await settled(server, before, 0)
        assert isinstance(error, LocalProtocolError) == is_refused, repr(error)
        assert error is None or is_refused

    asyncio.run(check())


class Patient(Exchange):
    """Leaves once it has any answer."""

    async def receive(self) -> Any:
        if not self._events:
            await self._is_answered.wait()
        return await super().receive()

    async def send(self, message: Any) -> None:
        await super().send(message)
        self._is_answered.set()


def frozen(value: Any) -> Any:
    """Returns a read-only view of each dict in a scope or event."""
    if not isinstance(value, dict):
        return value
    return MappingProxyType({key: frozen(each) for key, each in value.items()})


@pytest.mark.parametrize("run", good_runs(), ids=lambda run: f"{run[0]['type']} {run[0].get('method')}")
def test_messages_may_be_any_mapping(run: list[dict[str, Any]]) -> None:
    """ASGI says dict, and nothing breaks where a server hands out read-only views."""

    async def answers() -> list[str]:
        app = make_server().asgi(websocket="/ws", sessions=False)
        # A WebSocket that ends at once is not accepted.
        events = [each for each in run if each["type"] != "websocket.disconnect"]
        exchange = Patient([frozen(each) for each in events])
        if run[0]["type"] == "lifespan":
            assert await exchange.of(app) is None
        else:
            async with app.lifespan():
                assert await exchange.of(app) is None
        return [f"{each['type']} {each.get('status', '')}" for each in exchange.sent]

    first = {
        "http": "http.response.start",
        "websocket": "websocket.accept",
        "lifespan": "lifespan.startup.complete",
    }
    assert asyncio.run(answers())[0].startswith(first[run[0]["type"]])


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("failure", [OSError("gone"), RuntimeError("no such state"), KeyError("type")])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_server_whose_send_fails_gets_its_own_error_and_keeps_nothing(
    kind: str, failure: Exception, fails_at: int
) -> None:
    class Fails(Exchange):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if len(self.sent) == fails_at:
                raise failure

    first = {"type": "http.request", "body": CALL} if kind == "http" else CONNECT
    said = {"type": "websocket.receive", "text": INITIALIZE.decode()}
    run = [POST, first] if kind == "http" else [WS, first, said]

    async def check() -> BaseException | None:
        server = make_server()
        app = server.asgi(websocket="/ws", sessions=False)
        with capture_logs():
            async with app.lifespan():
                before = asyncio.all_tasks()
                error = await Fails(run).of(app)
                await next_call(app)
                await settled(server, before, 0)
        return error

    # A peer of a WebSocket that leaves is no failure.
    assert asyncio.run(check()) is (None if kind == "websocket" and isinstance(failure, OSError) else failure)
