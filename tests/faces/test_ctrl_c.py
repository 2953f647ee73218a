"""Ctrl-C, and the end of a program that has closed nothing, before a server that writes all messages down."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import json, sys
written = open(sys.argv[1], "a", buffering=1)
say = lambda **message: print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    written.write(json.dumps(message) + "\\n")
    params = message.get("params", {})
    if message["method"] == "initialize":
        say(id=message["id"], result={"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                                      "serverInfo": {"name": "writes", "version": "1"}})
    elif message["method"] == "tools/call":
        token = params["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
written.write(json.dumps({"method": "end"}) + "\\n")
"""
SYNC = """
import sys
from mcp_actors.sync import Client
with Client([sys.executable, *sys.argv[1:]], era="legacy") as client:
    client.call_tool("wait", on_progress=lambda progress: print("began", flush=True))
"""
ASYNCIO = """
import asyncio, sys
from mcp_actors.asyncio import Client
async def main():
    async with Client([sys.executable, *sys.argv[1:]], era="legacy") as client:
        await client.call_tool("wait", on_progress=lambda progress: print("began", flush=True))
asyncio.run(main())
"""
LEFT_OPEN = """
import sys, threading
from mcp_actors.sync import Client
client = Client([sys.executable, *sys.argv[1:]], era="legacy").open()
began = threading.Event()
call = lambda: client.call_tool("wait", on_progress=lambda progress: began.set())
threading.Thread(target=call, daemon=True).start()
began.wait()
"""
LEFT_OPEN_BY_A_LOOP = """
import asyncio, sys
from mcp_actors.asyncio import Client
async def main():
    global client, call
    client = await Client([sys.executable, *sys.argv[1:]], era="legacy").open()
    began = asyncio.Event()
    call = asyncio.create_task(client.call_tool("wait", on_progress=lambda progress: began.set()))
    await began.wait()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""

FORKED = """
import os
from mcp_actors import Server
from mcp_actors.sync import Client
server = Server("s")
server.add_tool(lambda: 3, name="three")
client = Client(server).open()
child = os.fork()
if child == 0:
    try:
        client.call_tool("three")
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    client.close()
    with Client(server) as own:
        print(own.call_tool("three").structured_content, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(client.call_tool("three").structured_content)
client.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return [str(path), str(tmp_path / "written")]


def written(server: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(server[1]).read_text().splitlines()]


@pytest.mark.parametrize("program", [SYNC, ASYNCIO], ids=["sync", "asyncio"])
def test_ctrl_c_cancels_the_call_at_the_server(program: str, server: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program, *server], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "began\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    assert said.rstrip().endswith("KeyboardInterrupt")
    # The interrupt shows the frames of whatever function it has met.
    lines = [line for line in said.splitlines() if not line.startswith(("  File ", "    "))]
    assert "trio" not in "".join(lines).lower()
    messages = written(server)
    call = next(each for each in messages if each["method"] == "tools/call")
    cancelled = next(each for each in messages if each["method"] == "notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert messages[-1]["method"] == "end"


@pytest.mark.parametrize("program", [LEFT_OPEN, LEFT_OPEN_BY_A_LOOP], ids=["sync", "asyncio"])
def test_a_program_that_closes_nothing_ends_and_leaves_nothing(program: str, server: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program, *server], capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert written(server)[-1]["method"] == "end"


def test_a_fork_has_clients_of_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=20, check=True
    )
    refused, *results = ran.stdout.splitlines()
    assert refused.startswith("EngineStopped this belongs to the process that forked this one")
    assert results == ["3", "3"]
