"""A server of ours whose tool reports and returns in the same turn, for the tests of the last report."""

from __future__ import annotations

from mcp_actors import Context, Server
from mcp_actors._actors import inbound_call

# A client that gets no processor for a while has not read yet: how long an answer waits for that is not what is tested.
inbound_call.READING_LIMIT = 10.0

server = Server("reporting")


@server.tool
async def report(ctx: Context, times: int) -> str:
    """Reports its progress as many times as it is told, then returns at once."""
    for number in range(1, times + 1):
        await ctx.progress(number, times)
    return f"reported {times} times"
