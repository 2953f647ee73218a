"""A client with two children, each of which has started a process: prints the four numbers, and waits."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from mcp_actors import Client
from mcp_transports.stdio import StdioClientTransport


async def main() -> None:
    child = StdioClientTransport([sys.executable, str(Path(__file__).with_name("served.py"))])
    async with Client(child, timeout=120) as first, Client(child, timeout=120) as second:
        for client, detached in ((first, False), (second, True)):
            for tool, words in (("pid", {}), ("start_another", {"detached": detached})):
                print(await client.call_tool(tool, words, returns=int), end=" ")
        print(flush=True)
        await trio.sleep_forever()


trio.run(main)
