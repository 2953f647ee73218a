"""`ClientGroup` for programs without Trio: the same methods, and callbacks where the program runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Context, Progress, Server
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.types import CallToolResult, ElicitResult

from .watched import held

PATIENCE = 20


def asking(name: str) -> Server:
    server = Server(name)

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.progress(1)
        answer = await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return f"{name}: {(answer.content or {}).get('name')}"

    return server


def servers() -> dict[str, Any]:
    return {"one": asking("one"), "two": asking("two"), "away": "tcp://127.0.0.1:1"}


async def in_a_loop() -> None:
    asked: list[object] = []
    loop = asyncio.get_running_loop()

    def options_for(name: str) -> dict[str, Any]:
        async def answer(question: object) -> ElicitResult:
            asked.append(asyncio.get_running_loop())
            return ElicitResult("accept", {"name": f"user of {name}"})

        return {"elicitation": answer}

    reports: list[Progress] = []
    group = mcp_actors.asyncio.ClientGroup(servers(), options_for=options_for)
    async with group:
        assert group.names == ("one", "two", "away")
        assert list(group.failures) == ["away"]
        assert [tool.name for tool in await group.tools()] == ["one__ask", "two__ask"]
        result = await group.call_tool("two__ask", on_progress=reports.append)
        assert result.text == "two: user of two"
        outcomes = await group.call_all([("one__ask", None), ("away__ask", None)])
        assert [type(each) for each in outcomes] == [CallToolResult, ConnectFailed]
        client = group["one"]
        assert isinstance(client, mcp_actors.asyncio.Client)
        assert (await client.call_tool("ask")).text == "one: user of one"
        assert isinstance(await group.reconnect("two"), mcp_actors.asyncio.Client)
        with pytest.raises(ConnectFailed, match="away"):
            group["away"]
        with pytest.raises(LocalProtocolError, match="good for one block"):
            await group.__aenter__()
    assert set(asked) == {loop}
    assert reports[0].progress == 1


def test_a_group_in_an_asyncio_loop() -> None:
    with capture_logs():
        asyncio.run(asyncio.wait_for(in_a_loop(), PATIENCE))
    assert held() == []


def test_a_group_without_a_loop() -> None:
    asked: list[int] = []

    def answer(question: object) -> ElicitResult:
        asked.append(threading.get_ident())
        return ElicitResult("accept", {"name": "Ada"})

    group = mcp_actors.sync.ClientGroup(servers(), elicitation=answer)
    with pytest.raises(LocalProtocolError, match="not connected"):
        group.tools()
    with capture_logs(), group:
        assert [tool.name for tool in group.tools()] == ["one__ask", "two__ask"]
        assert group.call_tool("one__ask").text == "one: Ada"
        outcomes = group.call_all([("two__ask", None), ("away__ask", None)])
        assert [type(each) for each in outcomes] == [CallToolResult, ConnectFailed]
        client = group["one"]
        assert isinstance(client, mcp_actors.sync.Client)
        assert client.call_tool("ask").text == "one: Ada"
        assert isinstance(group.reconnect("two"), mcp_actors.sync.Client)
        assert list(group.failures) == ["away"]
        assert group.resources() == {}
    assert len(asked) == 3
    assert held() == []


def test_a_required_server_that_fails_is_raised_where_the_block_is_entered() -> None:
    with capture_logs(), pytest.raises(ConnectFailed):
        with mcp_actors.sync.ClientGroup(servers(), required=["away"]):
            raise AssertionError("it is not entered")
    assert held() == []
