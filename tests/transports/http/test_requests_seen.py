"""The HTTP request that brought a call, seen by its function; and what a session over HTTP keeps and tells."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.abc import ClientTransport, FrameChannel, HttpRequest
from mcp_actors.types import TextContent
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.http.fakes import FakeListener

LIMIT = 20.0
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
async def test_a_session_keeps_things_until_it_is_ended(era: str, kept: str) -> None:
    seen = Seen()
    transport = HttpServerTransport("http://127.0.0.1:0/mcp")
    gc.disable()
    try:
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
    finally:
        gc.enable()


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
