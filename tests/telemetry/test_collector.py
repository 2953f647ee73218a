"""Spans on their way to a collector that is away, slow or refuses them: no call waits, and what is lost is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from mcp_actors import Client, Server
from mcp_actors.cli.observing import sampling
from mcp_actors.telemetry.otel import OpenTelemetry

from .collector import Collector

CALLS, QUEUE, BATCH = 200, 32, 16
PROGRAM = """
from mcp_actors import Server
server = Server("served")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""


def adding(tracers: TracerProvider) -> Server:
    server = Server("exports", telemetry=OpenTelemetry(tracer_provider=tracers))

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


def dropped(reader: InMemoryMetricReader) -> int:
    """The spans that the SDK says it has dropped because its queue was full."""
    data: Any = reader.get_metrics_data()
    return sum(
        point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otel.sdk.processor.span.processed"
        for point in metric.data.data_points
        if point.attributes.get("error.type") == "queue_full"
    )


async def test_spans_arrive() -> None:
    with Collector() as collector:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
        telemetry = OpenTelemetry(tracer_provider=tracers)
        async with Client(adding(tracers), telemetry=telemetry) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
        await trio.to_thread.run_sync(tracers.shutdown)
    ids = {(name, kind): (id, parent) for _, _, id, parent, name, kind, _ in collector.spans}
    assert ids["tools/call add", "SERVER"][1] == ids["tools/call add", "CLIENT"][0]


@pytest.mark.parametrize("trouble", ["away", "slow", "refusing"])
async def test_nothing_waits_for_a_collector(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    reader = InMemoryMetricReader()
    with Collector(503) as collector:
        url = f"{collector.url}/v1/traces"
        if trouble == "slow":
            collector.answers.clear()
        elif trouble == "away":
            # Nobody listens on the port of discarding.
            url = "http://127.0.0.1:9/v1/traces"
        tracers = TracerProvider(shutdown_on_exit=False)
        exporter = OTLPSpanExporter(url)
        meters = MeterProvider([reader], shutdown_on_exit=False)
        tracers.add_span_processor(
            BatchSpanProcessor(
                exporter, max_queue_size=QUEUE, max_export_batch_size=BATCH, meter_provider=meters
            )
        )
        async with Client(adding(tracers)) as client:
            for number in range(CALLS):
                assert (await client.call_tool("add", {"a": number, "b": 1})).text == str(number + 1)
        # All were answered while the collector took none. The queue and one batch is what the SDK has kept.
        assert collector.spans == []
        assert CALLS - QUEUE - 2 * BATCH <= dropped(reader) <= CALLS
        collector.status = 200
        collector.answers.set()
        exporter.shutdown()
        await trio.to_thread.run_sync(tracers.shutdown)


def started(program: Path, collector: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mcp_actors", "serve", str(program), "--telemetry", "otel"]
    command += ["--listen", "http://127.0.0.1:0/mcp", "--metrics", "/metrics"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("trouble", [None, "slow"])
async def test_the_command_line(trouble: str | None, tmp_path: Path) -> None:
    program = tmp_path / "served.py"
    program.write_text(PROGRAM)
    with Collector() as collector:
        if trouble == "slow":
            collector.answers.clear()
        with started(program, collector.url) as process:
            assert process.stderr is not None
            line = await trio.to_thread.run_sync(process.stderr.readline)
            url = line.split(" at ")[1].strip()
            async with Client(url) as client:
                await client.call_tool("add", {"a": 1, "b": 2})
            page = await trio.to_thread.run_sync(page_of, url)
            process.send_signal(signal.SIGTERM)
            # A collector that never answers gets two seconds at the end.
            assert await trio.to_thread.run_sync(process.wait, 20) == 0
        names = {name for _, _, _, _, name, _, _ in collector.spans}
        services = {service for service, *_ in collector.spans}
        durations = collector.durations.get("mcp.server.operation.duration", [])
    assert 'target="add"' in page
    if trouble:
        assert (names, services, durations) == (set(), set(), [])
    else:
        assert (names, services) == ({"server/discover", "tools/call add"}, {"served"})
        # What is left is sent at the end of the process.
        assert [(point.count, len(point.bucket_counts)) for point in durations] == [(1, 15), (1, 15)]
        assert "mcp_actors.clients" in collector.metrics
        assert {value.value.string_value for point in durations for value in point.attributes} == {
            "server/discover",
            "tools/call",
            "add",
            "execute_tool",
        }


CALLING = """
import sys, trio
from mcp_actors import Client, Server
from mcp_actors.cli.observing import observe
server = Server("sampled")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with Client(server) as client:
        for _ in range(300):
            await client.call_tool("add", {"a": 1, "b": 2})

observe(server, None, "otel", None)
trio.run(main)
"""


@pytest.mark.parametrize(
    ("sampler", "argument", "share", "most_traces"),
    [
        ("parentbased_traceidratio", "0", 0.0, None),
        ("PARENTBASED_TRACEIDRATIO", "0.5", 0.5, None),
        ("parentbased_traceidratio", "all", None, None),
        ("parentbased_traceidratio", "2", None, None),
        ("traceidratio", "0", None, None),
        ("always_on", "", None, None),
        ("", "", None, 20),
    ],
)
def test_samplers_of_the_environment(
    sampler: str,
    argument: str,
    share: float | None,
    most_traces: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    # What is not decided before, the SDK decides: by its own sampler of the environment.
    assert sampling() == (share, most_traces, None if share is None else DEFAULT_ON)


@pytest.mark.parametrize(("sampler", "least", "most"), [("parentbased_traceidratio", 60, 240), ("", 20, 299)])
async def test_the_sampler_of_the_environment(sampler: str, least: int, most: int) -> None:
    with Collector() as collector:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_TRACES_SAMPLER": sampler,
            "OTEL_TRACES_SAMPLER_ARG": "0.5",
        }
        command = [sys.executable, "-c", CALLING]
        await trio.run_process(command, env=environment, capture_stderr=True)
        assert least <= len([each for each in collector.spans if each[4] == "tools/call add"]) <= most
        # Each call is counted, whether it is sampled or not.
        points = collector.durations["mcp.server.operation.duration"]
        assert max(point.count for point in points) == 300


def page_of(url: str) -> str:
    with urlopen(url.replace("/mcp", "/metrics"), timeout=10) as answer:
        return str(answer.read().decode())
