"""Our client, in a loop: ``client_ours WORK``; the work is JSON, as is what is printed. See `scenarios.clients`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import trio

from benchmarks.suite.loading import load_files
from benchmarks.suite.programs.calling import measure
from mcp_actors import Client, Server
from mcp_actors.errors import ConnectFailed

CONNECT_WITHIN_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.02


async def main(work: dict[str, Any]) -> None:
    target: Server | str = work["url"]
    if work["url"] == "memory:":
        target = importlib.import_module("benchmarks.suite.programs.ours").server
    load_files(work["loads"])
    deadline = time.monotonic() + CONNECT_WITHIN_SECONDS
    async with AsyncExitStack() as stack:
        while True:
            try:
                client = await stack.enter_async_context(
                    Client(target, era="legacy" if work["era"] == "legacy" else "auto")
                )
                break
            except ConnectFailed:
                # The server may be one that has just been started.
                if time.monotonic() > deadline:
                    raise
                await trio.sleep(LOOK_EVERY_SECONDS)

        async def add(number: int) -> int:
            result = await client.call_tool("add", {"a": number, "b": 1})
            total: int = result.structured_content["total"]
            return total

        await measure(add, max(work["windows"]), work["warm_up"])
        print(json.dumps([await measure(add, window, work["seconds"]) for window in work["windows"]]))


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
