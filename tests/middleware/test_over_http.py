"""Callers over HTTP: by principal, or by address, and never by a session that anybody may open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.auth import BearerToken
from mcp_actors.errors import Overloaded
from mcp_actors.middleware import AuditEntry, AuditLog, RateLimit, caller_of
from mcp_transports.http.server import HttpServerTransport

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@asynccontextmanager
async def at_url(server: Server, **options: Any) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        transport = HttpServerTransport("http://127.0.0.1:0/mcp", **options)
        (url,) = await nursery.start(server.serve, transport)
        yield str(url)
        nursery.cancel_scope.cancel()


def make_server(*middleware: Any) -> Server:
    server = Server("s")
    for each in middleware:
        server.middleware(each)

    @server.tool
    async def who(ctx: Context) -> str:
        """Says who calls."""
        return caller_of(ctx)

    return server


async def call_often(client: Client) -> None:
    for _ in range(10):
        await client.call_tool("who")


@ERAS
async def test_without_a_principal_all_sessions_of_an_address_are_one_caller(era: str) -> None:
    limit = RateLimit(0.001, burst=4)
    async with at_url(make_server(limit)) as url:
        for _ in range(2):
            async with Client(url, era=era) as client:
                assert (await client.call_tool("who")).text == "127.0.0.1"
        assert len(limit) == 1
        async with Client(url, era="legacy") as client:
            with pytest.raises(Overloaded) as refused:
                await call_often(client)
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 100


@ERAS
async def test_each_principal_is_a_caller(era: str) -> None:
    entries: list[AuditEntry] = []
    limit = RateLimit(0.001, burst=2)

    def authenticate(request: Any) -> str:
        return str(request.headers["authorization"].removeprefix("Bearer "))

    async with at_url(make_server(AuditLog(entries.append), limit), authenticate=authenticate) as url:
        for name in ("ann", "bob"):
            async with Client(url, era=era, auth=BearerToken(name)) as client:
                assert (await client.call_tool("who")).text == f"principal {name}"
                with pytest.raises(Overloaded):
                    await call_often(client)
    assert len(limit) == 2
    assert {entry.principal for entry in entries} == {"ann", "bob"}
    assert {entry.ending for entry in entries} == {"answered", "error 429"}
