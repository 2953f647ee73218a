"""A server that dies at every third call: ``python -m benchmarks.crashing_server``."""

from __future__ import annotations

import os

from mcp_actors import Server

__all__ = ["DIES_AT", "server"]

DIES_AT = 3

server = Server("crashing")
count = 0


@server.tool
async def next_number() -> int:
    """Counts the calls of this process, which ends in the middle of every third."""
    global count
    count += 1
    if count == DIES_AT:
        os._exit(9)
    return count


if __name__ == "__main__":
    server.run()
