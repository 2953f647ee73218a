"""WebSockets of an ASGI server, driven by hand: openings, both eras, limits, slow peers and ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import structlog.testing
import trio

from mcp_actors import Context, Server
from mcp_transports.http.asgi import websocket
from mcp_transports.http.server import Refusal, Request
from tests import messages
from tests.messages import INITIALIZED, LEGACY
from tests.transports.http.raw import eventually

HOST = (b"host", b"localhost")


class Peer:
    """One WebSocket as an ASGI server brings it to the application."""

    def __init__(self) -> None:
        self._to_app, self._receive = trio.open_memory_channel[Any](1000)
        self._send, self.from_app = trio.open_memory_channel[Any](0)
        self.ended = trio.Event()
        self.taken = 0

    async def receive(self) -> Any:
        message = await self._receive.receive()
        self.taken += message["type"] == "websocket.receive"
        return message

    async def send(self, message: Any) -> None:
        await self._send.send(message)

    async def next(self) -> Any:
        with trio.fail_after(60):
            return await self.from_app.receive()

    def say(self, message: Any) -> None:
        self._to_app.send_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    def bring(self, **message: Any) -> None:
        self._to_app.send_nowait(message)

    async def hear(self) -> Any:
        message = await self.next()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def open(self) -> None:
        message = await self.next()
        assert message["type"] == "websocket.accept"
        self.say(messages.initialize(0, LEGACY))
        assert (await self.hear())["result"]["protocolVersion"] == LEGACY
        self.say(INITIALIZED)


class Site:
    """An application, run as an ASGI server runs it, and what its tools went through."""

    def __init__(self, nursery: trio.Nursery, **settings: Any) -> None:
        self.server = server = Server("site")
        self.ends: list[str] = []
        self.called = 0
        self._nursery = nursery

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def hang(ctx: Context) -> str:
            self.called += 1
            try:
                await trio.sleep_forever()
            finally:
                self.ends.append("cancelled")

        @server.tool
        async def flood(ctx: Context) -> str:
            for _ in range(200):
                self.called += 1
                await ctx.log("info", "x" * 200_000)
            return "done"

        self.app = server.asgi(**{"websocket": "/ws", **settings})

    def connect(self, *headers: tuple[bytes, bytes], path: str = "/ws", **more: Any) -> Peer:
        peer = Peer()
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [HOST, *headers] if not any(name == b"host" for name, _ in headers) else list(headers),
            "client": ("127.0.0.1", 4711),
            "subprotocols": [],
            **more,
        }
        peer.bring(type="websocket.connect")

        async def run() -> None:
            try:
                await self.app(scope, peer.receive, peer.send)
            finally:
                peer.ended.set()

        self._nursery.start_soon(run)
        return peer


@asynccontextmanager
async def site(**settings: Any) -> AsyncIterator[Site]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            made = Site(nursery, **settings)
            async with made.app.lifespan():
                yield made
            nursery.cancel_scope.cancel()


async def test_both_eras_are_spoken() -> None:
    async with site() as at:
        legacy, modern = at.connect(subprotocols=["x", "mcp"]), at.connect()
        accept = await legacy.next()
        assert (accept["type"], accept["subprotocol"]) == ("websocket.accept", "mcp")
        legacy.say(messages.initialize(0, LEGACY))
        assert (await legacy.hear())["result"]["protocolVersion"] == LEGACY
        legacy.say(INITIALIZED)
        legacy.say(messages.call(1, "add", a=1, b=2))
        assert (await legacy.hear())["result"]["content"][0]["text"] == "3"
        assert (await modern.next())["subprotocol"] is None
        message = messages.call(1, "add", a=2, b=2)
        message["params"]["_meta"] = message["params"].get("_meta", {}) | messages.modern_meta()
        modern.say(message)
        assert (await modern.hear())["result"]["content"][0]["text"] == "4"


async def test_a_peer_that_leaves_cancels_its_calls() -> None:
    async with site() as at:
        peer = at.connect()
        await peer.open()
        peer.say(messages.call(1, "hang"))
        await eventually(lambda: at.called == 1)
        peer.bring(type="websocket.disconnect", code=1001)
        await peer.ended.wait()
        await eventually(lambda: at.ends == ["cancelled"])
        await eventually(lambda: not at.server.tree().sessions)


async def test_a_server_that_ends_the_connection_cancels_its_calls() -> None:
    async with site() as at:
        async with trio.open_nursery() as nursery:
            at._nursery, outer = nursery, at._nursery
            peer = at.connect()
            await peer.open()
            peer.say(messages.call(1, "hang"))
            await eventually(lambda: at.called == 1)
            nursery.cancel_scope.cancel()
        at._nursery = outer
        await eventually(lambda: at.ends == ["cancelled"])


async def test_the_end_of_the_application_closes_with_going_away() -> None:
    async with trio.open_nursery() as nursery:
        at = Site(nursery)
        async with at.app.lifespan():
            peer = at.connect()
            await peer.open()
        assert (await peer.next()) == {"type": "websocket.close", "code": 1001, "reason": ""}
        await peer.ended.wait()


def refusing(request: Request) -> Refusal:
    return Refusal(401, "who are you?", headers=[("www-authenticate", "Bearer")])


def crashing(request: Request) -> str:
    raise ZeroDivisionError


async def later(request: Request) -> Refusal:
    await trio.lowlevel.checkpoint()
    return refusing(request)


@pytest.mark.parametrize(
    ("settings", "connect", "status"),
    [
        ({}, {"path": "/other"}, 404),
        ({"websocket": None}, {}, 404),
        ({}, {"headers": [(b"host", b"evil.example")]}, 403),
        ({}, {"headers": [(b"host", b"localhost"), (b"origin", b"https://evil.example")]}, 403),
        ({"authenticate": refusing}, {}, 401),
        ({"authenticate": later}, {}, 401),
        ({"authenticate": crashing}, {}, 500),
        ({}, {"headers": [(b"host", b"a"), (b"host", b"b")]}, 400),
    ],
)
async def test_what_is_refused_is_never_accepted(
    settings: dict[str, Any], connect: dict[str, Any], status: int
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with site(**settings) as at:
            peer = at.connect(*connect.get("headers", ()), path=connect.get("path", "/ws"))
            assert await peer.next() == {"type": "websocket.close", "code": 1008, "reason": ""}
            await peer.ended.wait()
            peer = at.connect(
                *connect.get("headers", ()),
                path=connect.get("path", "/ws"),
                extensions={"websocket.http.response": {}},
            )
            head, body = await peer.next(), await peer.next()
            assert (head["type"], head["status"]) == ("websocket.http.response.start", status)
            assert body["type"] == "websocket.http.response.body"
            if status == 401:
                assert (b"www-authenticate", b"Bearer") in head["headers"]
            await peer.ended.wait()
    assert len([each for each in logs if each["log_level"] == "error"]) == (2 if status == 500 else 0)


@pytest.mark.parametrize(
    ("message", "code"),
    [({"bytes": b"{}"}, 1003), ({"text": None, "bytes": b"{}"}, 1003), ({"text": "x" * 1001}, 1009)],
)
async def test_what_is_no_message_closes_the_connection(message: dict[str, Any], code: int) -> None:
    async with site(max_message_bytes=1000) as at:
        peer = at.connect()
        await peer.open()
        peer.bring(type="websocket.receive", **message)
        last: Any = None
        while (last := await peer.next())["type"] == "websocket.send":
            pass
        assert (last["type"], last["code"]) == ("websocket.close", code)
        await peer.ended.wait()
        await eventually(lambda: not at.server.tree().sessions)


async def test_a_peer_that_does_not_read_holds_up_nobody_and_gets_all_later() -> None:
    async with site() as at:
        peer = at.connect()
        await peer.open()
        peer.say({"jsonrpc": "2.0", "id": 5, "method": "logging/setLevel", "params": {"level": "debug"}})
        await peer.hear()
        peer.say(messages.call(1, "flood"))
        await eventually(lambda: at.called > 2)
        other = at.connect()
        await other.open()
        for number in range(20):
            other.say(messages.call(number, "add", a=1, b=2))
            assert (await other.hear())["id"] == number
        logged = 0
        while "id" not in (message := await peer.hear()):
            logged += message["method"] == "notifications/message"
        assert (logged, at.called) == (200, 200)


async def test_a_peer_that_takes_nothing_is_dropped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent: list[Any] = []

    class Stuck:
        sent = 0

        def put(self, message: Any) -> None:
            sent.append(message)

        def go_on(self) -> None: ...

    request = Request("GET", "/ws", "/ws", "", {}, b"", "1.1", True, peer="127.0.0.1:1")
    channel = websocket.AsgiWebSocketChannel(Stuck(), {}, request, 10**7)  # type: ignore[arg-type]
    frame = websocket.Frame(b"x" * websocket.HELD_BYTES)
    assert channel.write_now(frame)
    assert channel.write_now(frame)
    assert not channel.write_now(frame)
    began = trio.current_time()
    with pytest.raises(trio.BrokenResourceError, match="took nothing"):
        await channel.send(frame)
    assert trio.current_time() - began == websocket.WRITE_TIME
    assert [each and each["type"] for each in sent] == [
        "websocket.send",
        "websocket.send",
        "websocket.close",
        None,
    ]


async def test_a_flood_is_read_no_faster_than_it_is_served() -> None:
    """Messages that come while the engine has too many are left to the ASGI server, and read on later."""
    async with site() as at:
        peer = at.connect()
        await peer.open()
        for number in range(1, 301):
            text = "x" * 20_000
            peer.say(messages.call(number, "add", a=1, b=2) | {"padding": text})
        answered = [(await peer.hear())["id"] for _ in range(300)]
        assert sorted(answered) == list(range(1, 301))


async def test_a_flood_waits_for_the_engine() -> None:
    """The loop's side reads no further than what may be held, and goes on when the engine has taken some."""
    request = Request("GET", "/ws", "/ws", "", {}, b"", "1.1", True, peer="127.0.0.1:1")

    class Side:
        class bridge:
            class engine:
                @staticmethod
                def post(step: Callable[[], Any]) -> None:
                    step()

            @staticmethod
            def post(step: Callable[[], Any]) -> None:
                step()

        def waiter(self) -> Any:
            return Waiter()

        def interruptible(self) -> Any:
            return nullcontext()

        async def within(self, seconds: float, fn: Any) -> Any:
            return await fn()

        @asynccontextmanager
        async def beside(self, fn: Any) -> AsyncIterator[None]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fn)
                yield
                nursery.cancel_scope.cancel()

    class Waiter:
        def __init__(self) -> None:
            self._event = trio.Event()

        def set(self) -> None:
            self._event.set()

        async def wait(self) -> None:
            await self._event.wait()
            self._event = trio.Event()

    peer = Peer()
    socket = websocket.AsgiWebSocket(Side(), peer.receive, peer.send)  # type: ignore[arg-type]
    channel = websocket.AsgiWebSocketChannel(socket, {}, request, 10**7)
    for _ in range(20):
        peer.bring(type="websocket.receive", text="x" * 200_000)
    for _ in range(800):
        peer.bring(type="websocket.receive", text="")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket.run, channel)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.taken == 6
        received = 0
        while received < 820:
            received += len(await channel.receive_many())
            await trio.testing.wait_all_tasks_blocked()
        assert peer.taken == 820
        peer.bring(type="websocket.disconnect", code=1000)
        with pytest.raises(trio.EndOfChannel):
            await channel.receive()


async def test_a_failure_of_the_asgi_server_ends_the_connection_alone() -> None:
    async with site() as at:
        peer, other = at.connect(), at.connect()
        await peer.open()
        await other.open()
        peer.say(messages.call(1, "hang"))
        await eventually(lambda: at.called == 1)
        peer.from_app.close()
        peer.bring(type="websocket.disconnect", code=1006)
        await peer.ended.wait()
        await eventually(lambda: at.ends == ["cancelled"])
        other.say(messages.call(1, "add", a=1, b=2))
        assert (await other.hear())["result"]["content"][0]["text"] == "3"


def test_the_path_of_websocket_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="the path of WebSocket begins with '/'"):
        Server("s").asgi(websocket="ws")
