"""A trace from an official client over a hop to a server: each process exports its spans, and they are one tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.telemetry.collector import Collector
from tests.telemetry.spans import tree

from .installation import Peers
from .servers import DRIVERS, Launch, Served

LIMIT = 60.0
LEAF = """
from mcp_actors import Server
server = Server("leaf-server")

@server.tool
async def leaf() -> str:
    return "from the leaf"
"""
HOP = """
import os
from mcp_actors import Client, Context, Server
server = Server("hop-server")

@server.tool
async def hop(ctx: Context) -> str:
    async with Client(os.environ["LEAF"], telemetry=server.telemetry) as client:
        return (await client.call_tool("leaf")).text
"""
TREE = """\
official-client: a person's question INTERNAL
  official-client: MCP send tools/call hop CLIENT
    hop-server: tools/call hop SERVER
      hop-server: server/discover CLIENT
        leaf-server: server/discover SERVER
      hop-server: tools/call leaf CLIENT
        leaf-server: tools/call leaf SERVER
  official-client: MCP send tools/list CLIENT
    hop-server: tools/list SERVER"""


def serve(folder: Path, name: str, program: str, environment: dict[str, str]) -> Served:
    path = folder / f"{name}.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mcp_actors", "serve", str(path), "--telemetry", "otel"]
    return Served(
        Launch([*command, "--listen", "http://127.0.0.1:0/mcp"], r"127\.0\.0\.1:(\d+)/mcp\s*$", environment)
    )


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_trace_from_an_official_client_over_a_hop(peers: Peers, mode: str, tmp_path: Path) -> None:
    with Collector() as collector, ExitStack() as stack:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        leaf = serve(tmp_path, "leaf", LEAF, environment)
        stack.callback(leaf.stop)
        environment["LEAF"] = f"http://127.0.0.1:{leaf.port()}/mcp"
        hop = serve(tmp_path, "hop", HOP, environment)
        stack.callback(hop.stop)
        driver = [str(peers.python), str(DRIVERS / "traced_client.py"), sysconfig.get_path("purelib")]
        done = subprocess.run(
            [*driver, collector.url, mode, f"http://127.0.0.1:{hop.port()}/mcp"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env=os.environ,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.strip() == "from the leaf"
        # What is left is exported when they end.
        assert [hop.stop(), leaf.stop()] == [0, 0], hop.output + leaf.output
    spans = sorted(collector.spans, key=lambda span: span[-1])
    (question,) = {trace for _, trace, _, _, name, _, _ in spans if name == "a person's question"}
    of_the_question = [
        (id, parent, f"{service}: {name} {kind}")
        for service, trace, id, parent, name, kind, _ in spans
        if trace == question
    ]
    found = tree(of_the_question)
    print(found)
    assert found == TREE
