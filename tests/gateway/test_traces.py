"""Spans of a gateway lie between those of its client and of its server; without spans of its own a trace passes."""

from __future__ import annotations

import pytest
from telemetry.spans import Traced, parent_id, span_id, tree

from mcp_actors import Client, Context, Server
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.telemetry import Metrics

from .worlds import ERAS


def make_server(seen: list[dict[str, str]], telemetry: Traced | None = None) -> Server:
    server = Server("behind", telemetry=None if telemetry is None else telemetry.telemetry)

    @server.tool
    async def look(ctx: Context) -> str:
        seen.append(ctx.trace)
        return "seen"

    return server


@pytest.mark.parametrize(("client_era", "server_era"), ERAS)
async def test_the_spans_of_a_hop_nest(client_era: str, server_era: str) -> None:
    traced = Traced()
    upstream = Upstream(name="x", target=make_server([], traced), era=server_era)
    gateway = Gateway([upstream], telemetry=traced.telemetry)
    async with Client(gateway, era=client_era, telemetry=traced.telemetry) as client:
        await client.call_tool("x_look")
    calls = [each for each in traced.spans if each.name.startswith("tools/call")]
    # The spans end from the inside to the outside.
    rows = [(span_id(each), parent_id(each), f"{each.kind.name} {each.name}") for each in reversed(calls)]
    assert tree(rows).splitlines() == [
        "CLIENT tools/call x_look",
        # The gateway itself has no tool of this name, and a text of a client names no span.
        "  SERVER tools/call other",
        "    CLIENT tools/call look",
        "      SERVER tools/call look",
    ]


async def test_a_trace_passes_through_a_gateway_that_only_counts() -> None:
    seen: list[dict[str, str]] = []
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    gateway = Gateway([Upstream(name="x", target=make_server(seen))], telemetry=Metrics())
    async with Client(gateway) as client:
        await client.call_tool("x_look", meta=trace)
    assert seen == [trace]
