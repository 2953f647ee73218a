"""Calls that were cancelled leave nothing behind in their server, with Python's collector switched off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from mcp_actors import Client

# Calls that are kept hold 125 MiB together, which is twice as much as is allowed.
CALLS = int(os.environ.get("MCP_KEPT_CALLS", "510"))
PAYLOAD = "x" * 256 * 1024
MEBIBYTE = 1024 * 1024
ALLOWED = 60 * MEBIBYTE

SERVER = """
import gc, os, sys
import trio
from mcp_actors import Server

server = Server("kept")

@server.tool
async def hangs(payload: str) -> str:
    await trio.sleep_forever()
    return ""

@server.tool
async def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main() -> None:
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, sys.argv[1])
        print(where, flush=True)

if __name__ == "__main__":
    gc.collect()
    gc.disable()
    if len(sys.argv) == 1:
        server.run()
    else:
        trio.run(main)
"""

BINDINGS = [
    ("stdio", "legacy"),
    ("stdio", "modern"),
    ("http://127.0.0.1:0/mcp", "legacy"),
    ("http://127.0.0.1:0/mcp", "modern"),
    ("ws://127.0.0.1:0/ws", "legacy"),
    ("tcp://127.0.0.1:0", "modern"),
]


@contextmanager
def served(program: Path, url: str) -> Iterator[str]:
    if url == "stdio":
        yield f"stdio:{sys.executable} {program}"
        return
    with subprocess.Popen([sys.executable, str(program), url], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


async def in_flight_at_once(client: Client, count: int) -> None:
    """Makes calls and leaves them when they have arrived, which an answer to a later call shows."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(client.call_tool, "hangs", {"payload": PAYLOAD})
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("resident")
        nursery.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.parametrize(("url", "era"), BINDINGS, ids=lambda value: value.partition(":")[0])
async def test_cancelled_calls_keep_nothing(tmp_path: Path, url: str, era: str) -> None:
    program = tmp_path / "kept.py"
    program.write_text(SERVER)
    with served(program, url) as target:
        async with Client(target, era=era) as client:
            await in_flight_at_once(client, 30)
            before = int((await client.call_tool("resident")).content[0].text)
            for _ in range(CALLS // 30):
                await in_flight_at_once(client, 30)
            after = int((await client.call_tool("resident")).content[0].text)
    assert after - before < ALLOWED
