"""A client that leaves is no error: its calls end, others go on, and nothing above debug is logged."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Context, Server
from mcp_actors.testing import ScriptedPeer
from mcp_transports.memory import memory_channel_pair

from .peers import LEGACY, Serves, call, modern_call

server = Server("left")


@server.tool
async def reports(ctx: Context) -> str:
    while True:
        await ctx.progress(1)
        await trio.sleep(0.01)


@server.tool
async def asks(ctx: Context) -> str:
    return str(await ctx.elicit("?", {"type": "object", "properties": {"a": {"type": "string"}}}))


@pytest.mark.parametrize(("make", "tool"), [(call, "reports"), (modern_call, "reports"), (call, "asks")])
@pytest.mark.parametrize("clients", [10, 100])
async def test_a_client_that_leaves_in_the_middle_of_a_call_is_no_error(
    clients: int, make: Any, tool: str
) -> None:
    with capture_logs() as lines:
        pairs = [memory_channel_pair() for _ in range(clients)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, Serves(*[theirs for _, theirs in pairs]))
            for ours, _ in pairs:
                peer = ScriptedPeer(ours)
                await peer.initialize(LEGACY, {"elicitation": {}})
                message = make(1, tool)
                message["params"].setdefault("_meta", {})["progressToken"] = 1
                await peer.send(message)
                await peer.receive()
                await ours.aclose()
            await trio.sleep(20)
            assert server.tree().limiter.inside == 0
            nursery.cancel_scope.cancel()
    assert [line for line in lines if line["log_level"] != "debug"] == []
