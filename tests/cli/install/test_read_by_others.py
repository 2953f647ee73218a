"""Programs of others read the file that was written, and start the server from it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.installation import Peers

from tests.cli.conftest import Ran

SERVER = """
import os
from mcp_actors import Server

server = Server("installed")

@server.tool
def told() -> str:
    return os.environ["KEY"] + " in " + os.getcwd()
"""
# The entry is handed on as it is: the SDK adds the variables that it lets servers have.
WITH_THE_SDK = """
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    (entry,) = json.load(open(sys.argv[1]))["mcpServers"].values()
    entry.pop("type", None)
    async with stdio_client(StdioServerParameters(**entry)) as (reading, writing):
        async with ClientSession(reading, writing) as session:
            await session.initialize()
            print((await session.call_tool("told", {})).content[0].text)

asyncio.run(main())
"""
# It reads files of this form itself.
WITH_FASTMCP = """
import asyncio, json, sys
from fastmcp import Client

async def main():
    async with Client(json.load(open(sys.argv[1]))) as client:
        print((await client.call_tool("told", {})).content[0].text)

asyncio.run(main())
"""


@pytest.mark.parametrize("client", ["cursor", "claude-desktop"])
def test_programs_of_others_start_what_was_installed(
    peers: Peers, mcp: Callable[..., Ran], tmp_path: Path, environment: dict[str, str], client: str
) -> None:
    environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    (tmp_path / "server.py").write_text(SERVER)
    words = ["--client", client, "--config", "mcp.json", "--env", "KEY=a key"]
    installed = mcp("install", "server.py", *words, "--yes")
    assert installed.returncode == 0, installed.stderr
    assert list(json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]) == ["installed"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for python, program in ((peers.python_v1, WITH_THE_SDK), (peers.fastmcp, WITH_FASTMCP)):
        done = subprocess.run(
            [str(python), "-c", program, str(tmp_path / "mcp.json")],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == f"a key in {elsewhere}", done.stderr
