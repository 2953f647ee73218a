"""A trace from an official client over a hop to a server: each process exports its spans, and they are one tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.telemetry import Metrics
from mcp_transports.http.server import HttpServerTransport, metrics_page
from tests.telemetry.collector import Collector
from tests.telemetry.spans import tree

from .installation import Peers
from .servers import DRIVERS, Launch, Served, free_port

# -- Prometheus itself scrapes the page of metrics -------------------------------------------------------

PATIENCE = 150.0
CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: mcp
    static_configs: [{{targets: ["{place}"]}}]
"""


def asked(base: str, path: str) -> Any:
    with urlopen(f"{base}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)["data"]


def numbers(base: str, query: str) -> dict[str, float]:
    """What Prometheus answers, once it has anything: by the label ``target``."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            found = asked(base, f"/api/v1/query?query={quote(query)}")["result"]
        except OSError:
            found = []
        if found or time.monotonic() > until:
            return {each["metric"].get("target", ""): float(each["value"][1]) for each in found}
        time.sleep(0.1)


@contextmanager
def prometheus(program: str, folder: Path, base: str) -> Iterator[None]:
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    command += [f"--web.listen-address={base.removeprefix('http://')}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.usefixtures("peers")
async def test_prometheus_scrapes_the_page(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is not installed: apt-get install prometheus"
    metrics = Metrics()
    server = Server("scraped", telemetry=metrics)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/metrics": metrics_page(metrics)})
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)
        async with Client(url) as client:
            for _ in range(7):
                await client.call_tool("add", {"a": 1, "b": 2})
        (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(place=url.split("/")[2]))
        base = f"http://127.0.0.1:{free_port()}"
        with prometheus(program, tmp_path, base):
            query = 'mcp_actors_calls_total{side="server",mcp_method_name="tools/call",ending="answered"}'
            assert await trio.to_thread.run_sync(numbers, base, query) == {"add": 7}
            median = "histogram_quantile(0.5, mcp_server_operation_duration_seconds_bucket{target='add'})"
            assert set(await trio.to_thread.run_sync(numbers, base, median)) == {"add"}
            assert await trio.to_thread.run_sync(numbers, base, "mcp_actors_limiter_inside") == {"": 0}
            target = {"health": "never asked"}
            with trio.move_on_after(PATIENCE):
                # One scrape may take longer than it may on a busy machine, and another one comes.
                while target["health"] != "up":
                    (target,) = (await trio.to_thread.run_sync(asked, base, "/api/v1/targets"))[
                        "activeTargets"
                    ]
            assert (target["health"], target["lastError"]) == ("up", "")
            described = await trio.to_thread.run_sync(
                asked, base, "/api/v1/metadata?metric=mcp_actors_sessions"
            )
            assert described["mcp_actors_sessions"][0]["type"] == "gauge"
        nursery.cancel_scope.cancel()


# -- A trace from an official client over a hop to a server is one tree ----------------------------------

LIMIT = 150.0
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
