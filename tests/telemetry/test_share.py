"""A share of the calls that the SDK is asked about, and OpenTelemetry without durations: what it saves is not lost."""

from __future__ import annotations

import pytest
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import get_current_span

from mcp_actors import Client, Server
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.telemetry.otel.propagation import context_of, meta_of, unrecorded

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
    parent = context_of({"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "a=b", "baggage": "k=v"})
    span = unrecorded(parent, 1.0)
    assert span is not None
    assert not span.is_recording()
    assert meta_of(span.get_span_context(), parent)["tracestate"] == "a=b"


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        OpenTelemetry(share=share)


async def test_without_durations_all_other_metrics_are_there() -> None:
    names = []
    for durations in (True, False):
        traced = Traced(durations=durations)
        server, _ = serving(traced)
        async with Client(server, era=ERA, telemetry=traced.telemetry) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            names.append(set(traced.metrics()))
    assert names[0] - names[1] == {"mcp.server.operation.duration", "mcp.client.operation.duration"}
    assert {"mcp_actors.sessions.open", "mcp_actors.sessions"} <= names[1]
