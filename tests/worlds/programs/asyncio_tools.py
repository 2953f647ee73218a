"""An asyncio program that serves tools which run in its own loop: ``asyncio_tools.py PORT``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import mcp_actors.asyncio
from mcp_actors import Context, Server

server = Server("tools", version="1")
seen = {"running": 0, "cancelled": 0}
ENDINGS: dict[str, Callable[[], object]] = {
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
    "loop closed": lambda: asyncio.get_running_loop().stop(),
}


@server.tool(loop="asyncio")
async def steps(ctx: Context) -> str:
    """Three reports of progress."""
    for number in range(3):
        await ctx.progress(number + 1, total=3)
        await asyncio.sleep(0)
    return "all steps"


@server.tool(loop="asyncio")
async def ask(ctx: Context) -> str:
    """What a person says."""
    answer = await ctx.elicit("Your name?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"{answer.action} {answer.content}"


@server.tool(loop="asyncio")
async def slow() -> str:
    """It never ends by itself."""
    seen["running"] += 1
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen["cancelled"] += 1
        raise
    return ""


@server.tool(loop="asyncio")
async def state() -> dict[str, int]:
    """What became of slow calls."""
    return seen


@server.tool(loop="asyncio")
async def end(how: str) -> str:
    """Ends the program."""
    ENDINGS[how]()
    await asyncio.Event().wait()
    return ""


def until_nobody_listens(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)


def main(port: int) -> None:
    loop = asyncio.new_event_loop()
    serving = loop.create_task(mcp_actors.asyncio.serve(server, f"http://127.0.0.1:{port}/mcp"))
    try:
        loop.run_forever()
    except KeyboardInterrupt:
        serving.cancel()
        loop.run_until_complete(asyncio.wait([serving]))
        print("interrupted", flush=True)
        loop.close()
        return
    loop.close()
    until_nobody_listens(port)
    threads = [each.name for each in threading.enumerate()[1:] if not each.daemon]
    print(json.dumps({"ended": True, "threads": threads}), flush=True)
    serving._log_destroy_pending = False  # type: ignore[attr-defined] # it is this program that has dropped it


if __name__ == "__main__":
    main(int(sys.argv[1]))
