"""The asyncio loop of the engine's own, at the end of a program and in a fork of one."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = """
import asyncio, os, sys, threading, trio
from mcp_actors import Client, Server
server = Server("x")
hanging = threading.Event()

@server.tool(loop="asyncio")
async def works() -> str:
    return await asyncio.sleep(0, threading.current_thread().name)

@server.tool(loop="asyncio")
async def hangs() -> None:
    try:
        hanging.set()
        await asyncio.sleep(1000)
    finally:
        print("cancelled", flush=True)

@server.tool(loop="asyncio")
async def leaves() -> None:
    global left
    left = asyncio.create_task(hangs())
    await asyncio.sleep(0)

async def call(name):
    async with Client(server) as client:
        return (await client.call_tool(name)).text
"""

ENDS = {
    "idle": ("print(trio.run(call, 'works'))", "mcp-actors-asyncio\n"),
    "never used": ("print('nothing')", "nothing\n"),
    "with a task": ("trio.run(call, 'leaves')", "cancelled\n"),
    "with a call": (
        """
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "hangs")
        await trio.to_thread.run_sync(hanging.wait)
        nursery.cancel_scope.cancel()
trio.run(main)
""",
        "cancelled\n",
    ),
    "with a call of a daemon thread": (
        """
began = threading.Event()
@server.tool(loop="asyncio")
async def begins() -> None:
    began.set()
    await asyncio.sleep(1000)
threading.Thread(target=trio.run, args=(call, "begins"), daemon=True).start()
began.wait()
print("ends")
""",
        "ends\n",
    ),
    "in a fork": (
        """
# From 3.12 on CPython says of every fork beside threads that it may hang.
import warnings; warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
print(trio.run(call, "works"), flush=True)
if os.fork() == 0:
    print("child", trio.run(call, "works"), flush=True)
    sys.exit(0)
print(os.wait()[1])
""",
        "mcp-actors-asyncio\nchild mcp-actors-asyncio\n0\n",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_and_leaves_nothing(end: str) -> None:
    program, printed = ENDS[end]
    result = subprocess.run(
        [sys.executable, "-c", SERVER + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == (printed, "", 0)


def test_a_server_without_such_functions_imports_no_asyncio() -> None:
    program = "import sys, mcp_actors; mcp_actors.Server('x').add_tool(lambda: None, name='t')\n"
    asks = "print('mcp_actors.bridges.asyncio_bridge' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program + asks], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "False\n"
