"""What is deployed: tools that take their time, a resource that changes, and a note of each client that begins anew.

Usage: mcp-actors serve tests/deploys/served.py … -- NOTES [REDIS]
"""

from __future__ import annotations

import os
from pathlib import Path

import trio

from mcp_actors import Context, Server
from mcp_actors.abc.telemetry import ObservedRequest, Telemetry
from mcp_actors.shared.redis import RedisShared
from mcp_actors.tasks import Tasks

STATE_KEY = "MCP_DEPLOYS_STATE_KEY"
# Seconds: a machine that has no moment for its programs is not what these tests are about.
REDIS_TIMEOUT = 20.0


class Begun(Telemetry):
    """Notes which client begins a session: each has its name behind the ``?`` of its URL."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def inbound(self, request: ObservedRequest) -> None:
        if request.method == "initialize" and request.http is not None:
            with self._notes.open("a") as file:
                file.write(f"{request.http.query}\n")


def make_server(notes: str, redis: str = "") -> Server:
    # All clients come from one address here, so that what one of them may have is what all may have.
    server = Server(
        "deployed",
        state_key=os.environ[STATE_KEY].encode(),
        shared=RedisShared(redis, timeout=REDIS_TIMEOUT, lease=2 * REDIS_TIMEOUT) if redis else None,
        telemetry=Begun(Path(notes)),
        extensions=[Tasks(ttl=120, running=1000, per_principal=10_000)],
    )

    @server.tool
    async def work(token: str, seconds: float, steps: int, ctx: Context) -> str:
        """Reports so many times how far it is, and answers with the token."""
        for step in range(1, steps + 1):
            await trio.sleep(seconds / steps)
            await ctx.progress(step, steps)
        return token

    @server.tool(task="optional", restartable=True)
    async def job(token: str, seconds: float) -> str:
        await trio.sleep(seconds)
        return token

    @server.tool
    async def change(topic: str) -> str:
        server.resource_updated(f"news://{topic}")
        return topic

    @server.resource("news://{topic}")
    def news(topic: str) -> str:
        return topic

    return server
