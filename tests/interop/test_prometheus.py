"""Prometheus itself scrapes the page of metrics."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.telemetry import Metrics
from mcp_transports.http.server import HttpServerTransport, metrics_page

from .servers import free_port

PATIENCE = 60.0
CONFIGURATION = """
global: {{scrape_interval: 250ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: mcp
    static_configs: [{{targets: ["{place}"]}}]
"""


def asked(base: str, path: str) -> Any:
    with urlopen(f"{base}{path}", timeout=5) as answer:
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
            targets = await trio.to_thread.run_sync(asked, base, "/api/v1/targets")
            (target,) = targets["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            described = await trio.to_thread.run_sync(
                asked, base, "/api/v1/metadata?metric=mcp_actors_sessions"
            )
            assert described["mcp_actors_sessions"][0]["type"] == "gauge"
        nursery.cancel_scope.cancel()
