"""Metrics: what is counted, what becomes a label, and the page that Prometheus reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from mcp_actors import Client, Server
from mcp_actors.abc.telemetry import CallEnding, ObservedRequest
from mcp_actors.cli.observing import sampling
from mcp_actors.errors import RpcError
from mcp_actors.supervision import histogram as supervision_histogram
from mcp_actors.supervision.containment import crash_log, http_refusals
from mcp_actors.telemetry import MOST_SERIES, Metrics, Together
from mcp_actors.telemetry.metrics import GAUGES
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_transports.http.server import HttpServerTransport, Refusal, metrics_page

from .collector import Collector
from .recorder import Recorder

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
PAIR = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def read(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of a page by their names; fails for a line that is neither a sample nor a comment, or is twice."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    seen: set[str] = set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        matched = LINE.fullmatch(line)
        assert matched is not None, line
        series = line.rpartition(" ")[0]
        assert series not in seen, line
        seen.add(series)
        labels = dict(PAIR.findall(matched[2] or ""))
        found.setdefault(matched[1], []).append((labels, float(matched[3])))
    return found


def value(text: str, name: str, **labels: str) -> float:
    return sum(number for found, number in read(text)[name] if labels.items() <= found.items())


def adding(telemetry: Any, name: str = "adder") -> Server:
    server = Server(name, telemetry=telemetry)

    @server.tool
    async def add(a: int, b: int) -> int:
        await trio.sleep(0.3)
        return a + b

    return server


async def test_calls_by_method_name_and_ending(autojump_clock: object) -> None:
    metrics = Metrics()
    async with Client(adding(metrics), telemetry=metrics) as client:
        for _ in range(3):
            await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(RpcError):
            await client.call_tool("nobody's tool", {})
        await client.list_tools()
        page = metrics.text()
    calls = "mcp_actors_calls_total"
    assert value(page, calls, side="server", target="add", ending="answered") == 3
    assert value(page, calls, side="client", target="add", ending="answered") == 3
    assert value(page, calls, side="server", target="other", ending="error", code="-32602") == 1
    assert value(page, calls, side="client", target="nobody's tool", ending="error") == 1
    assert value(page, calls, side="server", mcp_method_name="tools/list") == 1
    name = "mcp_server_operation_duration_seconds"
    assert value(page, f"{name}_count", target="add") == 3
    assert value(page, f"{name}_sum", target="add") == pytest.approx(0.9)
    assert [value(page, f"{name}_bucket", target="add", le=le) for le in ("0.2", "0.5", "+Inf")] == [0, 3, 3]


async def test_what_a_server_holds_and_has_counted(autojump_clock: object) -> None:
    metrics = Metrics()
    server = adding(metrics)
    async with Client(server, telemetry=metrics) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "add", {"a": 1, "b": 2})
        await trio.sleep(0.1)
        page = metrics.text()
        assert value(page, "mcp_actors_sessions") == 1
        assert value(page, "mcp_actors_calls_in_flight", state="running") == 1
        assert value(page, "mcp_actors_limiter_inside") == 1
        assert value(page, "mcp_actors_clients") == 1
        assert value(page, "mcp_actors_outbound_in_flight") == 1
        async with Client(server) as other:
            await other.ping()
        # What has ended is counted still.
        page = metrics.text()
        assert value(page, "mcp_actors_sessions") == 1
        assert value(page, "mcp_actors_sessions_total") == 2
        assert value(page, "mcp_actors_requests_total") == 4
        assert value(page, "mcp_actors_connection_bytes_total", direction="in") > 500
        assert value(page, "mcp_server_session_duration_seconds_count") == 1
    page = metrics.text()
    assert value(page, "mcp_actors_outbound_in_flight") == 0
    assert value(page, "mcp_actors_answer_bytes_total") > 100
    assert "mcp_actors_sessions" not in read(page)


async def test_crashes_are_counted_once_for_all_servers() -> None:
    metrics = Metrics()
    async with Client(adding(metrics)), Client(adding(metrics, "another")):
        before = read(metrics.text()).get("mcp_actors_crashes_total", [])
        crash_log.note("tests only", "a task", RuntimeError("no"), False)
        page = metrics.text()
        assert value(page, "mcp_actors_sessions") == 2
    assert len(read(page)["mcp_actors_crashes_total"]) == len(before) + 1
    assert value(page, "mcp_actors_crashes_total", kind="tests only") == 1
    del crash_log.counts["tests only"]


def request(target: str, *, registered: bool = True, method: str = "tools/call") -> ObservedRequest:
    return ObservedRequest(method, target, registered, 1, {}, None, "s", "p")


def test_names_that_a_peer_makes_up_are_no_labels() -> None:
    metrics = Metrics()
    for number in range(5000):
        for observation in (
            metrics.inbound(request(f"made up {number}", registered=False)),
            metrics.inbound(request(f"file:///{number}", registered=False, method="resources/read")),
            metrics.outbound(request(f"asked for {number}", registered=False)),
        ):
            assert observation is not None
            observation.ended(CallEnding("error", 0.1, -32602))
    page = metrics.text()
    calls = read(page)["mcp_actors_calls_total"]
    assert sorted({labels["target"] for labels, _ in calls if labels["side"] == "server"}) == ["", "other"]
    assert 100 < len({labels["target"] for labels, _ in calls if labels["side"] == "client"}) < 300
    assert sum(number for _, number in calls) == 15_000


def test_sets_of_labels_are_bounded() -> None:
    metrics = Metrics()
    for code in range(5000):
        observation = metrics.inbound(request("add"))
        assert observation is not None
        observation.ended(CallEnding("error", 0.1, code))
    page = metrics.text()
    calls = read(page)["mcp_actors_calls_total"]
    assert len(calls) <= MOST_SERIES + 20
    assert sum(number for _, number in calls) == 5000
    assert value(page, "mcp_actors_calls_total", target="other", mcp_method_name="other") > 3900


def test_labels_are_escaped_and_each_line_has_its_own() -> None:
    metrics = Metrics({"worker": "2"})
    observation = metrics.outbound(request('a "quoted\\\nname'))
    observation.ended(CallEnding("answered", 0.1))
    assert '{worker="2",side="client",' in metrics.text()
    samples = read(metrics.text())
    assert samples["mcp_actors_calls_total"][0][0]["target"] == 'a \\"quoted\\\\\\nname'
    assert all(labels["worker"] == "2" for each in samples.values() for labels, _ in each)


def test_names_are_those_of_prometheus() -> None:
    for gauge in GAUGES:
        assert gauge.name.endswith("_total") == (gauge.kind == "counter"), gauge.name
    assert len({gauge.name for gauge in GAUGES}) == len(GAUGES)


async def test_the_page_at_a_route() -> None:
    metrics = Metrics()
    server = adding(metrics)
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/metrics": metrics_page(metrics)})
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)
        async with Client(url) as client, httpx2.AsyncClient() as http:
            await client.call_tool("add", {"a": 1, "b": 2})
            page = url.replace("/mcp", "/metrics")
            answer = await http.get(page)
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                "text/plain; version=0.0.4; charset=utf-8",
            )
            assert value(answer.text, "mcp_actors_calls_total", target="add") == 1
            # A scraper that keeps its connection would hear of one worker alone.
            assert answer.headers["connection"] == "close"
            head = await http.head(page)
            assert (head.status_code, head.text, head.headers["connection"]) == (200, "", "close")
            assert (await http.get(page, headers={"host": "evil.example"})).status_code == 403
            assert (await http.post(page)).status_code == 405
        nursery.cancel_scope.cancel()


async def test_what_http_refuses_before_there_is_a_call_is_counted_by_status() -> None:
    metrics = Metrics()
    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", authenticate=lambda request: Refusal(401, "a token is needed")
    )
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(adding(metrics).serve, transport)
        before = http_refusals.copy()
        async with httpx2.AsyncClient() as http:
            for _ in range(3):
                assert (await http.post(url)).status_code == 401
            assert (await http.post(url, headers={"host": "evil.example"})).status_code == 403
        page = metrics.text()
        nursery.cancel_scope.cancel()
    assert http_refusals - before == {401: 3, 403: 1}
    assert value(page, "mcp_actors_http_refused_total", status="401") == http_refusals[401]


async def test_two_together_are_given_the_same() -> None:
    recorder, other, metrics = Recorder({"a": 1, "b": 1}), Recorder({"a": 2, "c": 2}), Metrics()
    both = Together(recorder, metrics, other)
    async with Client(adding(both), era="2026-07-28", telemetry=both) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        assert value(metrics.text(), "mcp_actors_sessions") == 1
    ((seen, _),) = recorder.of("in", "tools/call")
    assert {name: seen.meta[name] for name in "abc"} == {"a": 1, "b": 1, "c": 2}
    assert [len(each.of("out", "tools/call")) for each in (recorder, other)] == [1, 1]
    assert value(metrics.text(), "mcp_actors_calls_total", target="add") == 2
    assert recorder.servers == []


def test_what_is_no_telemetry_does_not_go_together() -> None:
    with pytest.raises(TypeError, match=r"objects of mcp_actors\.telemetry, not 'otel'"):
        Together("otel")  # type: ignore[arg-type]


def test_loops_in_threads_of_their_own_lose_no_call() -> None:
    metrics, threads, calls = Metrics(), 8, 400
    together = threading.Barrier(threads)

    def work() -> None:
        together.wait()
        for number in range(calls):
            outbound = metrics.outbound(request(f"tool {number % 20}"))
            inbound = metrics.inbound(request("tool"))
            assert inbound is not None
            inbound.ended(CallEnding("answered", 0.1, size=1))
            outbound.ended(CallEnding("answered", 0.1))

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work) for _ in range(threads)]:
            each.result()
    page = metrics.text()
    assert value(page, "mcp_actors_outbound_in_flight") == 0
    for side in ("server", "client"):
        assert value(page, "mcp_actors_calls_total", side=side) == threads * calls
    assert value(page, "mcp_actors_answer_bytes_total") == threads * calls


@pytest.mark.parametrize("name", ["\ud800", 'a\r\n"} 1\nmcp_actors_calls_total{x="', "\x00", "x" * 100_000])
def test_a_name_of_a_model_does_not_spoil_the_page(name: str) -> None:
    metrics = Metrics()
    metrics.outbound(request(name, registered=False)).ended(CallEnding("error", 0.1, -32602))
    page = metrics.text().encode().decode()
    assert len(page) < 20_000
    assert [number for _, number in read(page)["mcp_actors_calls_total"]] == [1]


# -- Spans on their way to a collector that is away, slow or refuses them --------------------------------
#
# No call waits, and what is lost is counted.

CALLS, QUEUE, BATCH = 200, 32, 16
PROGRAM = """
from mcp_actors import Server
server = Server("served")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""


def adding_collector(tracers: TracerProvider) -> Server:
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
        async with Client(adding_collector(tracers), telemetry=telemetry) as client:
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
        async with Client(adding_collector(tracers)) as client:
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


@pytest.mark.slow
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
        assert "mcp_actors.client.active" in collector.metrics
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


@pytest.mark.slow
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


def test_a_quantile_is_the_value_that_its_share_reaches() -> None:
    times = supervision_histogram.Histogram()
    times.add(0.001)
    times.add(1.0)
    assert times.quantile(0.5) < 0.002
    assert times.quantile(0.51) == 1.0
