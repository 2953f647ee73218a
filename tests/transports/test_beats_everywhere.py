"""A call that says nothing is reported for on every binding, in each era that the binding has."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Limits, Server
from mcp_actors.client import Progress
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.stdio import StdioClientTransport
from tests.test_every_task import OnlyHttpSse

SERVER = """
import trio

from mcp_actors import Limits, Server

server = Server("silent", limits=Limits(beat=0.02))
let_go = trio.Event()

@server.tool
async def hold() -> str:
    await let_go.wait()
    return "held"

@server.tool
async def release() -> None:
    let_go.set()
"""
ROWS = [
    (binding, era)
    for binding in ("memory", "stdio", "tcp", "unix", "ws", "http")
    for era in ("legacy", "modern")
] + [("sse", "legacy")]
WANTED = 3


def made_server() -> Server:
    namespace: dict[str, Any] = {}
    exec(SERVER, namespace)
    server: Server = namespace["server"]
    assert server.limits == Limits(beat=0.02)
    return server


async def beaten(client: Client) -> list[Progress]:
    """The progress of a call that ends when enough was told."""
    told: list[Progress] = []

    async def note(progress: Progress) -> None:
        told.append(progress)
        if len(told) == WANTED:
            await client.call_tool("release")

    result = await client.call_tool("hold", on_progress=note)
    assert result.content[0].text == "held"
    return told


@pytest.mark.parametrize(("binding", "era"), ROWS)
async def test_a_silent_call_is_reported_for(binding: str, era: str, tmp_path: Path) -> None:
    urls = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/s",
        "ws": "ws://127.0.0.1:0/ws",
        "http": "http://127.0.0.1:0/mcp",
        "sse": "http://127.0.0.1:0/mcp",
    }
    with trio.fail_after(30):
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            target: Any
            if binding == "stdio":
                target = StdioClientTransport([sys.executable, "-c", f"{SERVER}\nserver.run()"])
            elif binding == "memory":
                target = made_server()
            else:
                (target,) = await nursery.start(made_server().serve, urls[binding])
            if binding == "sse":
                # As an old server, whose refusal of a POST there is no JSON-RPC.
                only_sse = await stack.enter_async_context(httpx2.AsyncClient(transport=OnlyHttpSse()))
                target = HttpClientTransport(target.removesuffix("/mcp") + "/sse", client=only_sse)
            async with Client(target, era=era) as client:
                told = await beaten(client)
            nursery.cancel_scope.cancel()
    values = [each.progress for each in told]
    assert len(values) >= WANTED
    assert 0 < values[0] < 1e-6
    assert all(a < b for a, b in pairwise(values))
