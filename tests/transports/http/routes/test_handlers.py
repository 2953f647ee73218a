"""Plain functions at routes of the listener, and what is refused."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import trio

from mcp_actors import Server
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.telemetry import Metrics
from mcp_transports.http.server import (
    HttpLimits,
    HttpServerTransport,
    Refusal,
    Reply,
    Request,
    health,
    metrics_page,
)
from tests.shared.task_records import ROOMY, make_record
from tests.transports.http.raw import eventually
from tests.transports.http.site import BOTH, Site, call, initialize, site, text, url_of


async def hello(request: Request) -> str:
    return f"hello {request.query}"


@pytest.mark.parametrize(
    ("answer", "status", "content_type", "body"),
    [
        ("text", 200, "text/plain; charset=utf-8", b"text"),
        (b"\x00\x01", 200, "application/octet-stream", b"\x00\x01"),
        ({"a": 1}, 200, "application/json", b'{"a":1}'),
        ([1, 2], 200, "application/json", b"[1,2]"),
        (None, 204, None, b""),
        (Reply("<p>", 201, "text/html", [("x-more", "1")]), 201, "text/html", b"<p>"),
    ],
)
async def test_a_function_returns_what_is_answered(
    answer: Any, status: int, content_type: str | None, body: bytes
) -> None:
    async def asynchronous(request: Request) -> Any:
        return answer

    def plain(request: Request) -> Any:
        return answer

    async with site(routes={"/async": asynchronous, "/plain": plain}) as at:
        for path in ("/async", "/plain"):
            response = await at.http.get(url_of(at, path))
            assert (response.status_code, response.headers.get("content-type"), response.content) == (
                status,
                content_type,
                body,
            )
            assert response.headers.get("x-more") == ("1" if isinstance(answer, Reply) else None)


async def test_a_path_answers_get_and_head_and_a_method_before_it_that_method() -> None:
    async def take(request: Request) -> dict[str, Any]:
        return {"took": request.body.decode(), "by": request.method}

    async with site(routes={"/hook": hello, "POST /hook": take}) as at:
        there = url_of(at, "/hook")
        assert (await at.http.get(there, params={"you": "1"})).text == "hello you=1"
        head = await at.http.head(there)
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "6", b"")
        assert (await at.http.post(there, content=b"x")).json() == {"took": "x", "by": "POST"}
        refused = await at.http.put(there, content=b"x")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
        assert (await at.http.get(url_of(at, "/hook/below"))).status_code == 404


async def test_mcp_is_served_beside_routes() -> None:
    async with site(routes={"/page": hello}) as at:
        session = await at.open()
        assert text((await at.post(call(1, "add", a=1, b=2), session)).json()) == "3"
        assert (await at.http.get(url_of(at, "/page"))).status_code == 200
        assert (await at.http.get(url_of(at, "/other"))).status_code == 404


async def test_a_function_that_fails_costs_its_request(logs: list[MutableMapping[str, Any]]) -> None:
    async def crash(request: Request) -> str:
        raise ZeroDivisionError("a secret")

    def leave(request: Request) -> str:
        raise SystemExit(3)

    async def strange(request: Request) -> Any:
        return 3

    async def unsendable(request: Request) -> Reply:
        return Reply("x", headers=[("x-a", "1\r\nx-b: 2")])

    routes = {
        "/crash": crash,
        "/leave": leave,
        "/strange": strange,
        "/unsendable": unsendable,
        "/page": hello,
    }
    async with site(routes=routes) as at:
        for path in ("/crash", "/leave", "/strange", "/unsendable"):
            response = await at.http.get(url_of(at, path))
            assert (response.status_code, response.text) == (500, "Internal Server Error")
        assert (await at.http.get(url_of(at, "/page"))).status_code == 200
    failed = [each for each in logs if each["event"] == "response failed"]
    assert [type(each["exc_info"]) for each in failed] == [
        ZeroDivisionError,
        SystemExit,
        TypeError,
        ValueError,
    ]
    assert "/crash" in repr(failed[0]["exchange"])


async def test_a_client_that_leaves_cancels_its_function() -> None:
    begun, ended = trio.Event(), trio.Event()

    async def hang(request: Request) -> str:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with site(routes={"/hang": hang}) as at:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.http.get, url_of(at, "/hang"))
            await begun.wait()
            nursery.cancel_scope.cancel()
        await eventually(ended.is_set)
        assert (await at.http.get(url_of(at, "/none"))).status_code == 404


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_on_the_loop() -> None:
    threads: dict[str, int] = {}

    def plain(request: Request) -> None:
        threads["plain"] = get_ident()

    class Callable:
        async def __call__(self, request: Request) -> None:
            threads["object"] = get_ident()

    async def asynchronous(more: int, request: Request) -> None:
        threads["partial"] = get_ident()

    routes = {"/plain": plain, "/object": Callable(), "/partial": partial(asynchronous, 1)}
    async with site(routes=routes) as at:
        for path in routes:
            assert (await at.http.get(url_of(at, path))).status_code == 204
    assert threads["object"] == threads["partial"] == get_ident() != threads["plain"]


async def test_host_and_origin_are_checked_as_for_mcp() -> None:
    async with site(routes={"/page": hello, "POST /page": hello}) as at:
        there = url_of(at, "/page")
        assert (await at.http.get(there, headers={"host": "evil.example"})).status_code == 403
        assert (await at.http.get(there, headers={"origin": "https://evil.example"})).status_code == 403
        allowed = await at.http.get(there, headers={"origin": "http://localhost:5000"})
        assert allowed.headers["access-control-allow-origin"] == "http://localhost:5000"
        preflight = await at.http.options(there, headers={"origin": "http://localhost:5000"})
        assert preflight.status_code == 204
        assert preflight.headers["allow"] == "GET, HEAD, POST, OPTIONS"
        assert preflight.headers["access-control-allow-origin"] == "http://localhost:5000"


async def test_routes_need_no_authentication() -> None:
    async with site(routes={"/page": hello}, authenticate=lambda request: Refusal(401, "no")) as at:
        assert (await at.http.get(url_of(at, "/page"))).status_code == 200
        assert (await at.post(initialize("2025-06-18"))).status_code == 401


async def test_a_body_is_bounded_before_the_route_is_asked() -> None:
    async with site(routes={"POST /page": hello}, limits=HttpLimits(body_bytes=1000)) as at:
        assert (await at.http.post(url_of(at, "/page"), content=b"x" * 1001)).status_code == 413


@pytest.mark.parametrize(
    ("routes", "error", "words"),
    [
        ({"page": hello}, ValueError, "neither a path"),
        ({"get /page": hello}, ValueError, "neither a path"),
        ({"/page?x": hello}, ValueError, "neither a path"),
        ({"/mcp": hello}, ValueError, "a path of MCP itself"),
        ({"/sse": hello}, ValueError, "a path of MCP itself"),
        ({"/messages": hello}, ValueError, "a path of MCP itself"),
        ({"GET /page": hello, "/page": hello}, ValueError, "GET /page is twice"),
        ({"/page": health, "POST /page": hello}, ValueError, "/page is twice"),
        ({"GET /page": health}, ValueError, "without GET"),
        ({"/page": 3}, TypeError, "a function of one argument"),
        ({"/page": lambda: None}, TypeError, "a function of one argument"),
        ({"/page": lambda a, b: None}, TypeError, "a function of one argument"),
        ({"/page": Site}, TypeError, "a function of one argument"),
    ],
)
def test_routes_that_cannot_be_served(routes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        HttpServerTransport("http://127.0.0.1:0/mcp", routes=routes)


async def test_the_path_of_http_sse_is_free_where_it_is_not_served() -> None:
    async with site(routes={"/sse": hello}, sse_path=None) as at:
        assert (await at.http.get(url_of(at, "/sse"))).text == "hello "


# -- health ------------------------------------------------------------------------------------------------------------


async def test_health_answers_anybody_with_reading_methods() -> None:
    async with site(routes={"/health": health}, authenticate=lambda request: Refusal(401, "no")) as at:
        there = url_of(at, "/health")
        response = await at.http.get(there, headers={"host": "10.0.0.7", "origin": "https://evil.example"})
        assert response.status_code == 200
        assert response.json() == {"live": True, "ready": True, "draining": False}
        assert response.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in response.headers
        head = await at.http.head(there)
        assert (head.status_code, head.content) == (200, b"")
        assert (await at.http.post(there)).status_code == 405


async def test_health_and_metrics_say_that_the_shared_state_fails_and_that_it_is_good_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tasks"
    metrics = Metrics()
    routes = {"/health": health, "/metrics": metrics_page(metrics)}
    make = partial(Server, telemetry=metrics)
    # No renewal of the lease tells in between how the file is.
    async with site(make=make, routes=routes, shared=SqliteShared(file, lease=600, timeout=2)) as at:

        async def told() -> tuple[str | None, bool, bool]:
            assert (await at.http.get(url_of(at, "/health"))).status_code == 200
            response = await at.http.get(url_of(at, "/health/ready"))
            counted = (await at.http.get(url_of(at, "/metrics"))).text
            up = re.search(r"^mcp_actors_shared_state_up\S* (\d)$", counted, re.MULTILINE)
            assert up is not None
            state = response.json()
            assert state["ready"] == (response.status_code == 200)
            [missing] = state.get("missing", [None])
            return missing and missing.removeprefix("shared state: "), state["ready"], up[1] == "1"

        assert await told() == (None, True, True)
        (state,) = [each.shared for each in at.server._runtime._handlers]
        late = "the file did not answer for 2 s"
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SharedStateUnavailable):
            await state.tasks.create(make_record(state.node), ROOMY)
        await eventually(lambda: state.failure is not None)
        # Everybody may read it: neither the file nor its folder is named.
        assert await told() in [(cause, False, False) for cause in ("database is locked", late)]
        other.execute("ROLLBACK")
        await state.tasks.create(make_record(state.node), ROOMY)
        assert await told() == (None, True, True)
        other.close()
        file.unlink()
        with pytest.raises(SharedStateUnavailable):
            await state.tasks.create(make_record(state.node), ROOMY)
        why = "the file was deleted, moved or replaced; start the server again"
        assert await told() == (why, False, False)
        for connection in state._connections:
            connection.failing(f"[Errno 30] Read-only file system: '{file}'", file=str(file))
        assert await told() == ("[Errno 30] ...", False, False)


async def test_health_says_that_the_server_drains_until_the_last_call_has_ended() -> None:
    async with site(routes={"/health": health}) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session):
            await at.called.wait()
            at.server.stop()
            await eventually(lambda: not at.transport.statistics().port.connections > 1)
            response = await at.http.get(url_of(at, "/health"))
            assert response.status_code == 503
            assert response.json() == {"live": True, "ready": False, "draining": True}
            assert response.headers["connection"] == "close"
            refused = await at.http.post(at.url, json=initialize("2025-06-18"), headers=BOTH)
            assert refused.status_code == 503
            silent = await trio.open_tcp_stream("127.0.0.1", int(at.url.split(":")[2].partition("/")[0]))
            at.go.set()
        async with silent:
            # A connection that says nothing does not keep the server: it has ended when the call has.
            assert await silent.receive_some() == b""
