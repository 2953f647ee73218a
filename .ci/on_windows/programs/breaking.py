"""A client whose child ends in order by Ctrl-Break alone. Prints whether it did; it needs a console."""

from __future__ import annotations

import sys

import trio

from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.windows.kernel32 import kernel32

CHILD = """
import signal, sys, time
signal.signal(signal.SIGBREAK, lambda *_: sys.exit("ended in order"))
print("ready", flush=True)
while True: time.sleep(0.05)
"""


async def main() -> None:
    child = StdioClientTransport([sys.executable, "-c", CHILD], grace=0.5, kill_after=5, stderr=None)
    async with child.connect() as channel:
        await channel.receive()
    print("console", kernel32().has_console(), channel.loss_report(), flush=True)


trio.run(main)
