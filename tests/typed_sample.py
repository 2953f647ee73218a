"""Programs as type checkers see them: `test_readme.py` has mypy and pyright check this file in their strict modes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict, assert_type

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Audio, Client, Context, File, Image, Server, SyncContext
from mcp_actors.server import FormResult
from mcp_actors.types import CallToolResult, ElicitResult, Implementation


@dataclass
class Forecast:
    degrees: float


class Row(TypedDict):
    id: int


class Database:
    def rows(self) -> list[Row]:
        return []


async def calls(client: Client) -> None:
    assert_type(await client.call_tool("forecast"), CallToolResult)
    assert_type(await client.call_tool("forecast", {"city": "Bonn"}, returns=Forecast), Forecast)
    assert_type(await client.call_tool("row", returns=Row), Row)
    assert_type(await client.call_tool("rows", returns=list[Row]), list[Row])
    assert_type(await client.call_tool("count", timeout=5, returns=int), int)
    maybe: int | None = await client.call_tool("count", returns=int | None)
    assert_type(maybe, int | None)
    assert_type(client.server_info, Implementation)
    assert_type((await client.call_tool("forecast")).text, str)


@asynccontextmanager
async def opened(server: Server[Database]) -> AsyncGenerator[Database]:
    yield Database()


@asynccontextmanager
async def opened_by_any(server: Server) -> AsyncGenerator[Database]:
    yield Database()


server = Server("typed", lifespan=opened)
assert_type(server, Server[Database])
assert_type(Server("typed", lifespan=opened_by_any), Server[Database])
stateless = Server("stateless")
assert_type(stateless, Server)


def takes_any(server: Server) -> None: ...


takes_any(server)
takes_any(stateless)


@server.tool
async def order(ctx: Context[Database]) -> list[Row]:
    assert_type(ctx.state, Database)
    answer = await ctx.elicit("What?", Forecast)
    assert_type(answer, FormResult[Forecast])
    if answer.data is not None:
        assert_type(answer.data, Forecast)
    assert_type(await ctx.elicit("What?", {"type": "object"}), ElicitResult)
    return ctx.state.rows()


@server.tool
def order_in_thread(ctx: SyncContext[Database]) -> list[Row]:
    assert_type(ctx.elicit("What?", Forecast).data, Forecast | None)
    assert_type(ctx.elicit("What?", {"type": "object"}), ElicitResult)
    return ctx.state.rows()


@stateless.tool
async def plain(ctx: Context) -> list[str | Image | Audio | File]:
    await ctx.progress(1)
    return ["Here:", Image("plot.png"), Audio(b"ID3"), File(b"a,b", name="table.csv")]


async def calls_in_asyncio(client: mcp_actors.asyncio.Client) -> None:
    assert_type(await client.call_tool("rows", returns=list[Row]), list[Row])
    assert_type(await client.call_tool("rows"), CallToolResult)


def calls_in_a_thread(client: mcp_actors.sync.Client) -> None:
    assert_type(client.call_tool("rows", returns=list[Row]), list[Row])
    assert_type(client.call_tool("rows"), CallToolResult)
    assert_type(client.server_info, Implementation)
