"""Servers of ASGI applications of the same program: requests, lifespans, mounts, failures, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.errors import ApiDocumentError, LocalProtocolError

from .test_openapi_requests import body_of, document, parameter

Handler = Callable[["Application", dict[str, Any], Any, Any], Awaitable[None]]


class Application:
    """An ASGI application: what it was asked, and one answer for each path."""

    def __init__(self, *, lifespan: str = "whole") -> None:
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.life: list[str] = []
        self.threads: set[int] = set()
        self.states: list[dict[str, Any]] = []
        self.routes: list[Any] = []
        self.cancelled = threading.Event()
        self.began = threading.Event()
        self.behind = threading.Event()
        self._lifespan = lifespan

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.threads.add(threading.get_ident())
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        body = (await receive())["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        self.asked.append((scope["method"], scope["path"] + query, body, headers))
        self.states.append(scope["state"])
        if scope["path"] == "/breaks":
            raise ZeroDivisionError
        if scope["path"] == "/hangs":
            self.began.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        json = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": json})
        await send({"type": "http.response.body", "body": b'{"a":', "more_body": True})
        await send({"type": "http.response.body", "body": b"1}"})
        await asyncio.sleep(0)
        self.behind.set()

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        if self._lifespan == "none":
            raise AssertionError("what is that?")
        assert (await receive())["type"] == "lifespan.startup"
        if self._lifespan == "fails":
            await send({"type": "lifespan.startup.failed", "message": "no database"})
            return
        self.life.append("began")
        scope["state"]["pool"] = "open"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        self.life.append("ended")
        await send({"type": "lifespan.shutdown.complete"})


DOCUMENT = document(
    (
        "post",
        "/x/{id}",
        {"parameters": [parameter("id", "path"), parameter("q")], **body_of({"type": "integer"})},
    ),
    ("get", "/breaks", {}),
    ("get", "/hangs", {}),
    ("get", "/mcp/inner", {}),
)


@pytest.mark.slow
@pytest.mark.parametrize("lifespan", ["whole", "none"])
async def test_a_call_is_a_request_within_the_lifespan(lifespan: str) -> None:
    app = Application(lifespan=lifespan)
    server = Server.from_asgi(app, document=DOCUMENT, headers=lambda ctx: {"X-Who": "ann"})
    async with Client(server) as client:
        result = await client.call_tool("post_x_id", {"id": "ä/b", "q": "1 2", "body": 7})
    assert result.data == {"a": 1}
    [(method, path, body, headers)] = app.asked
    assert (method, path, body) == ("POST", "/x/ä/b?q=1%202", b"7")
    assert (headers["host"], headers["x-who"]) == ("localhost", "ann")
    assert app.life == (["began", "ended"] if lifespan == "whole" else [])
    assert app.states == [{"pool": "open"} if lifespan == "whole" else {}]
    # Its loop is never that of the engine.
    assert len(app.threads) == 1
    assert threading.get_ident() not in app.threads


async def test_a_lifespan_that_fails_ends_the_server() -> None:
    server = Server.from_asgi(Application(lifespan="fails"), document=DOCUMENT)
    with pytest.raises(LocalProtocolError, match="the application cannot start: no database"):
        await server.serve("memory:fails")


async def test_an_application_that_fails_costs_one_call() -> None:
    app = Application()
    async with Client(Server.from_asgi(app, document=DOCUMENT)) as client:
        broken = await client.call_tool("get_breaks")
        whole = await client.call_tool("post_x_id", {"id": "1", "body": 7})
    assert broken.is_error
    assert "RemoteProtocolError" in broken.text
    assert not whole.is_error


async def test_a_cancelled_call_is_cancelled_in_the_application() -> None:
    app = Application()
    async with Client(Server.from_asgi(app, document=DOCUMENT)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "get_hangs")
            await trio.to_thread.run_sync(app.began.wait, 30)
            nursery.cancel_scope.cancel()
        assert await trio.to_thread.run_sync(app.cancelled.wait, 30)


async def test_an_application_has_so_much_time() -> None:
    app = Application()
    async with Client(Server.from_asgi(app, document=DOCUMENT, timeout=0.05)) as client:
        with trio.fail_after(30):
            # The time may be over on a busy machine before the application is asked at all.
            while not app.began.is_set():
                result = await client.call_tool("get_hangs")
                assert result.is_error
    assert app.cancelled.wait(30)


async def test_what_an_application_does_behind_its_answer_goes_on() -> None:
    app = Application()
    async with Client(Server.from_asgi(app, document=DOCUMENT)) as client:
        await client.call_tool("post_x_id", {"id": "1", "body": 7})
    assert app.behind.wait(30)
    assert not app.cancelled.is_set()


class Mount:
    """A route as Starlette has it."""

    def __init__(self, path: str, app: Any) -> None:
        self.path = path
        self.app = app


async def test_a_mount_of_ours_becomes_no_tool_and_leaves_the_lifespan_to_the_web_server() -> None:
    app = Application()
    other = Server("other")
    app.routes.append(Mount("/mcp", other.asgi()))
    server = Server.from_asgi(app, document=DOCUMENT)
    assert "get_mcp_inner" not in server.tools
    app.routes.append(Mount("/own", server.asgi()))
    async with Client(server) as client:
        assert (await client.call_tool("post_x_id", {"id": "1", "body": 7})).data == {"a": 1}
    assert app.life == []


def test_the_document_is_that_of_the_application() -> None:
    class Described(Application):
        def openapi(self) -> dict[str, Any]:
            return DOCUMENT

    assert len(Server.from_asgi(Described()).tools) == 4
    with pytest.raises(ApiDocumentError, match="no OpenAPI document"):
        Server.from_asgi(Application())
    with pytest.raises(LocalProtocolError, match="gives no /breaks"):
        Server.from_asgi(Application(), document="/breaks")
    with pytest.raises(TypeError, match="app is an ASGI application"):
        Server.from_asgi("app:app")
