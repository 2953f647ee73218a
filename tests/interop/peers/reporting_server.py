"""A server of ours whose tool reports and returns in the same turn, for the tests of the last report.

Usage: reporting_server.py [URL]; without one over stdio.
"""

from __future__ import annotations

import sys

from mcp_actors import Context, Server

server = Server("reporting")


@server.tool
async def report(ctx: Context, times: int) -> str:
    """Reports its progress as many times as it is told, then returns at once."""
    for number in range(1, times + 1):
        await ctx.progress(number, times)
    return f"reported {times} times"


if __name__ == "__main__":
    server.run(*sys.argv[1:])
