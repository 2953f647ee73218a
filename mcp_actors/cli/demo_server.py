"""The server of the demo, in memory and as ``mcp-actors serve mcp_actors.cli.demo_server``."""

from __future__ import annotations

from collections import Counter

import trio

from mcp_actors import Context, Server

__all__ = ["HOLD_SECONDS", "server"]

HOLD_SECONDS = 60.0  # far longer than anybody waits: a held call ends by being cancelled


def server() -> Server:
    """A server that counts, for each session by the name it gives itself, how many of its handlers were cancelled."""
    app = Server("demo", instructions="Answers the demo of mcp-actors.")
    seen_cancelled: Counter[str] = Counter()

    @app.tool
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @app.tool
    async def steps(count: int, ctx: Context) -> int:
        """Reports progress ``count`` times."""
        for step in range(count):
            await ctx.progress(step + 1, count, f"step {step + 1}")
        return count

    @app.tool
    async def hold(who: str, ctx: Context) -> str:
        """Says that it has begun, then waits to be cancelled and counts it."""
        try:
            await ctx.progress(0, None, "holding")
            await trio.sleep(HOLD_SECONDS)
        except trio.Cancelled:
            seen_cancelled[who] += 1
            raise
        return "nobody cancelled this"

    @app.tool
    async def cancellations(who: str) -> int:
        """Returns the number of held calls of ``who`` that were cancelled."""
        return seen_cancelled[who]

    return app
