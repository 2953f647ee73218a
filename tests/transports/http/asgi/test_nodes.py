"""Applications that are nodes of one server: sessions are found at any of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mcp_actors import Context, Server
from mcp_actors.abc.http import AsgiServer
from tests.shared.spanning import Spanning
from tests.transports.http.asgi.test_requests import ask, call, on_asyncio, session


def node(shared: Spanning) -> AsgiServer:
    server = Server("node", shared=shared)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool(loop="asyncio")
    async def thinks(ctx: Context) -> str:
        await ctx.progress(1)
        return await asyncio.sleep(0, "done")

    return server.asgi()


def text(exchange: Any) -> str:
    result: str = json.loads(exchange.body)["result"]["content"][0]["text"]
    return result


@on_asyncio
async def test_a_session_of_one_application_is_served_by_another() -> None:
    shared = Spanning()
    a, b = node(shared), node(shared)
    async with a.lifespan(), b.lifespan():
        headers = await session(a)
        assert text(await ask(b, call("add", a=1, b=2), headers=headers)) == "3"
        assert text(await ask(b, call("thinks"), headers=headers)) == "done"
        sessions = [each.statistics().sessions for each in (a, b)]
        assert [each and each.open for each in sessions] == [1, 0]
        assert (await ask(b, headers=headers, method="DELETE")).status == 200
        assert (await ask(a, call("add", a=1, b=2), headers=headers)).status == 404
