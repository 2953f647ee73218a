"""A whole `Client` over HTTP, against a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import CallTimeout, ConnectionLost, RpcError, SessionExpired
from mcp_transports.http.client import HttpClientTransport

from .scripted import URL, Asked, Script, Stream, sse

INFO = {"name": "script", "version": "1"}


class Server:
    """Answers handshakes of both eras, and a call by ``call``."""

    def __init__(self, modern: bool) -> None:
        self.modern = modern
        self.streams: list[Stream] = []
        self.messages: list[dict[str, Any]] = []
        self.expired = False

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method != "POST":
            return httpx2.Response(405)
        message = json.loads(asked.body)
        self.messages.append(message)
        method = message["method"]
        if self.expired and asked.headers.get("mcp-session-id"):
            return httpx2.Response(404)
        if "id" not in message:
            return httpx2.Response(202)
        if method == "server/discover":
            if not self.modern:
                return httpx2.Response(
                    400, json={"jsonrpc": "2.0", "error": {"code": -32000, "message": "session?"}}
                )
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return reply(message, {**result, "_meta": {"io.modelcontextprotocol/serverInfo": INFO}})
        if method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
            return reply(message, result, {"mcp-session-id": "s"})
        if method == "tools/list":
            return reply(
                message, {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            )
        if message["params"]["name"] == "fails":
            error = {"code": -32603, "message": "internal"}
            return httpx2.Response(500, json={"jsonrpc": "2.0", "error": error})
        self.streams.append(Stream())
        return sse(self.streams[-1])

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["method"] == method]


def reply(
    message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx2.Response:
    return httpx2.Response(
        200, json={"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers
    )


@asynccontextmanager
async def connected(modern: bool) -> AsyncIterator[tuple[Client, Server]]:
    server = Server(modern)
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        async with Client(HttpClientTransport(URL, client=http)) as client:
            yield client, server


both = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


@both
async def test_a_call_that_is_given_up_is_taken_back_once(
    modern: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with connected(modern) as (client, server):
        assert client.era == ("modern" if modern else "legacy")
        with trio.move_on_after(1):
            await client.call_tool("slow")
        await trio.sleep(5)
        assert len(server.heard("notifications/cancelled")) == (0 if modern else 1)
        assert server.streams[0].closed.is_set()


@both
async def test_a_call_that_times_out_is_taken_back_once(modern: bool, autojump_clock: trio.abc.Clock) -> None:
    async with connected(modern) as (client, server):
        with pytest.raises(CallTimeout):
            await client.call_tool("slow", timeout=3)
        await trio.sleep(5)
        assert len(server.heard("notifications/cancelled")) == (0 if modern else 1)
        assert server.streams[0].closed.is_set()


async def test_giving_up_and_leaving_at_once_still_tells_the_server(autojump_clock: trio.abc.Clock) -> None:
    async with connected(modern=False) as (client, server):
        with trio.move_on_after(1):
            await client.call_tool("slow")
    assert len(server.heard("notifications/cancelled")) == 1


@both
async def test_an_error_without_an_id_finds_its_call(modern: bool, autojump_clock: trio.abc.Clock) -> None:
    async with connected(modern) as (client, _):
        with pytest.raises(RpcError, match="internal"):
            await client.call_tool("fails")


@both
async def test_a_call_whose_stream_is_cut_fails_at_once(
    modern: bool, autojump_clock: trio.abc.Clock, nursery: trio.Nursery
) -> None:
    async with connected(modern) as (client, server):

        async def cut() -> None:
            await trio.sleep(1)
            server.streams[0].end(httpx2.ReadError("reset"))

        nursery.start_soon(cut)
        began = trio.current_time()
        with pytest.raises(ConnectionLost):
            await client.call_tool("slow")
        assert trio.current_time() - began == 1
        # The channel goes on: the next call is a new POST.
        await client.list_tools()


async def test_an_expired_session_is_told_as_such(autojump_clock: trio.abc.Clock) -> None:
    async with connected(modern=False) as (client, server):
        server.expired = True
        with pytest.raises(SessionExpired):
            await client.call_tool("slow")
        with pytest.raises(SessionExpired):
            await client.call_tool("slow")
