"""ASGI applications at routes of the listener: requests, streams, clients that leave, lifespans."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
import trio
import trio.lowlevel

from mcp_actors import Server
from mcp_actors.abc.http import AsgiApplication
from mcp_transports.http.server import HttpLimits, HttpServerTransport, RouteStartFailed
from tests.transports.http.raw import RawPeer, eventually
from tests.transports.http.site import Site, call, site, text, url_of


async def connect(at: Site) -> RawPeer:
    return RawPeer(await trio.open_tcp_stream("127.0.0.1", int(at.url.split(":")[2].partition("/")[0])))


GET = b"GET /app HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """An application that notes its scopes and does what its test says."""

    def __init__(self, act: Any = None, *, lifespan: Any = None) -> None:
        self.scopes: list[Any] = []
        self._act = act or answer
        self._lifespan = lifespan

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            if self._lifespan is None:
                raise NotImplementedError("no lifespan")
            await self._lifespan(scope, receive, send)
            return
        self.scopes.append(scope)
        await self._act(scope, receive, send)


def head(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await send(head(201, (b"Content-Type", b"text/x"), (b"Content-Length", b"999"), (b"x-a", b"1")))
    await send(body(scope["path"].encode() + b" " + message["body"]))
    assert (await receive())["type"] == "http.disconnect"


async def test_an_application_gets_what_asgi_says() -> None:
    app = App()
    async with site(routes={"/app": app}) as at:
        response = await at.http.post(url_of(at, "/app/a%20b?q=%31"), content=b"hi", headers={"x-who": "me"})
        assert (response.status_code, response.text) == (201, "/app/a b hi")
        assert (response.headers["content-type"], response.headers["x-a"]) == ("text/x", "1")
        assert response.headers["content-length"] == str(len(response.content))
    [scope] = app.scopes
    assert {
        name: scope[name] for name in ("type", "http_version", "method", "scheme", "path", "raw_path")
    } == {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/app/a b",
        "raw_path": b"/app/a%20b",
    }
    assert (scope["query_string"], scope["root_path"]) == (b"q=%31", "/app")
    assert (b"x-who", b"me") in scope["headers"]
    assert scope["client"][0] == "127.0.0.1"
    assert scope["asgi"]["version"] == "3.0"


async def test_the_longest_path_wins_and_mcp_before_all() -> None:
    everything, inner = App(), App()
    async with site(routes={"/": everything, "/app/inner": inner, "/app/page": page}) as at:
        for path in ("/", "/app", "/app/innermost", "/app/inner", "/app/inner/x", "/app/page"):
            await at.http.get(url_of(at, path))
        session = await at.open()
        assert text((await at.post(call(1, "add", a=1, b=2), session)).json()) == "3"
    assert [each["path"] for each in everything.scopes] == ["/", "/app", "/app/innermost"]
    assert [each["root_path"] for each in everything.scopes] == [""] * 3
    assert [each["path"] for each in inner.scopes] == ["/app/inner", "/app/inner/x"]


async def page(request: Any) -> str:
    return "page"


async def test_host_and_origin_are_checked_and_the_application_may_do_its_own_cors() -> None:
    async def own_cors(scope: Any, receive: Any, send: Any) -> None:
        await send(head(200, (b"access-control-allow-origin", b"https://mine")))
        await send(body(b""))

    async with site(routes={"/app": App(), "/own": App(own_cors)}) as at:
        assert (await at.http.get(url_of(at, "/app"), headers={"host": "evil.example"})).status_code == 403
        page_of = {"origin": "http://localhost:5000"}
        response = await at.http.get(url_of(at, "/app"), headers=page_of)
        assert response.headers["access-control-allow-origin"] == "http://localhost:5000"
        response = await at.http.get(url_of(at, "/own"), headers=page_of)
        assert response.headers["access-control-allow-origin"] == "https://mine"


async def test_a_stream_comes_piece_by_piece_and_head_has_no_body() -> None:
    go = trio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send(head(200, (b"content-length", b"5")))
        await send(body(b"one", more=True))
        if scope["method"] == "GET":
            await go.wait()
        await send(body(b"", more=True))
        await send(body(b"23"))

    async with site(routes={"/app": App(stream)}) as at:
        peer = await connect(at)
        await peer.send(GET)
        await peer.until(b"\r\n\r\n")
        assert await peer.chunk() == b"one"
        go.set()
        assert await peer.chunk() == b"23"
        assert await peer.chunk() == b""
        await peer.send(GET.replace(b"GET", b"HEAD"))
        found = await peer.answer(head_only=True)
        assert (found.status, "content-length" in found.headers) == (200, False)
        await peer.send(GET.replace(b"/app", b"/none"))
        assert (await peer.answer()).status == 404
        await peer.aclose()


async def test_an_answer_without_a_body_is_no_stream() -> None:
    async def unchanged(scope: Any, receive: Any, send: Any) -> None:
        await send(head(304, (b"etag", b'"1"')))
        await send(body(b""))

    async with site(routes={"/app": App(unchanged)}) as at:
        response = await at.http.get(url_of(at, "/app"))
        assert (response.status_code, response.headers["etag"]) == (304, '"1"')


async def test_a_slow_reader_slows_the_application_down() -> None:
    """No more than a few pieces wait for it, and one piece that is longer than all that may wait drops nobody."""
    sent: list[int] = []
    limits = HttpLimits(write_buffer=64 * 1024, max_buffered=512 * 1024)

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        await send(head())
        for _ in range(30):
            await send(body(b"x" * 2**20, more=True))
            sent.append(at.transport.statistics().port.unsent)  # type: ignore[union-attr]
        await send(body(b""))

    async with site(routes={"/app": App(flood)}, limits=limits) as at:
        peer = await connect(at)
        await peer.send(GET)
        await peer.until(b"\r\n\r\n")
        await eventually(lambda: at.transport.statistics().port.unsent > limits.write_buffer)  # type: ignore[union-attr]
        assert at.transport.statistics().port.unsent <= limits.max_buffered  # type: ignore[union-attr]
        received = 0
        while piece := await peer.chunk():
            received += len(piece)
        assert received == 30 * 2**20
        assert max(sent) <= limits.max_buffered
        await peer.aclose()


async def test_a_client_that_leaves_cancels_the_application(logs: list[MutableMapping[str, Any]]) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send(head())
            while True:
                await send(body(b"x" * 1000, more=True))
                begun.set()
        finally:
            ended.set()

    async with site(routes={"/app": App(endless)}) as at:
        peer = await connect(at)
        await peer.send(GET)
        await begun.wait()
        await peer.aclose()
        await ended.wait()
        assert (await at.http.get(url_of(at, "/none"))).status_code == 404
    assert [each for each in logs if each["log_level"] == "error"] == []


async def crash(scope: Any, receive: Any, send: Any) -> None:
    raise SystemExit(3)


async def crash_midway(scope: Any, receive: Any, send: Any) -> None:
    await send(head())
    await send(body(b"x", more=True))
    raise ZeroDivisionError


async def silent(scope: Any, receive: Any, send: Any) -> None:
    await receive()


async def unfinished(scope: Any, receive: Any, send: Any) -> None:
    await send(head())
    await send(body(b"x", more=True))


async def headless(scope: Any, receive: Any, send: Any) -> None:
    await send(body(b"x"))


async def splitting(scope: Any, receive: Any, send: Any) -> None:
    await send(head(200, (b"x-a", b"1\r\nx-b: 2")))
    await send(body(b"x"))


async def unknown(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


@pytest.mark.parametrize("act", [crash, silent, headless, splitting, unknown])
async def test_a_mistake_of_an_application_is_answered_with_500(
    act: Any, logs: list[MutableMapping[str, Any]]
) -> None:
    async with site(routes={"/app": App(act), "/page": page}) as at:
        assert (await at.http.get(url_of(at, "/app"))).status_code == 500
        assert (await at.http.get(url_of(at, "/page"))).status_code == 200
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["response failed"]


@pytest.mark.parametrize("act", [crash_midway, unfinished])
async def test_a_stream_that_fails_is_cut_off(act: Any, logs: list[MutableMapping[str, Any]]) -> None:
    async with site(routes={"/app": App(act), "/page": page}) as at:
        peer = await connect(at)
        await peer.send(GET)
        assert not (await peer.rest()).endswith(b"0\r\n\r\n")
        assert (await at.http.get(url_of(at, "/page"))).status_code == 200
        await peer.aclose()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["response failed"]


async def test_a_mistake_behind_the_answer_costs_nothing(logs: list[MutableMapping[str, Any]]) -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await send(head())
        await send(body(b"done"))
        raise ZeroDivisionError

    async with site(routes={"/app": App(late)}) as at:
        assert (await at.http.get(url_of(at, "/app"))).text == "done"
        await eventually(lambda: any(each["event"] == "response failed" for each in logs))
        assert (await at.http.get(url_of(at, "/app"))).text == "done"


async def test_a_request_for_a_websocket_is_a_get() -> None:
    app = App()
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with site(routes={"/app": app}) as at:
        peer = await connect(at)
        await peer.send(GET.removesuffix(b"\r\n") + upgrade)
        assert (await peer.answer()).status == 201
        await peer.aclose()
    assert [each["type"] for each in app.scopes] == ["http"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("POST /app", "without POST"),
        ("/app/", "write '/app'"),
        ("/mcp", "a path of MCP itself"),
        ("/api", "would have /api/mcp of MCP below it"),
    ],
)
def test_applications_that_cannot_be_served(path: str, words: str) -> None:
    at = "/api/mcp" if path == "/api" else "/mcp"
    with pytest.raises(ValueError, match=words):
        HttpServerTransport(f"http://127.0.0.1:0{at}", routes={path: App()})


# -- lifespans ---------------------------------------------------------------------------------------------------------


def lifespan(notes: list[str], name: str, *, fails: str | None = None) -> Any:
    async def run(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        if fails is not None:
            await send({"type": "lifespan.startup.failed", "message": fails})
            return
        await trio.lowlevel.checkpoint()
        scope["state"]["name"] = name
        notes.append(f"{name} starts")
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        await trio.lowlevel.checkpoint()  # it may wait, although the server was cancelled
        notes.append(f"{name} shuts down")
        await send({"type": "lifespan.shutdown.complete"})

    return run


@pytest.mark.parametrize("how", ["cancelled", "stopped"])
async def test_applications_live_as_long_as_the_listener(how: str) -> None:
    notes: list[str] = []
    first, second = (App(lifespan=lifespan(notes, name)) for name in ("first", "second"))
    server = Server("s")
    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", routes={"/a": first, "/b": second, "/none": App()}
    )
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, transport)
            assert notes == ["first starts", "second starts"]
            nursery.cancel_scope.cancel() if how == "cancelled" else server.stop()
        assert notes[2:] == ["second shuts down", "first shuts down"]
        notes.clear()


async def test_requests_see_what_the_startup_left() -> None:
    app = App(lifespan=lifespan([], "first"))
    async with site(routes={"/app": app}) as at:
        await at.http.get(url_of(at, "/app"))
    assert [each["state"] for each in app.scopes] == [{"name": "first"}]


async def test_an_application_that_cannot_start_ends_the_serving() -> None:
    notes: list[str] = []
    routes: dict[str, AsgiApplication] = {
        "/a": App(lifespan=lifespan(notes, "first")),
        "/b": App(lifespan=lifespan(notes, "second", fails="no database")),
    }
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes=routes)
    with pytest.raises(RouteStartFailed, match="the application at /b could not start: no database"):
        await Server("s").serve(transport)
    assert notes == ["first starts", "first shuts down"]


async def test_a_lifespan_that_crashes_costs_nothing_else(logs: list[MutableMapping[str, Any]]) -> None:
    async def crashes(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        raise ZeroDivisionError

    async with site(routes={"/app": App(lifespan=crashes)}) as at:
        assert (await at.http.get(url_of(at, "/app"))).status_code == 201
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["route lifespan failed"]


async def test_a_shutdown_that_hangs_is_given_up(
    autojump_clock: trio.testing.MockClock, logs: list[MutableMapping[str, Any]]
) -> None:
    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await trio.sleep_forever()

    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/app": App(lifespan=hangs)})
    async with trio.open_nursery() as nursery:
        await nursery.start(Server("s").serve, transport)
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == 10
    assert "too long to shut down" in logs[-1]["event"]
