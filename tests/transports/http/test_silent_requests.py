"""A request that stays unanswered gets its head and comments in time, where its client accepts an event stream."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.abc import ClientTransport, Frame, FrameChannel, HttpRequest, Outlet
from mcp_actors.shared import MemoryEventLog
from mcp_actors.types import TextContent
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.http.fakes import (
    BOTH,
    FakeListener,
    FakeResponse,
    answer,
    error,
    notification,
    request,
    resume,
)
from tests.transports.http.site import call, modern, site

COMMENT = b":\n\n"
KEEPALIVE = 15.0


class Silent:
    """A listener whose modern requests are answered when the test says so, with what it says."""

    def __init__(self, nursery: trio.Nursery, **options: Any) -> None:
        self.listener = FakeListener(nursery, **{"keepalive": KEEPALIVE, "idle": 100_000, **options})
        self.frame: Frame = answer(1)
        self.go = trio.Event()
        self.listener.handler.on_exchange = self._exchange
        nursery.start_soon(self.listener.open_streams.keep_alive)

    async def _exchange(self, message: Any, outlet: Outlet) -> None:
        await self.go.wait()
        await outlet.send(self.frame)

    def post(self, era: str, accept: str = BOTH, **session: Any) -> FakeResponse:
        if era == "modern":
            return self.listener.post(request(1), era="modern", accept=accept)
        id, self.engine = self.listener.open(**session)
        return self.listener.post(request(1), id, accept=accept)

    async def answer(self, era: str, frame: Frame) -> None:
        if era == "modern":
            self.frame = frame
            self.go.set()
        else:
            self.engine.outlet_of(1).post(frame)
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_silent_request_gets_its_head_in_time_and_comments_until_its_answer(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery)
    response = silent.post(era)
    await trio.sleep(KEEPALIVE / 2 - 1)
    assert response.status is None
    await trio.sleep(KEEPALIVE / 2 + 1)
    await trio.testing.wait_all_tasks_blocked()
    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    before = len(response.chunks)
    assert before == 1
    await trio.sleep(KEEPALIVE * 20)
    assert response.chunks[before:] == [COMMENT] * (len(response.chunks) - before)
    assert 19 <= len(response.chunks) - before <= 21
    await silent.answer(era, answer(1))
    assert [message["result"] for message in response.messages] == ["done"]
    assert response.ended
    assert not silent.listener.open_streams.unanswered
    assert len(silent.listener.open_streams) == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_late_error_is_an_event(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery)
    response = silent.post(era)
    await trio.sleep(KEEPALIVE + 1)
    await silent.answer(era, error(1, -32602))
    assert (response.status, response.messages[0]["error"]["code"]) == (200, -32602)
    assert response.ended


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_quick_answer_stays_json(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery)
    response = silent.post(era)
    await trio.sleep(KEEPALIVE / 2 - 0.1)
    await silent.answer(era, answer(1))
    assert response.json["result"] == "done"
    assert response.headers["content-type"] == "application/json"
    await trio.sleep(KEEPALIVE * 3)
    assert response.chunks == []


async def test_a_silent_request_of_a_session_can_be_resumed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    silent = Silent(nursery)
    response = silent.post("legacy")
    session = next(iter(silent.listener.table._sessions))
    await trio.sleep(KEEPALIVE + 1)
    (primed,) = response.ids
    response.leave()
    await silent.answer("legacy", answer(1))
    rest = await resume(silent.listener, session, primed)
    assert [message["result"] for message in rest.messages] == ["done"]


async def test_an_older_client_gets_a_comment_in_place_of_an_event_without_data(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    silent = Silent(nursery)
    response = silent.post("legacy", resumes=False)
    await trio.sleep(KEEPALIVE)
    await trio.testing.wait_all_tasks_blocked()
    assert response.chunks == [COMMENT]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_who_accepts_json_alone_gets_json_however_late(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery, json_replies=True)
    response = silent.post(era, accept="application/json")
    await trio.sleep(KEEPALIVE * 10)
    assert response.status is None
    if era == "modern":
        # What is told before the answer has no place in an answer that is JSON.
        await silent.answer(era, answer(1))
    else:
        silent.engine.outlet_of(1).post(notification())
        await silent.answer(era, answer(1))
    assert response.headers["content-type"] == "application/json"
    assert response.json["result"] == "done"


async def test_without_sessions_json_replies_are_json_too(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    silent = Silent(nursery, json_replies=True, sessions=False)

    async def exchange(message: Any, outlet: Outlet) -> None:
        await outlet.send(notification())
        await trio.sleep(KEEPALIVE * 3)
        await outlet.send(answer(1))

    silent.listener.handler.on_exchange = exchange
    legacy = silent.listener.post(request(1))
    modern_json = silent.listener.post(request(1), era="modern", accept="application/json")
    modern_both = silent.listener.post(request(1), era="modern")
    await trio.sleep(KEEPALIVE * 4)
    assert legacy.json["result"] == modern_json.json["result"] == "done"
    assert [each.get("method", "answer") for each in modern_both.messages] == ["news", "answer"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_it_can_be_switched_off(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery, keepalive=0.0)
    response = silent.post(era)
    await trio.sleep(10_000)
    assert response.status is None
    await silent.answer(era, answer(1))
    assert response.json["result"] == "done"


async def test_none_switches_it_off_too() -> None:
    async with site(keepalive=None) as here:
        assert (await here.post(*modern(1, "add", a=1, b=2)[:1], **modern(1, "add")[1])).status_code == 200
        assert "every 0 s" in repr(here.transport._service.settings.open_responses)


@pytest.mark.parametrize("wrong", [-1, -math.inf, math.nan])
def test_a_keepalive_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="keepalive must be"):
        HttpServerTransport("http://127.0.0.1:0/mcp", keepalive=wrong)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_that_leaves_a_silent_request_is_forgotten(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, era: str
) -> None:
    silent = Silent(nursery)
    early, late = silent.post(era), silent.post(era)
    early.leave()
    assert len(silent.listener.open_streams.unanswered) == 1
    await trio.sleep(KEEPALIVE + 1)
    assert len(silent.listener.open_streams) == 1
    late.leave()
    assert len(silent.listener.open_streams) == 0
    assert early.status is None


async def test_a_stream_that_cannot_begin_ends_its_session_alone(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    class Broken(MemoryEventLog):
        def append(self, session: str, stream: str, data: bytes) -> str:
            raise OSError("the disk is full")

    silent = Silent(nursery, store=Broken(clock=lambda: 0.0))
    failing, sound = silent.post("legacy"), silent.post("modern")
    await trio.sleep(KEEPALIVE * 3)
    assert failing.status == 500
    assert sound.status == 200
    await silent.answer("modern", answer(1))
    assert sound.ended


async def test_a_thousand_silent_requests_have_one_task_between_them(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    silent = Silent(nursery)
    session, _ = silent.listener.open()
    tasks = trio.lowlevel.current_statistics().tasks_living
    responses = [silent.listener.post(request(id), session) for id in range(1000)]
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    await trio.sleep(KEEPALIVE)
    await trio.testing.wait_all_tasks_blocked()
    assert {response.status for response in responses} == {200}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_over_a_socket_a_silent_call_of_a_session_begins_its_stream(version: str) -> None:
    async with site(keepalive=0.05) as here:
        session = await here.open(version)
        async with here.stream("POST", call(1, "silent"), session) as events:
            head = await events._peer.until(b"\r\n\r\n")
            assert b"text/event-stream" in head
            await events._peer.until(COMMENT)
            here.go.set()
            await events._peer.until(b"at last")


async def test_over_a_socket_a_silent_stateless_call_begins_its_stream() -> None:
    async with site(keepalive=0.05) as here:
        message, headers = modern(1, "silent")
        async with here.stream("POST", message, **headers) as events:
            await events._peer.until(COMMENT)
            here.go.set()
            await events._peer.until(b"at last")


# -- The HTTP request that brought a call, seen by its function; and what a session over HTTP keeps and tells ---

LIMIT = 60.0
KEEPS = [(False, "2025-11-25"), (False, "2024-11-05"), (False, "2026-07-28"), (True, "2025-11-25")]


class Kept:
    """The state of one session."""


class Seen:
    """What the functions of a server have seen."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest | None] = []
        self.kept: list[weakref.ref[Kept]] = []
        self.server = Server("looks")
        self.server.tool(self.look)
        self.server.tool(self.keep)

    async def look(self, ctx: Context, report: bool = False) -> str:
        """Looks at the request."""
        if report:
            await ctx.progress(1)
        self.requests.append(ctx.request)
        return "" if ctx.request is None else ctx.request.headers.get("x-tenant", "")

    async def keep(self, ctx: Context) -> str:
        """Keeps something in the session, if there is one."""
        if ctx.session is None:
            return "no session"
        self.kept.append(weakref.ref(ctx.session.get(Kept)))
        return "kept"


def over_http(url: str, tenant: str) -> ClientTransport:
    return HttpClientTransport(url, headers={"X-Tenant": tenant})


@pytest.mark.parametrize("report", [False, True])
@pytest.mark.parametrize(("json_replies", "era"), KEEPS)
async def test_a_call_sees_the_post_that_brought_it(json_replies: bool, era: str, report: bool) -> None:
    seen = Seen()
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", json_replies=json_replies)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(seen.server.serve, transport)
            async with Client(over_http(f"{url}?x=1", "blue"), era=era) as client:
                result = await client.call_tool("look", {"report": report})
            nursery.cancel_scope.cancel()
    assert result.content == [TextContent("blue")]
    [request] = seen.requests
    assert request is not None
    assert request.peer.startswith("127.0.0.1:")
    assert (request.path, request.query) == ("/mcp", "x=1")


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_call_on_a_websocket_sees_the_request_for_the_upgrade(era: str) -> None:
    seen = Seen()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(
                seen.server.serve, WebSocketServerTransport("ws://127.0.0.1:0/socket")
            )
            target = WebSocketClientTransport(url, headers={"X-Tenant": "green"})
            async with Client(target, era=era) as client:
                assert (await client.call_tool("look")).content == [TextContent("green")]
            nursery.cancel_scope.cancel()
    [request] = seen.requests
    assert request is not None
    assert request.path == "/socket"


async def test_a_connection_of_http_sse_has_the_get_that_opened_it(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    requests: list[HttpRequest | None] = []

    async def connection(channel: FrameChannel) -> None:
        requests.append(channel.http_request)
        await channel.aclose()

    listener.handler.on_connection = connection
    listener.send("GET", "/sse", headers={"accept": "text/event-stream", "x-tenant": "red"})
    await trio.testing.wait_all_tasks_blocked()
    [request] = requests
    assert request is not None
    assert request.headers["x-tenant"] == "red"


async def test_other_transports_have_none() -> None:
    seen = Seen()
    async with Client(seen.server) as client:
        await client.call_tool("look")
    assert seen.requests == [None]


# -- sessions over HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "kept"), [("2025-11-25", "kept"), ("2026-07-28", "no session")])
async def test_a_session_keeps_things_until_it_is_ended(era: str, kept: str, collector_rests: None) -> None:
    seen = Seen()
    transport = HttpServerTransport("http://127.0.0.1:0/mcp")
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(seen.server.serve, transport)
            async with Client(url, era=era) as client:
                for _ in range(2):
                    assert (await client.call_tool("keep")).content == [TextContent(kept)]
                assert len({ref() for ref in seen.kept}) == (kept == "kept")
                assert None not in [ref() for ref in seen.kept]
            while seen.server.tree().sessions:
                await trio.testing.wait_all_tasks_blocked()
            assert [ref() for ref in seen.kept if ref() is not None] == []
            nursery.cancel_scope.cancel()


async def test_the_server_logs_to_a_session_whose_client_listens() -> None:
    seen = Seen()
    logs: list[Any] = []
    heard = trio.Event()

    def on_log(*message: Any) -> None:
        logs.append(message)
        heard.set()

    transport = HttpServerTransport("http://127.0.0.1:0/mcp")
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(seen.server.serve, transport)
            async with Client(url, era="2025-11-25", on_log=on_log) as client:
                while not heard.is_set():
                    # The stream for it is opened some time after the handshake.
                    await client.ping()
                    seen.server.log("warning", "disk full", "storage")
            nursery.cancel_scope.cancel()
    assert logs[0] == ("warning", "disk full", "storage")
