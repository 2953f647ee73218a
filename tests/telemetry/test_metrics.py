"""Metrics: what is counted, what becomes a label, and the page that Prometheus reads."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.abc.telemetry import CallEnding, ObservedRequest
from mcp_actors.errors import RpcError
from mcp_actors.supervision.containment import crash_log, http_refusals
from mcp_actors.telemetry import MOST_SERIES, Metrics, Together
from mcp_actors.telemetry.metrics import GAUGES
from mcp_transports.http.server import HttpServerTransport, Refusal, metrics_page

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
