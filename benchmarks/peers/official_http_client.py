"""Calls per second of the official client over HTTP, against the server whose URL it is given."""

from __future__ import annotations

import asyncio
import json
import sys

from mcp import Client

from benchmarks.peers.official_calls import measure


async def main(url: str, era: str, window: int, seconds: float) -> None:
    async with Client(url, mode="legacy" if era == "legacy" else "auto") as client:
        await measure(client, window, min(0.5, seconds))
        print(json.dumps(await measure(client, window, seconds)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
