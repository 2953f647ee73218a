"""A server that is protected by access tokens, over WebSocket: at the upgrade, and until the access ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.auth import ResourceServer
from mcp_actors.errors import InsufficientScope
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.http.protected import (
    INVALID,
    ISSUER,
    NO_TOKEN,
    WELL_KNOWN,
    Tokens,
    caller,
    lacking,
    resource_server,
)
from tests.transports.websocket.raw import connected, path_of

LIMIT = 20.0


@asynccontextmanager
async def protected(*transports: Any) -> AsyncIterator[list[str]]:
    """A server behind transports, with a tool that needs a scope; yields the URLs."""
    server = Server("protected")

    @server.tool
    async def sees(ctx: Context) -> str:
        assert ctx.request is not None
        assert ctx.principal is not None
        return json.dumps([ctx.principal.subject, sorted(ctx.request.headers)])

    @server.tool(scopes=["files:write"])
    async def store() -> str:
        return "stored"

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            yield list(await nursery.start(server.serve, *transports))
            nursery.cancel_scope.cancel()


def over_websocket(url: str, token: str) -> WebSocketClientTransport:
    return WebSocketClientTransport(url, headers={"Authorization": f"Bearer {token}"})


async def test_the_upgrade_is_refused_as_any_request() -> None:
    tokens = Tokens(remembered_for=0)
    async with protected(WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server(tokens))) as (
        url,
    ):

        async def refused(authorization: str | None) -> tuple[int, str | None, str]:
            async with connected(url) as peer:
                await peer.upgrade(path_of(url), Authorization=authorization)
                status, headers, body = await peer.answer()
                assert headers["content-type"] == "application/json"
                return status, headers.get("www-authenticate"), json.loads(body)["error"]

        assert await refused(None) == (401, NO_TOKEN, "unauthorized")
        assert await refused("Bearer nobody") == (401, INVALID, "invalid_token")
        assert await refused("Bearer ann-useless") == (403, lacking("mcp:use"), "insufficient_scope")
        tokens.down = True
        assert await refused("Bearer ann") == (503, None, "temporarily_unavailable")


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_connection_has_the_scopes_of_its_upgrade_and_no_token(era: str) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server())
    async with protected(transport) as (url,):
        async with Client(over_websocket(url, "ann"), era=era) as client:
            subject, headers = json.loads((await client.call_tool("sees")).text)
            assert subject == "ann"
            assert {"authorization", "dpop"} & set(headers) == set()
            with pytest.raises(InsufficientScope) as refusal:
                await client.call_tool("store")
            assert refusal.value.data["scopes"] == ["files:write"]
        async with Client(over_websocket(url, "ann-more"), era=era) as client:
            assert (await client.call_tool("store")).text == "stored"


async def test_a_name_of_a_check_of_ones_own_has_no_scopes() -> None:
    async with protected(
        WebSocketServerTransport("ws://127.0.0.1:0/mcp", authenticate=lambda request: "ann")
    ) as (url,):
        async with Client(WebSocketClientTransport(url)) as client:
            with pytest.raises(InsufficientScope):
                await client.call_tool("store")


async def test_a_connection_ends_some_time_after_its_access(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # Real sockets have to be waited for before the time jumps.
    autojump_clock.autojump_threshold = 0.05
    tokens = Tokens()
    tokens.principals = {"ann": caller("ann", lasts=100), "bob": Principal("bob", ISSUER, scopes=["mcp:use"])}
    server = Server("protected")
    transport = WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server(tokens))
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)
        began = trio.current_time()
        for token in ("bob", "ann"):
            peer = over_websocket(url, token)
            nursery.start_soon(_stay, peer, ended := trio.Event())
        await ended.wait()
        assert 100 + STREAM_GRACE - 5 <= trio.current_time() - began <= 100 + STREAM_GRACE + 5
        assert transport.statistics().connections == 1
        nursery.cancel_scope.cancel()


async def _stay(transport: WebSocketClientTransport, ended: trio.Event) -> None:
    async with transport.connect() as channel:
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
            await channel.receive()
    ended.set()


# -- the metadata ----------------------------------------------------------------------------------------------------


def resource(path: str) -> ResourceServer:
    return resource_server(resource=f"https://mcp.example.org{path}")


async def read(url: str, path: str) -> tuple[int, str | None]:
    async with httpx2.AsyncClient() as http:
        found = await http.get(f"http://{url.split('/')[2]}{path}")
        return found.status_code, found.json().get("resource")


async def test_a_websocket_alone_shows_its_metadata() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/ws", auth=resource("/ws"))
    async with protected(transport) as (url,):
        for path in (WELL_KNOWN, WELL_KNOWN + "/ws"):
            assert await read(url, path) == (200, "https://mcp.example.org/ws")


async def test_two_transports_at_one_port_show_their_metadata() -> None:
    server = Server("both")
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            http = HttpServerTransport("http://127.0.0.1:0/mcp", auth=resource("/mcp"))
            (url,) = await nursery.start(server.serve, http)
            port = url.split(":")[2].partition("/")[0]
            for path in ("/ws", "/other"):
                beside = WebSocketServerTransport(f"ws://127.0.0.1:{port}{path}", auth=resource(path))
                await nursery.start(Server(path).serve, beside)
            for path in ("/mcp", "/ws", "/other"):
                assert await read(url, WELL_KNOWN + path) == (200, f"https://mcp.example.org{path}")
            # Who came first owns the origin.
            assert await read(url, WELL_KNOWN) == (200, "https://mcp.example.org/mcp")
            assert await read(url, WELL_KNOWN + "/more") == (404, None)
            async with Client(over_websocket(f"ws://127.0.0.1:{port}/ws", "ann")):
                pass
            nursery.cancel_scope.cancel()
