"""Our client calls one tool that says nothing, and prints one JSON report.

Usage: our_call.py legacy|modern URL TOOL SECONDS

Its clock of 30 seconds without a sign of life stays as it is; its cap on the whole call, 300 seconds, is lifted.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Literal

import trio

from mcp_actors import Client
from mcp_actors.client import Progress


async def main(era: Literal["legacy", "modern"], url: str, tool: str, seconds: str) -> None:
    told: list[Progress] = []
    async with Client(url, era=era) as client:
        began = trio.current_time()
        result = await client.call_tool(
            tool, {"seconds": float(seconds)}, cap=math.inf, on_progress=told.append
        )
        took = trio.current_time() - began
        report = {
            "version": client.version,
            "text": result.content[0].text,
            "took": took,
            "progress": [each.progress for each in told],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
