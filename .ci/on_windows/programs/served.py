"""The server that is called in these checks: plain answers, and tools that do things to its process.

With the name of a file as its argument it writes there, once `Server.run` has returned, that it ended in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import trio

from mcp_actors import Context, Server

server = Server("served", version="1.0")
# Of Windows: a process without a console, in a group of its own. Such a one outlives a window that is closed.
_DETACHED = 0x8 | 0x200
# On a busy machine Wine sometimes says so of a process that it then starts at the second attempt.
_INTERNAL_ERROR = 1359


@server.tool
async def forecast(city: str, days: int = 3, *, ctx: Context) -> dict[str, list[int]]:
    """Forecast for a city."""
    for day in range(1, days + 1):
        await ctx.progress(day, days, f"asking for day {day}")
        await trio.sleep(0.01)
    return {city: [20 + day for day in range(days)]}


cancelled = 0


@server.tool
async def wait_for_ever() -> str:
    """Ends when it is cancelled."""
    global cancelled
    try:
        await trio.sleep_forever()
    finally:
        cancelled += 1


@server.tool
def count_cancelled() -> int:
    """How many waits were cancelled."""
    return cancelled


@server.tool
def in_a_thread(text: str) -> str:
    """A sync function."""
    time.sleep(0.01)
    return f"{text} ä"


@server.resource("weather://{city}/now")
def now(city: str) -> str:
    return f"{city}: sunny"


# -- What it does to its process -------------------------------------------------------------------


@server.tool
def pid() -> int:
    """The number of this process."""
    return os.getpid()


@server.tool
def start_another(detached: bool = False) -> int:
    """Starts a process that goes on, and returns its number."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    flags = _DETACHED if detached else 0
    try:
        return subprocess.Popen(command, creationflags=flags).pid
    except OSError as error:
        if getattr(error, "winerror", 0) != _INTERNAL_ERROR:
            raise
        return subprocess.Popen(command, creationflags=flags).pid


@server.tool
def arguments() -> list[str]:
    """What this process was started with."""
    return sys.argv


@server.tool
def variable(name: str) -> str:
    """A variable of the environment as Python writes it."""
    return repr(os.environ.get(name))


@server.tool
def speak() -> str:
    """Writes to standard output in every way there is, and starts a program that reads standard input."""
    print("printed")
    os.write(1, b"written\n")
    os.system("echo said by a command")
    command = [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@server.tool
def complain(text: str) -> None:
    """Writes to standard error as Python does, in the code page."""
    print(text, file=sys.stderr, flush=True)


@server.tool
def die(code: int) -> None:
    """Ends this process at once."""
    os._exit(code)


if __name__ == "__main__":
    server.run()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("ended in order", encoding="utf-8")
