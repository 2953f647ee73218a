"""Calls per second of our client against our server in the same process."""

from __future__ import annotations

import json
import sys
from typing import Literal

import trio

from benchmarks.peers.ours import server
from benchmarks.peers.ours_calls import measure
from mcp_actors import Client


async def main(era: str, window: int, seconds: float) -> None:
    mode: Literal["auto", "legacy"] = "legacy" if era == "legacy" else "auto"
    async with Client(server, era=mode) as client:
        await measure(client, window, min(0.5, seconds))
        print(json.dumps(await measure(client, window, seconds)))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
