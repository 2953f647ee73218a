"""What a whole client concludes from what it gets by HTTP: about the era, the session and the binding."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectFailed, McpError, Server, SessionExpired
from mcp_actors._client.supervisor import ERA_CACHE
from mcp_actors.abc.discovery import register_transport
from mcp_actors.errors import RpcError, Unavailable
from mcp_actors.types import DiscoverResult, ServerCapabilities
from mcp_transports.http.client import HttpClientTransport, HttpUnavailable
from mcp_transports.http.server import HttpServerTransport
from tests.messages import (
    LEGACY_VERSIONS,
    MODERN,
    discover_result,
    error,
    initialize_result,
    modern_request,
    result,
)

from .scripted import URL, Asked, Script
from .site import message_of, site

Message = dict[str, Any]
TEXT = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
UNKNOWN = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Session not found"}}


class DualServer:
    """A server of both eras, whose answers ``before`` may replace."""

    def __init__(self, before: Callable[[Message, Asked], Awaitable[httpx2.Response | None]]) -> None:
        self.before = before
        self.asked: list[str] = []
        self.sessions = 0

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method != "POST":
            return httpx2.Response(405)
        message = json.loads(asked.body)
        method = message["method"]
        self.asked.append(method)
        replaced = await self.before(message, asked)
        if replaced is not None:
            return replaced
        if "id" not in message:
            return httpx2.Response(202)
        if method == "server/discover":
            return answer(result(message, discover_result({"tools": {}})))
        if method == "initialize":
            self.sessions += 1
            return answer(
                result(message, initialize_result("2025-11-25", {"tools": {}})),
                headers={"mcp-session-id": f"s{self.sessions}"},
            )
        return answer(result(message, TEXT))


def answer(message: Message, status: int = 200, **more: Any) -> httpx2.Response:
    return httpx2.Response(status, json=message, **more)


@asynccontextmanager
async def published(name: str, server: DualServer) -> AsyncIterator[str]:
    """A URL of the server, for which clients remember what they find."""
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        register_transport(name, lambda url: HttpClientTransport(URL, client=http, listen=False))
        yield f"{name}:x"


def overloaded(message: Message) -> httpx2.Response:
    return answer(error(message, -32000, "overloaded"), 503)


def broken(message: Message) -> httpx2.Response:
    raise httpx2.ReadError("reset")


OUTAGES: dict[str, Callable[[Message], httpx2.Response]] = {
    "503-rpc": overloaded,
    "500-rpc": lambda message: answer(error(message, -32603, "internal"), 500),
    "502-html": lambda message: httpx2.Response(502, text="<html>bad gateway"),
    "504-empty": lambda message: httpx2.Response(504),
    "429-later": lambda message: httpx2.Response(429, headers={"retry-after": "2"}),
    "408-empty": lambda message: httpx2.Response(408),
    "reset": broken,
}


@pytest.mark.parametrize("kind", OUTAGES)
@pytest.mark.parametrize("times", [1, 2])
async def test_an_outage_at_first_contact_is_no_verdict(
    kind: str, times: int, autojump_clock: trio.abc.Clock
) -> None:
    left = times

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        nonlocal left
        left -= 1
        return OUTAGES[kind](message) if left >= 0 else None

    server = DualServer(before)
    async with published(f"outage{kind}{times}", server) as url:
        async with Client(url) as client:
            assert client.version == MODERN
            assert trio.current_time() >= (2 * times if kind == "429-later" else 0.25)
    assert server.asked == ["server/discover"] * (times + 1)


@pytest.mark.parametrize("kind", OUTAGES)
async def test_an_outage_of_discovery_alone_is_not_remembered(
    kind: str, autojump_clock: trio.abc.Clock
) -> None:
    away = True

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        return OUTAGES[kind](message) if away and message["method"] == "server/discover" else None

    server = DualServer(before)
    async with published(f"partial{kind}", server) as url:
        async with Client(url) as client:
            assert client.era == "legacy"
        assert ERA_CACHE.get(url) is None
        away = False
        async with Client(url) as client:
            assert client.era == "modern"


async def test_an_outage_of_everything_is_raised_with_its_status(autojump_clock: trio.abc.Clock) -> None:
    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        return overloaded(message)

    async with published("away", DualServer(before)) as url:
        with pytest.raises(HttpUnavailable, match=r"HTTP 503.*overloaded") as caught:
            async with Client(url):
                raise AssertionError("never reached")
        assert caught.value.status == 503
        assert ERA_CACHE.get(url) is None


async def test_a_slow_first_discovery_is_not_remembered(autojump_clock: trio.abc.Clock) -> None:
    seconds = 7.0

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        if message["method"] == "server/discover":
            await trio.sleep(seconds)
        return None

    async with published("slow", DualServer(before)) as url:
        async with Client(url) as client:
            assert client.era == "legacy"
        assert ERA_CACHE.get(url) is None
        seconds = 1
        async with Client(url) as client:
            assert client.era == "modern"


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_4xx_without_a_modern_body_is_a_verdict(status: int, autojump_clock: trio.abc.Clock) -> None:
    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        return httpx2.Response(status) if message["method"] == "server/discover" else None

    async with published(f"older{status}", DualServer(before)) as url:
        for _ in range(2):
            async with Client(url) as client:
                assert client.era == "legacy"
        known = ERA_CACHE.get(url)
        assert known is not None
        assert known.name == "legacy"


async def test_a_gateway_that_began_the_session_for_discovery(autojump_clock: trio.abc.Clock) -> None:
    """It passes what it gets on to one legacy server; a connection is a process of its own there."""
    begun = False

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        nonlocal begun
        if message["method"] == "server/discover":
            begun = True
            return answer(error(message, -32601, "Method not found"))
        if message["method"] == "initialize" and begun:
            begun = False
            return answer(error(message, -32600, "this session is initialized already"), 400)
        return None

    server = DualServer(before)
    async with published("gateway", server) as url:
        for _ in range(2):
            async with Client(url) as client:
                assert client.era == "legacy"
                assert (await client.call_tool("any")).content
    handshake = ["initialize", "notifications/initialized", "tools/call"]
    assert server.asked == ["server/discover", "initialize", *handshake, *handshake]


# -- sessions that are forgotten -------------------------------------------------------------------------------------

FORGETS = {
    "404": lambda: httpx2.Response(404),
    "404-rpc": lambda: answer(UNKNOWN, 404),
    "400-typescript": lambda: answer(
        {**UNKNOWN, "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}}, 400
    ),
    "400-python": lambda: answer(
        {**UNKNOWN, "id": "server-error", "error": {"code": -32600, "message": "Invalid session"}}, 400
    ),
    "400-restarted": lambda: answer(
        {**UNKNOWN, "error": {"code": -32000, "message": "Bad Request: Server not initialized"}}, 400
    ),
    "400-text": lambda: httpx2.Response(400, text="unknown session"),
}


class Forgetful(DualServer):
    """Knows the last session only that was begun, and that until the test takes it away."""

    def __init__(self, how: str) -> None:
        super().__init__(self._check)
        self.how = how
        self.known = True
        self.runs = 0
        self.hangs = trio.Event()

    async def _check(self, message: Message, asked: Asked) -> httpx2.Response | None:
        if message["method"] == "initialize":
            self.known = True
            return None
        session = asked.headers.get("mcp-session-id")
        if session is not None and not (self.known and session == f"s{self.sessions}"):
            return FORGETS[self.how]()
        if message["method"] == "tools/call":
            self.runs += 1
            if message["params"]["name"] == "hangs":
                await self.hangs.wait()
        return None


@pytest.mark.parametrize("how", FORGETS)
async def test_a_forgotten_session_is_begun_anew_for_all(
    how: str, autojump_clock: trio.abc.Clock, nursery: trio.Nursery
) -> None:
    server = Forgetful(how)
    async with published(f"forgets{how}", server) as url, Client(url, era="legacy") as client:
        raised: list[McpError] = []

        async def hang() -> None:
            with pytest.raises(SessionExpired) as caught:
                await client.call_tool("hangs")
            raised.append(caught.value)

        nursery.start_soon(hang)
        await trio.testing.wait_all_tasks_blocked()
        server.known = False
        async with trio.open_nursery() as callers:
            for _ in range(10):
                callers.start_soon(client.call_tool, "echo")
        assert server.sessions == 2
        assert server.runs == 1 + 10
        assert [each.never_run for each in raised] == [False]
        # And once more, by a client that has seen it before.
        server.known = False
        await client.call_tool("echo")
        assert server.sessions == 3


async def test_a_400_that_answers_the_call_is_its_answer(autojump_clock: trio.abc.Clock) -> None:
    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        if message["method"] == "tools/call":
            return answer(error(message, -32602, "no such session of the user"), 400)
        return None

    server = DualServer(before)
    async with published("answers400", server) as url, Client(url, era="legacy") as client:
        with pytest.raises(RpcError, match="no such session"):
            await client.call_tool("any")
    assert server.sessions == 1


async def test_a_session_that_cannot_be_begun_anew_ends_the_client(autojump_clock: trio.abc.Clock) -> None:
    server = Forgetful("404")
    async with published("away-again", server) as url, Client(url, era="legacy") as client:
        server.known = False

        async def away(message: Message, asked: Asked) -> httpx2.Response | None:
            return httpx2.Response(503 if message["method"] == "initialize" else 404)

        server.before = away
        for _ in range(2):
            with pytest.raises(ConnectFailed, match="503"):
                await client.call_tool("echo")
        assert server.asked.count("initialize") == 1 + 3
        assert trio.current_time() < 5


async def test_a_server_that_forgets_every_session_at_once_is_not_asked_without_end(
    autojump_clock: trio.abc.Clock,
) -> None:
    server = Forgetful("404")
    async with published("forgets-all", server) as url, Client(url, era="legacy") as client:

        async def never(message: Message, asked: Asked) -> httpx2.Response | None:
            return None if message["method"] == "initialize" else httpx2.Response(404)

        server.before = never
        for _ in range(20):
            with pytest.raises(SessionExpired):
                await client.call_tool("echo")
        begun = server.sessions
        await trio.sleep(60)
        assert server.sessions - begun < 30


# -- without asking --------------------------------------------------------------------------------------------------


async def test_a_prior_discovery_saves_every_round_trip(autojump_clock: trio.abc.Clock) -> None:
    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        return None

    server = DualServer(before)
    async with published("prior", server) as url:
        async with Client(url) as client:
            prior = client.discovered
        assert prior is not None
        server.asked.clear()
        async with Client(url, prior_discover=prior) as client:
            assert server.asked == []
            assert client.version == MODERN
            assert client.server_capabilities.tools is not None
            await client.call_tool("any")
            assert client.discovered is prior
        assert server.asked == ["tools/call"]
        with pytest.raises(ValueError, match="prior_discover"):
            Client(url, era="legacy", prior_discover=prior)


async def test_a_prior_discovery_that_is_no_longer_true(autojump_clock: trio.abc.Clock) -> None:
    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        return answer(error(message, -32022, "no", {"supported": ["2025-11-25"]}), 400)

    prior = DiscoverResult([MODERN], ServerCapabilities(tools={}))
    async with published("untrue", DualServer(before)) as url:
        async with Client(url, prior_discover=prior) as client:
            with pytest.raises(RpcError, match="-32022"):
                await client.call_tool("any")


# -- HTTP+SSE of ours --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def own_server(**options: Any) -> AsyncIterator[str]:
    server = Server("ours")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp", **options))
        yield url.removesuffix("/mcp") + "/sse"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["auto", "legacy", *LEGACY_VERSIONS])
async def test_our_own_http_sse_is_found_by_its_url(era: str) -> None:
    async with own_server() as url:
        for _ in range(2):
            async with Client(url, era=era) as client:
                assert client.version == (era if era in LEGACY_VERSIONS else "2025-11-25")
                assert (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text == "5"
                await client.ping()


async def test_our_own_http_sse_has_no_stateless_revision() -> None:
    async with site() as at:
        base = at.url.removesuffix("/mcp")
        with pytest.raises(McpError):
            async with Client(base + "/sse", era="modern"):
                raise AssertionError("never reached")
        async with at.stream("GET", path="/sse") as events:
            endpoint = base + (await anext(events)).data.decode()
            for id, method in ((1, "server/discover"), (2, "tools/list")):
                assert (await at.http.post(endpoint, json=modern_request(id, method))).status_code == 202
                refused = (await message_of(events))["error"]
                assert refused["code"] == -32022
                assert set(refused["data"]["supported"]) == set(LEGACY_VERSIONS)


async def test_an_unavailable_error_is_one_of_the_protocols_errors() -> None:
    assert issubclass(HttpUnavailable, Unavailable)
    assert HttpUnavailable("x", status=429, retry_after=2).retry_after == 2
