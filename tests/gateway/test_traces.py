"""Spans of a gateway lie between those of its client and of its server; without spans of its own a trace passes."""

from __future__ import annotations

from collections import Counter

import pytest
from telemetry.spans import Traced, parent_id, span_id, tree

from mcp_actors import Client, Context, Server
from mcp_actors.errors import RpcError
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
        assert [tool.name async for tool in client.tools()] == ["x_look"]
        await client.call_tool("x_look")
    calls = [each for each in traced.spans if each.name.startswith("tools/call")]
    # The spans end from the inside to the outside.
    rows = [(span_id(each), parent_id(each), f"{each.kind.name} {each.name}") for each in reversed(calls)]
    assert tree(rows).splitlines() == [
        "CLIENT tools/call x_look",
        "  SERVER tools/call x_look",
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


async def test_names_that_upstreams_list_are_labels_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_actors.gateway.gateway.MOST_LABELS", 3)
    server, metrics = Server("behind"), Metrics()
    names = ["one", "two", "a\u202eb", "long" * 40, "three", "one too many"]
    for name in names:
        server.add_tool(lambda: "done", name=name)
    server.add_prompt(lambda: "hello", name="greet")
    async with Client(Gateway([Upstream(name="x", target=server, prefix="")], telemetry=metrics)) as client:
        with pytest.raises(RpcError):
            await client.call_tool("made up")
        assert [tool.name async for tool in client.tools()] == names
        assert [prompt.name async for prompt in client.prompts()] == ["greet"]
        for name in names:
            await client.call_tool(name)
        await client.get_prompt("greet")
    counted = Counter[str]()
    for (side, _, target, *_), found, _ in metrics.durations():
        if side == "server" and target is not None:
            counted[target] += sum(found)
    assert counted == {"one": 1, "two": 1, "three": 1, "other": 4, "greet": 1}
