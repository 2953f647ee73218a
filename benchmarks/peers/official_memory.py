"""Calls per second of the official client against an official server in the same process."""

from __future__ import annotations

import asyncio
import json
import sys

from mcp import Client

from benchmarks.peers.official import server
from benchmarks.peers.official_calls import measure


async def main(era: str, window: int, seconds: float) -> None:
    async with Client(server, mode="legacy" if era == "legacy" else "auto") as client:
        await measure(client, window, min(0.5, seconds))
        print(json.dumps(await measure(client, window, seconds)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
