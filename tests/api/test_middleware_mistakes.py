"""Middleware that fails, or forgets to return: what it costs, and what is said."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from mcp_actors import Client, Context, Server
from mcp_actors.errors import RpcError
from mcp_actors.server import CallNext

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def make_server() -> Server:
    server = Server("s")
    server.add_tool(lambda: "x", name="t", description="A tool.")
    server.add_resource("x://1", lambda: "one", name="one")
    return server


@ERAS
async def test_a_result_that_was_not_returned_is_said_and_costs_its_call(era: str) -> None:
    server = make_server()

    @server.middleware
    async def forgetful(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method == "prompts/list" or ctx.method == "server/discover":
            return await call_next()
        await call_next()
        return None

    server.add_prompt(lambda: "p", name="p", description="A prompt.")
    with structlog.testing.capture_logs() as logs:
        async with Client(server, era=era) as client:
            result = await client.call_tool("t")
            assert result.is_error
            assert "forgetful returned None: write 'return await call_next()'" in result.text
            for call in (client.list_tools, lambda: client.read_resource("x://1")):
                with pytest.raises(RpcError, match="forgetful returned None"):
                    await call()
            assert (await client.list_prompts()).prompts
    assert sum(line["event"] == "handler failed" for line in logs) == 3


async def test_none_is_a_result_where_there_is_nothing_to_say() -> None:
    server = make_server()
    passed: list[str] = []

    @server.middleware
    async def watching(ctx: Context, call_next: CallNext) -> Any:
        result = await call_next()
        passed.append(ctx.method)
        return None if ctx.method in ("acme/do", "logging/setLevel", "resources/subscribe") else result

    @server.method("acme/do")
    async def do(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    async with Client(server, era="legacy") as client:
        assert await client.request("acme/do") == {}
        await client.subscribe_resource("x://1")
        await client.set_log_level("error")
    assert passed == ["acme/do", "resources/subscribe", "logging/setLevel"]


@ERAS
async def test_a_failure_costs_its_call_alone(era: str) -> None:
    server = make_server()

    @server.middleware
    async def failing(ctx: Context, call_next: CallNext) -> Any:
        if ctx.method == "resources/read":
            raise KeyError("broken")
        return await call_next()

    with structlog.testing.capture_logs() as logs:
        async with Client(server, era=era) as client:
            with pytest.raises(RpcError) as refused:
                await client.read_resource("x://1")
            assert refused.value.code == -32603
            assert (await client.call_tool("t")).text == "x"
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["handler failed"]
