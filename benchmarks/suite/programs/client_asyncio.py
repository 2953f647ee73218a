"""Our client in an asyncio program, in a loop: ``client_asyncio WORK``. See `scenarios.clients`."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from typing import Any

from benchmarks.suite.loading import load_files
from benchmarks.suite.programs.calling_asyncio import measure
from mcp_actors import Server
from mcp_actors.asyncio import Client
from mcp_actors.errors import ConnectFailed

CONNECT_WITHIN_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.02


async def opened(work: dict[str, Any]) -> Client:
    target: Server | str = work["url"]
    if work["url"] == "memory:":
        target = importlib.import_module("benchmarks.suite.programs.ours").server
    deadline = time.monotonic() + CONNECT_WITHIN_SECONDS
    while True:
        try:
            return await Client(target, era="legacy" if work["era"] == "legacy" else "auto").open()
        except ConnectFailed:
            # The server may be one that has just been started.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(LOOK_EVERY_SECONDS)


async def main(work: dict[str, Any]) -> None:
    load_files(work["loads"])
    client = await opened(work)
    try:

        async def add(number: int) -> int:
            result = await client.call_tool("add", {"a": number, "b": 1})
            total: int = result.structured_content["total"]
            return total

        await measure(add, max(work["windows"]), work["warm_up"])
        print(json.dumps([await measure(add, window, work["seconds"]) for window in work["windows"]]))
    finally:
        await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
