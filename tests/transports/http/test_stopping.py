"""A server that is stopped: it says that it is not ready, serves on for a while, and answers whatever it cuts short."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Limits
from mcp_actors.gateway import Gateway, Upstream
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server import HttpServerTransport, health
from tests.shared.spanning import Spanning
from tests.transports.http.nodes import nodes
from tests.transports.http.raw import GET, Slow, eventually, serving
from tests.transports.http.site import call, initialize, modern, site, text, url_of

LONG = 1000.0


async def test_while_it_leaves_it_is_unready_and_serves_on_closing_each_connection() -> None:
    async with site(routes={"/health": health}) as at:
        session = await at.open()
        at.server.stop(LONG)
        for path, status in (("", 503), ("/ready", 503), ("/live", 200)):
            response = await at.http.get(url_of(at, f"/health{path}"))
            assert response.status_code == status
            assert response.json() == {"live": True, "ready": False, "draining": True}
        # Connections that are made now are accepted, and what is new is begun.
        for message, in_session in ((call(1, "add", a=1, b=2), session), (initialize("2025-06-18"), None)):
            response = await at.post(message, in_session)
            assert response.status_code == 200
            assert response.headers["connection"] == "close"
        at.server.stop(0)
        await eventually(lambda: at.transport.statistics().port is None)


async def test_a_port_that_was_unready_for_a_while_is_closed_before_the_calls_end() -> None:
    async with site(routes={"/health": health}) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            await at.called.wait()
            at.server.stop(0.01)
            port = int(at.url.split(":")[2].partition("/")[0])

            async def until_refused() -> None:
                while True:
                    try:
                        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    except OSError:
                        return

            await until_refused()
            at.go.set()
            assert '"progress":2' in "".join([event.data.decode() async for event in events])


async def test_a_connection_whose_stream_ends_meanwhile_still_brings_a_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    responses: list[Response] = []

    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain", first=b"a")
        responses.append(response)

    async with serving(app, memory=True) as served:
        peer = served.attach()
        await peer.send(GET)
        await eventually(lambda: bool(responses))
        # The head has left, which cannot say any more that the connection ends.
        served.leaving.set()
        await trio.testing.wait_all_tasks_blocked()
        responses[0].end()
        assert "connection" not in (await peer.answer()).headers
        await peer.send(GET)
        await eventually(lambda: len(responses) == 2)
        responses[1].end()
        assert (await peer.answer()).headers["connection"] == "close"
        assert await peer.ended()


async def test_a_connection_whose_stream_has_ended_just_before_the_stop_brings_one_more_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    responses: list[Response] = []

    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain", first=b"a")
        responses.append(response)

    async with serving(app, memory=True) as served:
        used, silent = served.attach(), served.attach()
        for peer in (used, silent):
            await peer.send(GET)
        await eventually(lambda: len(responses) == 2)
        served.leaving.set()
        await trio.testing.wait_all_tasks_blocked()
        for response in responses:
            response.end()
        for peer in (used, silent):
            assert "connection" not in (await peer.answer()).headers
        served.stopping.set()
        await trio.sleep(1)
        await used.send(GET)
        await eventually(lambda: len(responses) == 3)
        responses[2].end()
        assert (await used.answer()).headers["connection"] == "close"
        # A client that sends nothing more does not keep the server.
        for peer in (used, silent):
            assert await peer.ended()


async def test_a_connection_that_is_made_just_before_the_end_brings_its_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    app = Slow()
    async with serving(app, memory=True) as served:
        new, silent, used = served.attach(), served.attach(), served.attach()
        app.go.set()
        await used.send(GET)
        assert (await used.answer()).status == 200
        served.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        await new.send(GET)
        answer = await new.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        for peer in (new, silent, used):
            assert await peer.ended()


async def test_a_call_that_is_cut_is_answered_with_what_is_known_of_it() -> None:
    async with site(drain_grace=2) as at:
        session = await at.open()
        answers: list[Any] = []

        async def ask(message: Any, session: str | None, **headers: str) -> None:
            answers.append((await at.post(message, session, **headers)).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, call(1, "silent"), session)
            message, headers = modern(2, "silent")
            nursery.start_soon(lambda: ask(message, None, **headers))
            await eventually(lambda: len(at.server._runtime.calls()) == 2)
            at.server.stop()
        for answer in answers:
            error = answer["error"]
            assert error["code"] == 503
            assert error["data"]["reason"] == "server_stopping"
            assert error["data"]["begun"] is True
            assert error["data"]["ranMs"] >= 2000
            assert "tools/call silent" in error["message"]


async def test_a_stream_that_is_cut_ends_with_the_error_and_the_last_progress() -> None:
    async with site(drain_grace=2) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            await at.called.wait()
            at.server.stop()
            said = [event.data async for event in events if event.is_message]
        assert b'"progress":1' in said[0]
        assert b'"reason":"server_stopping"' in said[-1]
        assert b'"progress":1' in said[-1]
        assert at.ends == ["cancelled"]


async def test_a_stopped_node_waits_for_the_answer_of_another_one() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await b.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await a.called.wait()
            b.server.stop()
            await eventually(lambda: b.server._runtime._stopping.is_set())
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            a.go.set()
        assert text(answers[0].json()) == "at last"


async def test_a_stopped_node_answers_what_another_one_has_not_in_time() -> None:
    async with nodes(2, Spanning(), drain_grace=2) as (a, b):
        session = await a.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await b.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await a.called.wait()
            b.server.stop()
        assert answers[0].status_code == 503
        data = answers[0].json()["error"]["data"]
        assert data == {"reason": "server_stopping", "begun": True}
        a.go.set()


async def test_a_call_that_was_forwarded_to_a_stopped_node_is_answered_when_it_is_cut() -> None:
    async with nodes(2, Spanning(), drain_grace=2) as (a, b):
        session = await a.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await b.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await a.called.wait()
            a.server.stop()
        error = answers[0].json()["error"]
        assert error["data"]["begun"] is True
        assert error["data"]["reason"] == "server_stopping"


async def test_new_work_is_refused_with_what_a_client_needs_to_know() -> None:
    async with site(routes={"/health": health}) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session):
            await at.called.wait()
            at.server.stop()
            await eventually(lambda: at.server._runtime._stopping.is_set())
            refused = await at.post(initialize("2025-06-18"))
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            data = refused.json()["error"]["data"]
            assert data == {"reason": "server_stopping", "begun": False, "retryAfterMs": 1000}
            at.go.set()


@pytest.mark.parametrize("upstreams", [1, 2])
async def test_a_gateway_without_any_server_is_not_ready(upstreams: int) -> None:
    away = [Upstream(name=f"away{each}", target="tcp://127.0.0.1:1") for each in range(upstreams)]
    gateway = Gateway(away, limits=Limits(drain_grace=1))
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/health": health})
    async with site() as at, trio.open_nursery() as nursery:
        (url,) = await nursery.start(gateway.serve, transport)
        ready = f"{url.removesuffix('/mcp')}/health/ready"
        response = await at.http.get(ready)
        while response.status_code == 200:
            response = await at.http.get(ready)
        assert response.status_code == 503
        said = "all 2 are away" if upstreams > 1 else "the only one is away"
        assert response.json()["missing"] == [f"upstreams: {said}"]
        assert (await at.http.get(ready.removesuffix("/ready"))).status_code == 200
        gateway.stop()
