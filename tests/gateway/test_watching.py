"""What an operator sees of the servers behind a gateway."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors.cli.top.screen import TopState, everything
from mcp_actors.errors import UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.telemetry.snapshot import NodeSnapshot, ServerSight, Snapshot
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind


async def watched(gateway: Gateway) -> NodeSnapshot:
    return await ServerSight(gateway._runtime, "n", lambda: gateway.info).take(0.0)


async def test_the_tree_and_the_live_view_show_each_server(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    gateway = Gateway(
        [
            Upstream(name="here", target=behind, era="modern", lazy=True),
            Upstream(name="never", target=Behind(nursery), lazy=True),
            Upstream(name="unused", target=behind, lazy=True),
        ]
    )
    way = MemoryTransport()
    await nursery.start(gateway.serve, way)
    async with Client(way) as client, trio.open_nursery() as calls:
        with pytest.raises(UpstreamUnavailable):
            await client.call_tool("never_add")
        calls.start_soon(client.call_tool, "here_wait", {"seconds": 1})
        await trio.sleep(0.5)
        here, never, unused = gateway.tree().upstreams
        assert (here.state, here.in_flight, here.callers, here.connections) == ("connected", 1, 1, 1)
        assert (here.server, here.version) == ("behind 0", "2026-07-28")
        assert (never.state, never.failures, unused.state) == ("away", 1, "idle")
        assert "it is away" in never.last_failure
        node = await watched(gateway)
    assert [(each.name, each.in_flight) for each in node.upstreams] == [
        ("here", 1),
        ("never", 0),
        ("unused", 0),
    ]
    state = TopState(Snapshot(at=0.0, interval=1.0, watchers=1, nodes=[node]))
    lines = "\n".join(each.plain for each in everything(state, "n"))
    assert "upstreams (3)" in lines
    assert "it is away" in lines
