"""What each node serves: tools whose answers say whose they are, and which node gave them.

Usage: mcp-actors serve tests/cluster/node_program.py --listen URL --shared URL -- NAME

An answer is ``TOKEN|NODE``. A client puts into each token who it is and the number of the call, so that it knows an
answer that is not its own.
"""

from __future__ import annotations

import os
import secrets

import attrs
import trio

from mcp_actors import Context, Server
from mcp_actors.tasks import Tasks

STATE_KEY = "MCP_NODES_STATE_KEY"


@attrs.define
class Counted:
    """What a session keeps."""

    id: str = attrs.Factory(lambda: secrets.token_hex(4))
    calls: int = 0


def make_server(name: str) -> Server:
    # All clients come from one address here, so that what one of them may have is what all may have.
    tasks = Tasks(ttl=300, running=4000, per_principal=100_000)
    server = Server("nodes", state_key=os.environ[STATE_KEY].encode(), extensions=[tasks])

    @server.tool
    async def echo(token: str) -> str:
        return f"{token}|{name}"

    @server.tool
    async def slow(token: str, steps: int, pause: float, ctx: Context) -> str:
        """Reports its progress, with the token, before it answers."""
        for step in range(1, steps + 1):
            await trio.sleep(pause)
            await ctx.progress(step, steps, token)
        return f"{token}|{name}"

    @server.tool
    async def count(token: str, ctx: Context) -> str:
        """Answers ``TOKEN|NODE|SESSION|CALLS`` with this session's calls of this tool, if there is one."""
        if ctx.session is None:
            return f"{token}|{name}"
        counted = ctx.session.get(Counted)
        counted.calls += 1
        return f"{token}|{name}|{counted.id}|{counted.calls}"

    @server.tool(task="optional", restartable=True)
    async def work(token: str, seconds: float, ctx: Context) -> str:
        """Is called as a task; runs again at another node when its own is gone."""
        await ctx.progress(0, 1, token)
        await trio.sleep(seconds)
        return f"{token}|{name}"

    @server.tool
    async def publish(token: str, uri: str) -> str:
        server.resource_updated(uri)
        return f"{token}|{name}"

    @server.resource("news://{topic}")
    def news(topic: str) -> str:
        return f"{topic}|{name}"

    return server
