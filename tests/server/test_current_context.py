"""`current_context`: helpers that a context is not handed to find that of the call that they work for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, LocalProtocolError, Server, SyncContext, current_context
from mcp_actors.types import TextContent

ERAS = ["legacy", "modern"]


def place_of_call() -> str:
    """A helper: what it says is that it was called for this call, in the form of the function's own context."""
    ctx = current_context()
    return f"{type(ctx).__name__} {ctx.method}"


async def with_helpers() -> Server:
    server = Server("helpers")

    @server.tool
    async def waits(marker: str) -> list[str]:
        found = []

        async def child() -> None:
            found.append(place_of_call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        await trio.lowlevel.checkpoint()
        return [*found, place_of_call(), str(current_context().params["arguments"]["marker"])]

    @server.tool
    def blocks() -> str:
        current_context().log("info", "from the thread")
        return place_of_call()

    @server.tool(inline=True)
    def at_once(ctx: SyncContext) -> str:
        assert current_context().request_id == ctx.request_id
        return place_of_call()

    @server.tool(loop="asyncio")
    async def elsewhere() -> str:
        await asyncio.sleep(0)
        return f"{place_of_call()} {await asyncio.to_thread(place_of_call)}"

    @server.prompt
    async def greeting() -> str:
        return place_of_call()

    @server.resource("place://here")
    def here() -> str:
        return place_of_call()

    @server.method("x/place")
    async def place(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"place": place_of_call()}

    return server


@pytest.mark.parametrize("era", ERAS)
async def test_a_helper_asks_for_the_context_of_its_call(era: str) -> None:
    async with Client(await with_helpers(), era=era) as client:
        for marker in ("a", "b"):
            found = await client.call_tool("waits", {"marker": marker}, returns=list[str])
            assert found == ["Context tools/call", "Context tools/call", marker]
        async with trio.open_nursery() as nursery:
            for number in range(20):

                async def ask(marker: str) -> None:
                    found = await client.call_tool("waits", {"marker": marker}, returns=list[str])
                    assert found[-1] == marker

                nursery.start_soon(ask, str(number))
        texts = {name: (await client.call_tool(name, {})).text for name in ("blocks", "at_once", "elsewhere")}
        assert texts == {
            "blocks": "SyncContext tools/call",
            "at_once": "SyncContext tools/call",
            "elsewhere": "AsyncioContext tools/call AsyncioContext tools/call",
        }
        prompt = await client.get_prompt("greeting", {})
        assert prompt.messages[0].content == TextContent("Context prompts/get")
        assert (await client.read_resource("place://here")).text == "SyncContext resources/read"
        assert (await client.request("x/place", {}))["place"] == "Context x/place"


def test_elsewhere_there_is_none() -> None:
    with pytest.raises(LocalProtocolError, match="no call is answered here"):
        current_context()
