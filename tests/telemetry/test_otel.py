"""OpenTelemetry: names, attributes and parents of spans by the conventions for MCP, and the context in ``_meta``."""

from __future__ import annotations

import importlib.metadata
import re
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.trace import get_current_span

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, Context, Server
from mcp_actors.abc.telemetry import CallEnding, EndingKind, ObservedRequest
from mcp_actors.errors import RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.telemetry import BUCKETS, Metrics
from mcp_actors.telemetry.metrics import GAUGES
from mcp_actors.telemetry.otel import INSTRUMENTS, OpenTelemetry, Sampling, Unsampled, context_of, meta_of
from mcp_actors.telemetry.otel_exporting import MetricsExporter
from mcp_actors.types import ElicitResult
from mcp_transports.http.server import HttpServerTransport

from .spans import Traced, parent_id, span_id, tree

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ERAS = pytest.mark.parametrize("era", [LEGACY, MODERN])
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def serving(traced: Traced, inner: Server | None = None) -> Server:
    server = Server("traced", telemetry=traced.telemetry)

    @server.tool
    async def add(a: int, b: int) -> int:
        with traced.tracers.get_tracer("program").start_as_current_span("the program's own"):
            return a + b

    @server.tool
    async def hop() -> str:
        assert inner is not None
        async with Client(inner, era=MODERN, telemetry=traced.telemetry) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
        return "hopped"

    @server.tool
    async def fail() -> None:
        raise RpcError(-32050, "no such thing")

    @server.prompt
    async def greet(name: str) -> str:
        return name

    @server.resource("file:///a")
    async def read() -> str:
        return "a"

    return server


@ERAS
async def test_a_call_by_the_conventions(era: str) -> None:
    traced = Traced()
    async with Client(serving(traced), era=era, telemetry=traced.telemetry) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    there, here = traced.one("tools/call add", "SERVER"), traced.one("tools/call add", "CLIENT")
    assert parent_id(there) == span_id(here)
    expected = {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": era,
        "jsonrpc.request.id": "2",
        "network.transport": "pipe",
    }
    assert dict(there.attributes or {}) == expected
    assert dict(here.attributes or {}) == expected
    assert parent_id(traced.one("the program's own", "INTERNAL")) == span_id(there)


async def test_prompts_resources_and_errors() -> None:
    traced = Traced()
    async with Client(serving(traced), era=MODERN, telemetry=traced.telemetry) as client:
        await client.get_prompt("greet", {"name": "Ada"})
        await client.read_resource("file:///a")
        with pytest.raises(RpcError):
            await client.call_tool("fail")
        with pytest.raises(RpcError):
            await client.call_tool("made up " * 500)
    assert (traced.one("prompts/get greet", "SERVER").attributes or {})["gen_ai.prompt.name"] == "greet"
    # A URI is one of very many, so the name of the span has none.
    assert (traced.one("resources/read", "SERVER").attributes or {})["mcp.resource.uri"] == "file:///a"
    for kind in ("SERVER", "CLIENT"):
        failed = traced.one("tools/call fail", kind)
        assert failed.status.status_code.name == "ERROR"
        assert failed.status.description == "no such thing"
        attributes = failed.attributes or {}
        assert (attributes["error.type"], attributes["rpc.response.status_code"]) == ("-32050", "-32050")
    # By the conventions the name of a span has none of those that are too many.
    unknown = next(each for each in traced.spans if (each.name, each.kind.name) == ("tools/call", "SERVER"))
    assert len(str((unknown.attributes or {})["gen_ai.tool.name"])) == 1024


HOPS = """\
the program INTERNAL
  tools/call hop CLIENT
    tools/call hop SERVER
      server/discover CLIENT
        server/discover SERVER
      tools/call add CLIENT
        tools/call add SERVER
          the program's own INTERNAL"""


@ERAS
async def test_hops_make_one_tree(era: str) -> None:
    traced = Traced()
    server = serving(traced, serving(traced))
    async with Client(server, era=era, telemetry=traced.telemetry) as client:
        with traced.tracers.get_tracer("program").start_as_current_span("the program"):
            await client.call_tool("hop")
    in_order = sorted(traced.spans, key=lambda span: span.start_time or 0)
    trace_ids = {span.context.trace_id for span in in_order if span.context and span.name == "the program"}
    of_the_call = [span for span in in_order if span.context and span.context.trace_id in trace_ids]
    lines = [(span_id(each), parent_id(each), f"{each.name} {each.kind.name}") for each in of_the_call]
    assert tree(lines) == HOPS


async def test_a_question_is_below_the_call_that_asks() -> None:
    traced = Traced()
    server = Server("asks", telemetry=traced.telemetry)

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer)

    async def answer(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ada"})

    async with Client(server, era=LEGACY, telemetry=traced.telemetry, elicitation=answer) as client:
        await client.call_tool("greet")
    call = traced.one("tools/call greet", "SERVER")
    asked, answered = traced.one("elicitation/create", "CLIENT"), traced.one("elicitation/create", "SERVER")
    assert (parent_id(asked), parent_id(answered)) == (span_id(call), span_id(asked))


async def test_the_run_of_a_task_is_below_the_call_that_created_it() -> None:
    traced = Traced()
    server = Server("tasks", telemetry=traced.telemetry)

    @server.tool(task="optional")
    async def work() -> str:
        await trio.sleep(0.05)
        with traced.tracers.get_tracer("program").start_as_current_span("the work"):
            return "done"

    async with Client(server, era=MODERN, telemetry=traced.telemetry) as client:
        assert (await client.call_tool("work")).text == "done"
    call, task = traced.one("tools/call work", "SERVER"), traced.one("task work", "INTERNAL")
    assert parent_id(task) == span_id(call)
    assert [link.context.span_id for link in task.links] == [int(parent_id(call), 16)]
    assert parent_id(traced.one("the work", "INTERNAL")) == span_id(task)


async def test_clients_without_trio_are_below_their_program() -> None:
    traced = Traced()
    server = serving(traced)

    def in_a_thread() -> None:
        with mcp_actors.sync.Client(server, telemetry=traced.telemetry) as client:
            with traced.tracers.get_tracer("program").start_as_current_span("the thread"):
                client.call_tool("add", {"a": 1, "b": 2})

    await trio.to_thread.run_sync(in_a_thread)
    assert parent_id(traced.one("tools/call add", "CLIENT")) == span_id(traced.one("the thread", "INTERNAL"))


async def test_durations_and_gauges() -> None:
    traced = Traced()
    server = serving(traced)
    async with Client(server, era=LEGACY, telemetry=traced.telemetry) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(RpcError):
            await client.call_tool("fail")
        found = await trio.to_thread.run_sync(traced.metrics)
    sessions = found["mcp_actors.session.active"].data.data_points
    assert {point.attributes["mcp_actors.side"]: point.value for point in sessions} == {
        "server": 1,
        "client": 1,
    }
    assert {
        point.attributes["mcp_actors.state"] for point in found["mcp_actors.call.active"].data.data_points
    }
    for side in ("server", "client"):
        durations = found[f"mcp.{side}.operation.duration"]
        assert durations.unit == "s"
        by_tool = {point.attributes.get("gen_ai.tool.name"): point for point in durations.data.data_points}
        assert by_tool["add"].explicit_bounds[:3] == (0.01, 0.02, 0.05)
        assert by_tool["add"].count == 1
        assert by_tool["fail"].attributes["error.type"] == "-32050"
        assert "jsonrpc.request.id" not in by_tool["add"].attributes
    (ended,) = traced.metrics()["mcp.server.session.duration"].data.data_points
    assert ended.attributes["mcp.protocol.version"] == LEGACY


@ERAS
async def test_a_parent_with_state_and_baggage(era: str) -> None:
    traced = Traced()
    server = Server("carries", telemetry=traced.telemetry)
    found: list[object] = []

    @server.tool
    async def look() -> None:
        found.append(dict(baggage.get_all()))

    meta = {"traceparent": PARENT, "tracestate": "rojo=00f067aa0ba902b7", "baggage": "userId=alice,plan=free"}
    async with Client(server, era=era) as client:
        await client.call_tool("look", meta=meta)
    span = traced.one("tools/call look", "SERVER")
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", parent_id(span)) == (TRACE, SPAN)
    assert span.context.trace_state.get("rojo") == SPAN
    assert found == [{"userId": "alice", "plan": "free"}]


WELL_FORMED = [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-what-comes-later"]
MALFORMED = [
    "", "x", PARENT.upper(), f"{PARENT}-more", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01", f" {PARENT}", f"{PARENT}\n", None, 5, ["00"], {"a": 1}, PARENT * 1000,
]  # fmt: skip


@pytest.mark.parametrize("value", WELL_FORMED)
def test_a_parent_is_read(value: str) -> None:
    found = trace.get_current_span(context_of({"traceparent": value})).get_span_context()
    assert (f"{found.trace_id:032x}", found.is_remote) == (TRACE, True)


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_parent_is_none(value: object) -> None:
    assert context_of({"traceparent": value, "tracestate": "a=b"}) == TraceContext()


@given(
    st.dictionaries(
        st.sampled_from(["traceparent", "tracestate", "baggage"]),
        st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text()), st.sampled_from(WELL_FORMED)),
    )
)
def test_no_meta_is_too_odd(meta: dict[str, Any]) -> None:
    context = context_of(meta)
    span = trace.get_current_span(context).get_span_context()
    carried = meta_of(span, context)
    assert set(carried) <= {"traceparent", "tracestate", "baggage"}
    again = context_of(carried)
    assert trace.get_current_span(again).get_span_context() == span
    assert set(baggage.get_all(again)) == set(baggage.get_all(context))


@pytest.mark.parametrize(
    "odd",
    [
        "",
        ",",
        "a",
        "=",
        "a=b,,",
        "a b=c",
        "\x00=1",
        "ä=ö",
        "%=1",
        "a=b;;c",
        "a=b;c;d=e",
        "A=1",
        " a=1",
        "a=1,a=2",
    ],
)
def test_odd_members_write_no_lines(odd: str, caplog: pytest.LogCaptureFixture) -> None:
    found = context_of({"traceparent": PARENT, "tracestate": odd, "baggage": odd})
    assert trace.get_current_span(found).get_span_context().is_valid
    assert caplog.records == []


def test_long_members_are_ignored() -> None:
    context = context_of(
        {"traceparent": PARENT, "tracestate": "a=" + "b" * 600, "baggage": "a=" + "b" * 9000}
    )
    assert not trace.get_current_span(context).get_span_context().trace_state
    assert baggage.get_all(context) == {}


async def test_an_unsampled_parent_leaves_no_span_and_is_passed_on() -> None:
    traced = Traced()
    server = serving(traced, serving(traced))
    async with Client(server, era=MODERN) as client:
        await client.call_tool("hop", meta={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert [
        span.name for span in traced.spans if span.context and span.context.trace_id == int(TRACE, 16)
    ] == []
    assert [span.name for span in traced.spans if "call" in span.name] == []


async def test_a_call_is_linked_to_the_span_in_which_it_arrived() -> None:
    traced = Traced()
    tracer = traced.tracers.get_tracer("an HTTP server")
    server = serving(traced)
    with tracer.start_as_current_span("POST") as arrived:
        async with Client(server, era=MODERN) as client:
            await client.call_tool("add", {"a": 1, "b": 2}, meta={"traceparent": PARENT})
    # The server itself began in that span, which is then no part of any call.
    assert traced.one("tools/call add", "SERVER").links == ()
    request = ObservedRequest("ping", None, False, 1, {"traceparent": PARENT}, MODERN, "s", "memory:")
    with tracer.start_as_current_span("POST") as arrived:
        traced.telemetry.inbound(request).ended(CallEnding("answered", 0.1))
    span = traced.one("ping", "SERVER")
    assert [link.context for link in span.links] == [arrived.get_span_context()]
    assert parent_id(span) == SPAN


@pytest.mark.parametrize(
    ("peer", "address", "port"),
    [
        ("127.0.0.1:51234", "127.0.0.1", 51234),
        ("[::1]:51234", "::1", 51234),
        ("http://user:word@example.org:8000/mcp?token=a", "example.org", 8000),
        ("https://example.org/mcp", "example.org", None),
        ("tcp://10.0.0.1:9", "10.0.0.1", 9),
        ("unix:/tmp/a.sock", "/tmp/a.sock", None),
        ("http+unix://%2Ftmp%2Fa.sock/mcp", "/tmp/a.sock", None),
        ("stdio", None, None),
        ("memory:1", None, None),
        ("", None, None),
        ("http://[", None, None),
        ("10.0.0.1:99999", None, None),
    ],
)
def test_the_address_of_the_other_end(peer: str, address: str | None, port: int | None) -> None:
    traced = Traced()
    request = ObservedRequest("ping", None, False, 1, {}, MODERN, "s", peer)
    traced.telemetry.inbound(request).ended(CallEnding("answered", 0.1))
    traced.telemetry.outbound(request).ended(CallEnding("answered", 0.1))
    for kind, side in (("SERVER", "client"), ("CLIENT", "server")):
        attributes = traced.one("ping", kind).attributes or {}
        assert (attributes.get(f"{side}.address"), attributes.get(f"{side}.port")) == (address, port)


@pytest.mark.parametrize("name", ["\ud800", "x" * 100_000])
def test_a_name_that_cannot_be_encoded_does_not_spoil_what_is_exported(name: str) -> None:
    traced = Traced()
    request = ObservedRequest("tools/call", name, False, 1, {}, MODERN, "s", "memory:")
    traced.telemetry.outbound(request).ended(CallEnding("error", 0.1))
    traced.telemetry.inbound(request).ended(CallEnding("error", 0.1))
    for span in traced.spans:
        assert span.name == "tools/call"
        assert len(str((span.attributes or {})["gen_ai.tool.name"]).encode()) <= 1024


# -- A share of the calls that the SDK is asked about, and OpenTelemetry without durations ---------------
#
# What it saves is not lost.

ERA = "2026-07-28"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def serving_share(traced: Traced) -> tuple[Server, list[str]]:
    """Returns a server, and the contexts in which its tool has run."""
    server, ran = Server("shared", telemetry=traced.telemetry), list[str]()

    @server.tool
    async def add(a: int, b: int) -> int:
        context = get_current_span().get_span_context()
        ran.append(meta_of(context, TraceContext())["traceparent"])
        with traced.tracers.get_tracer("program").start_as_current_span("the program's own"):
            return a + b

    return server, ran


async def call(server: Server, flags: str | None = None) -> None:
    async with Client(server, era=ERA) as client:
        meta = None if flags is None else {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
        await client.call_tool("add", {"a": 1, "b": 2}, meta=meta)


async def test_a_call_outside_of_the_share_has_a_trace_that_is_recorded_nowhere() -> None:
    traced = Traced(share=0.0)
    server, ran = serving_share(traced)
    await call(server)
    await call(server)
    assert traced.spans == ()
    assert [each[-3:] for each in ran] == ["-00", "-00"]
    assert ran[0] != ran[1]


async def test_a_call_inside_of_the_share_is_recorded() -> None:
    traced = Traced(share=1.0)
    server, _ = serving_share(traced)
    await call(server)
    assert parent_id(traced.one("tools/call add", "SERVER")) == ""


async def test_a_sampled_trace_is_recorded_whatever_the_share() -> None:
    traced = Traced(share=0.0)
    server, _ = serving_share(traced)
    await call(server, "01")
    assert parent_id(traced.one("tools/call add", "SERVER")) == SPAN


async def test_a_trace_that_is_not_sampled_goes_on_whatever_the_share() -> None:
    traced = Traced(share=1.0)
    server, ran = serving_share(traced)
    await call(server, "fe")
    assert [each.name for each in traced.spans if "discover" not in each.name] == []
    (context,) = ran
    assert context.startswith(f"00-{TRACE}-")
    # The flag of random ids is passed on, and those that nobody has defined are not.
    assert context.endswith("-02")
    assert SPAN not in context


def test_state_of_a_trace_that_is_not_sampled_is_passed_on() -> None:
    meta = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "a=b", "baggage": "k=v"}
    span = Unsampled(meta)
    assert not span.is_recording()
    passed_on = meta_of(span.get_span_context(), span.context())
    assert (passed_on["tracestate"], passed_on["baggage"]) == ("a=b", "k=v")
    assert passed_on["traceparent"].startswith(f"00-{TRACE}-")
    assert get_current_span(span.context()) is span


@pytest.mark.parametrize("baggage", [{}, {"baggage": "k=v"}, {"baggage": "not, any"}, {"baggage": 5}])
@pytest.mark.parametrize("traceparent", [None, 5, f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01"])
def test_a_span_that_is_not_sampled_has_ids_of_its_own_for_good(
    traceparent: object, baggage: dict[str, object]
) -> None:
    meta = baggage if traceparent is None else {"traceparent": traceparent, **baggage}
    one, other = Unsampled(meta), Unsampled(meta)
    assert one.get_span_context().is_valid
    assert one.get_span_context() == one.get_span_context() != other.get_span_context()
    assert get_current_span(one.context()) is one


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        OpenTelemetry(share=share)


@pytest.mark.parametrize("most", [0, -1, float("nan")])
def test_a_rate_is_above_0(most: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        OpenTelemetry(most_traces=most)


def test_at_most_so_many_a_second_are_sampled_and_spread_evenly() -> None:
    sampling = Sampling(1.0, 8)
    # All of the first ones, which come at once; then one in 125 of a thousand a second.
    assert [sampling.takes(100.0) for _ in range(12)] == [True] * 8 + [False] * 4
    taken = [number for number in range(5000) if sampling.takes(101.0 + number / 1000)]
    assert 40 <= len(taken) <= 48
    assert max(later - earlier for earlier, later in pairwise(taken)) == 125
    assert sampling.takes(200.0)


async def test_calls_that_come_with_a_trace_do_not_use_up_the_rate() -> None:
    traced = Traced(most_traces=0.001)
    server, ran = serving_share(traced)
    await call(server, "00")
    await call(server, "01")
    await call(server, "01")
    assert len([each for each in traced.spans if each.name == "tools/call add"]) == 2
    # The handshake of the first client has taken the only place.
    await call(server)
    assert ran[-1].endswith("-00")


async def test_counted_durations_take_the_place_of_those_of_the_sdk() -> None:
    names = []
    for metrics in (None, Metrics()):
        traced = Traced(metrics=metrics)
        server, _ = serving_share(traced)
        async with Client(server, era=ERA, telemetry=traced.telemetry) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            names.append(set(traced.metrics()))
    assert names[0] - names[1] == {"mcp.server.operation.duration", "mcp.client.operation.duration"}
    assert {"mcp_actors.session.active", "mcp_actors.session.started"} <= names[1]
    assert metrics is not None
    page = metrics.text()
    for side in ("server", "client"):
        assert f'mcp_{side}_operation_duration_seconds_count{{mcp_method_name="tools/call"' in page
    assert "mcp_server_session_duration_seconds_count 1" in page
    assert "mcp_actors_outbound_in_flight 0" in page


# -- The durations that `Metrics` counts, among what the SDK exports: as histograms, cumulative or as deltas ---


class Kept(MetricExporter):
    """An exporter that keeps the metrics."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__({Histogram: temporality})
        self.sent: list[MetricsData] = []
        self.calls: list[str] = []

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.sent.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        self.calls.append("flushed")
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.calls.append("shut down")

    def points(self, name: str) -> list[Any]:
        """The points of what was sent last. There is one group of metrics, as exporters want it."""
        (resource,) = self.sent[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return [point for each in scope.metrics if each.name == name for point in each.data.data_points]


def counting(kept: Kept) -> tuple[Metrics, MeterProvider]:
    metrics = Metrics()
    reader = PeriodicExportingMetricReader(MetricsExporter(kept, metrics), 1e9)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    OpenTelemetry(meter_provider=meters, metrics=metrics)
    return metrics, meters


def count(
    metrics: Metrics,
    seconds: float,
    kind: EndingKind = "answered",
    code: int | None = None,
    name: str = "add",
) -> None:
    request = ObservedRequest("tools/call", name, True, 1, {}, "2025-11-25", "session", "memory:")
    metrics.count("server", request, CallEnding(kind, seconds, code))


NAME = "mcp.server.operation.duration"
ADD = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "add", "gen_ai.operation.name": "execute_tool"}


def test_a_histogram_by_the_conventions() -> None:
    kept = Kept(AggregationTemporality.CUMULATIVE)
    metrics, meters = counting(kept)
    count(metrics, 0.015)
    # An answer that asks the client something is no error, and has the same attributes.
    count(metrics, 1000.0, "input_required")
    count(metrics, 0.5, "tool_error")
    count(metrics, 0.25, "error", -32603)
    count(metrics, 0.25, "error")
    assert meters.force_flush()
    points = {point.attributes.get("error.type"): point for point in kept.points(NAME)}
    assert points[None].attributes == ADD
    assert (points[None].count, points[None].sum) == (2, 1000.015)
    assert points[None].explicit_bounds == BUCKETS
    assert points[None].bucket_counts == (0, 1, *[0] * 12, 1)
    assert points["tool_error"].attributes == {**ADD, "error.type": "tool_error"}
    code = {"error.type": "-32603", "rpc.response.status_code": "-32603"}
    assert points["-32603"].attributes == {**ADD, **code}
    assert set(points) == {None, "tool_error", "-32603", "_OTHER"}
    assert kept.points("mcp_actors.client.active")[0].value == 0


@pytest.mark.parametrize(
    ("temporality", "counts"),
    [
        (AggregationTemporality.CUMULATIVE, [1, 3, 3]),
        (AggregationTemporality.DELTA, [1, 2, None]),
    ],
)
def test_the_temporality_is_that_of_the_other_exporter(
    temporality: AggregationTemporality, counts: list[int | None]
) -> None:
    kept = Kept(temporality)
    metrics, meters = counting(kept)
    found: list[int | None] = []
    starts: list[int] = []
    for number in (1, 2, 0):
        for _ in range(number):
            count(metrics, 0.5)
        meters.force_flush()
        points = kept.points(NAME)
        found.append(points[0].count if points else None)
        starts += [point.start_time_unix_nano for point in points]
        assert all(point.sum == point.count / 2 for point in points)
        assert all(point.start_time_unix_nano <= point.time_unix_nano for point in points)
    assert found == counts
    assert len(set(starts)) == (1 if temporality is AggregationTemporality.CUMULATIVE else 2)


def test_what_the_reader_asks_is_passed_on() -> None:
    kept = Kept(AggregationTemporality.CUMULATIVE)
    _, meters = counting(kept)
    meters.force_flush()
    meters.shutdown()
    assert kept.calls == ["flushed", "shut down"]


def test_an_empty_collection_is_given_a_resource() -> None:
    kept, metrics = Kept(AggregationTemporality.CUMULATIVE), Metrics()
    count(metrics, 0.5)
    MetricsExporter(kept, metrics).export(MetricsData([]))
    assert [point.count for point in kept.points(NAME)] == [1]


def test_metrics_of_others_are_left_as_they_are() -> None:
    reader, metrics = InMemoryMetricReader(), Metrics()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    meters.get_meter("other").create_counter("theirs").add(1)
    data = reader.get_metrics_data()
    assert data is not None
    kept = Kept(AggregationTemporality.CUMULATIVE)
    MetricsExporter(kept, metrics).export(data)
    (resource,) = kept.sent[0].resource_metrics
    assert resource.resource == data.resource_metrics[0].resource
    assert [each.name for scope in resource.scope_metrics for each in scope.metrics] == ["theirs"]


# -- by today's conventions for MCP, RPC and metrics ----------------------------------------------------


async def test_every_instrument_has_one_kind_a_unit_and_a_name_of_its_own() -> None:
    traced = Traced(metrics=Metrics())
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    gateway = Gateway([Upstream(name="a", target=serving(traced))])
    gateway.telemetry = OpenTelemetry(meter_provider=meters)
    async with Client(gateway, telemetry=gateway.telemetry) as client:
        await client.list_tools()
        await client.call_tool("a_add", {"a": 1, "b": 2})
        data: Any = await trio.to_thread.run_sync(reader.get_metrics_data)
    (scope,) = data.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("mcp_actors", importlib.metadata.version("mcp-actors"))
    found = {each.name: each for each in scope.metrics}
    # A name that is there twice is two kinds of instrument, or two units, of one thing.
    assert len(found) == len(scope.metrics)
    names = set(found)
    assert not {each for each in names if any(other.startswith(f"{each}.") for other in names)}
    units = {name: each.unit for name, each in found.items()}
    assert {name: unit for name, unit in units.items() if not UNIT.fullmatch(unit)} == {}
    assert {name for name, unit in units.items() if unit == "1"} == {
        "mcp_actors.shared_state.up",
        "mcp_actors.upstream.up",
        "mcp_actors.upstream.circuit",
    }
    assert {name for name, unit in units.items() if unit == "By"} == {
        "mcp_actors.memory.usage",
        "mcp_actors.memory.limit",
        "mcp_actors.connection.io",
    }
    assert units["mcp_actors.session.active"] == units["mcp_actors.session.started"] == "{session}"
    for name, each in found.items():
        for point in each.data.data_points:
            known = ("mcp", "gen_ai", "network", "server", "error", "rpc", "http", "mcp_actors")
            assert {key.partition(".")[0] for key in point.attributes} <= set(known), name


# A unit of UCUM that is used here, or one thing in braces.
UNIT = re.compile(r"1|s|By|\{[a-z]+\}")


def test_every_number_for_prometheus_has_an_instrument() -> None:
    assert {each.name for each in GAUGES} - set(INSTRUMENTS) == {"mcp_actors_sessions"}
    assert {each.name: each.kind == "counter" for each in GAUGES if each.name in INSTRUMENTS} == {
        name: kind == "counter" for name, (_, kind, _) in INSTRUMENTS.items()
    }


def ended_badly(traced: Traced) -> list[str]:
    return [
        f"{each.name} {each.kind.name}" for each in traced.spans if each.status.status_code.name == "ERROR"
    ]


@pytest.mark.parametrize("how", ["client", "server", "both"])
async def test_the_end_of_a_subscription_is_no_error(how: str, nursery: trio.Nursery) -> None:
    traced = Traced()
    server = serving(traced)
    transport = HttpServerTransport("http://127.0.0.1:0/mcp")
    (url,) = await nursery.start(server.serve, transport)
    async with Client(url, era=MODERN, telemetry=traced.telemetry) as client:
        async with client.listen(tools=True):
            if how == "server":
                server.stop()
                while not [each for each in traced.spans if each.name == "subscriptions/listen"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            elif how == "both":
                nursery.cancel_scope.cancel()
    while len([each for each in traced.spans if each.name == "subscriptions/listen"]) < 2:  # noqa: ASYNC110
        await trio.sleep(0.01)
    assert ended_badly(traced) == []
    nursery.cancel_scope.cancel()


async def test_finding_out_the_era_is_no_error() -> None:
    traced = Traced()
    server = Server("old", versions=[LEGACY], telemetry=traced.telemetry)
    async with Client(server, telemetry=traced.telemetry) as client:
        assert client.version == LEGACY
    discovered = [each for each in traced.spans if each.name == "server/discover"]
    assert {each.kind.name for each in discovered} >= {"CLIENT"}
    assert ended_badly(traced) == []
    (asked,) = [each for each in discovered if each.kind.name == "CLIENT"]
    assert (asked.attributes or {})["rpc.response.status_code"].startswith("-32")  # type: ignore[union-attr]


async def test_a_wrong_question_is_an_error_of_the_client_alone() -> None:
    traced = Traced()
    async with Client(serving(traced), era=MODERN, telemetry=traced.telemetry) as client:
        with pytest.raises(RpcError):
            await client.call_tool("nothing of this name")
        with pytest.raises(RpcError):
            await client.call_tool("fail")
    assert ended_badly(traced) == [
        "tools/call nothing of this name CLIENT",
        "tools/call fail SERVER",
        "tools/call fail CLIENT",
    ]
    (there,) = [each for each in traced.spans if (each.name, each.kind.name) == ("tools/call", "SERVER")]
    assert "error.type" not in (there.attributes or {})
    assert (there.attributes or {})["rpc.response.status_code"] == "-32602"


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("http://127.0.0.1:0/mcp", {"network.protocol.name": "http", "network.protocol.version": "1.1"}),
        ("ws://127.0.0.1:0/ws", {"network.protocol.name": "websocket"}),
        ("tcp://127.0.0.1:0", {}),
    ],
)
@ERAS
async def test_spans_and_durations_name_the_protocol_that_carries_them(
    url: str, protocol: dict[str, str], era: str, nursery: trio.Nursery
) -> None:
    traced = Traced()
    server = serving(traced)
    (url,) = await nursery.start(server.serve, url)
    async with Client(url, era=era, telemetry=traced.telemetry) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    nursery.cancel_scope.cancel()
    expected = {**protocol, "network.transport": "tcp"}
    for kind in ("SERVER", "CLIENT"):
        assert network(traced.one("tools/call add", kind).attributes) == expected
    found = await trio.to_thread.run_sync(traced.metrics)
    for side in ("server", "client"):
        for point in found[f"mcp.{side}.operation.duration"].data.data_points:
            assert network(point.attributes) == expected
        if side == "client" or era == LEGACY:
            (ended,) = found[f"mcp.{side}.session.duration"].data.data_points
            assert network(ended.attributes).get("network.protocol.name") == protocol.get(
                "network.protocol.name"
            )


def network(attributes: Any) -> dict[str, object]:
    return {name: value for name, value in (attributes or {}).items() if name.startswith("network.")}


async def test_equal_names_of_two_upstreams_are_two_series() -> None:
    traced = Traced()
    upstreams = [Upstream(name=name, target=serving(Traced())) for name in ("a", "b")]
    async with Client(Gateway(upstreams, telemetry=traced.telemetry)) as client:
        # The first call of a tool, of which nobody knows the name before.
        await client.call_tool("a_add", {"a": 1, "b": 2})
        await client.call_tool("b_add", {"a": 1, "b": 2})
        found = await trio.to_thread.run_sync(traced.metrics)
    points = found["mcp.client.operation.duration"].data.data_points
    named = [
        (point.attributes["mcp_actors.upstream"], point.attributes.get("gen_ai.tool.name"))
        for point in points
    ]
    assert {("a", "add"), ("b", "add")} <= set(named)
    assert [each.kind.name for each in traced.spans if each.name == "tools/call a_add"] == ["SERVER"]
    assert [each.kind.name for each in traced.spans if each.name == "tools/call add"] == ["CLIENT", "CLIENT"]
