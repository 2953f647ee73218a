"""A share of the calls that the SDK is asked about, and OpenTelemetry without durations: what it saves is not lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import get_current_span

from mcp_actors import Client, Server
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.otel import OpenTelemetry, Sampling, Unsampled, meta_of

from .spans import Traced, parent_id

ERA = "2026-07-28"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def serving(traced: Traced) -> tuple[Server, list[str]]:
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
    server, ran = serving(traced)
    await call(server)
    await call(server)
    assert traced.spans == ()
    assert [each[-3:] for each in ran] == ["-00", "-00"]
    assert ran[0] != ran[1]


async def test_a_call_inside_of_the_share_is_recorded() -> None:
    traced = Traced(share=1.0)
    server, _ = serving(traced)
    await call(server)
    assert parent_id(traced.one("tools/call add", "SERVER")) == ""


async def test_a_sampled_trace_is_recorded_whatever_the_share() -> None:
    traced = Traced(share=0.0)
    server, _ = serving(traced)
    await call(server, "01")
    assert parent_id(traced.one("tools/call add", "SERVER")) == SPAN


async def test_a_trace_that_is_not_sampled_goes_on_whatever_the_share() -> None:
    traced = Traced(share=1.0)
    server, ran = serving(traced)
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
    server, ran = serving(traced)
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
        server, _ = serving(traced)
        async with Client(server, era=ERA, telemetry=traced.telemetry) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            names.append(set(traced.metrics()))
    assert names[0] - names[1] == {"mcp.server.operation.duration", "mcp.client.operation.duration"}
    assert {"mcp_actors.sessions.open", "mcp_actors.sessions"} <= names[1]
    assert metrics is not None
    page = metrics.text()
    for side in ("server", "client"):
        assert f'mcp_{side}_operation_duration_seconds_count{{mcp_method_name="tools/call"' in page
    assert "mcp_server_session_duration_seconds_count 1" in page
    assert "mcp_actors_outbound_in_flight 0" in page
