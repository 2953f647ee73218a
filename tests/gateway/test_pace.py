"""What an upstream tells unasked is bounded, over all its connections, and costs no other one."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context
from mcp_actors._actors.session import ReadingPace
from mcp_actors._wire.codec import JsonRpcNotification, JsonRpcResult
from mcp_actors.gateway import Gateway, Upstream
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind, make_server

NOTIFICATION = JsonRpcNotification("notifications/message")
RESULT = JsonRpcResult(1, msgspec.Raw(b"{}"))


async def test_so_many_may_come_at_once_and_then_at_their_rate(autojump_clock: MockClock) -> None:
    pace = ReadingPace(100)
    assert pace.take([NOTIFICATION] * 100) == 0
    assert pace.take([NOTIFICATION] * 50) == pytest.approx(0.5)
    await trio.sleep(0.5)
    assert pace.take([NOTIFICATION]) == pytest.approx(0.01)
    await trio.sleep(10)
    assert pace.take([NOTIFICATION] * 101) == pytest.approx(0.01)


async def test_answers_count_nothing_and_a_batch_counts_what_is_in_it(autojump_clock: MockClock) -> None:
    pace = ReadingPace(10)
    assert pace.take([RESULT] * 1000) == 0
    assert pace.take([[NOTIFICATION] * 20]) == pytest.approx(1.0)
    assert pace.take([RESULT]) == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_flooding_upstream_waits_and_another_does_not(
    nursery: trio.Nursery, autojump_clock: MockClock, era: str
) -> None:
    """None of fifty reports is lost where ten a second may come, and nothing more is read for seconds."""
    server = make_server()

    @server.tool
    async def flood(ctx: Context) -> str:
        for number in range(50):
            await ctx.progress(number + 1)
        return "done"

    flooding, quiet = Behind(nursery, server), Behind(nursery)
    for behind in (flooding, quiet):
        await behind.come()
    transport = MemoryTransport()
    bad = Upstream(name="bad", target=flooding, era=era, max_notifications=10)
    await nursery.start(Gateway([bad, Upstream(name="good", target=quiet, era=era)]).serve, transport)
    reports: list[float] = []
    async with Client(transport) as client:

        async def took(tool: str, **arguments: int) -> float:
            began = trio.current_time()
            await client.call_tool(
                tool, arguments, on_progress=lambda progress: reports.append(progress.progress)
            )
            return trio.current_time() - began

        assert await took("bad_flood") < 1
        assert reports == list(range(1, 51))
        assert await took("good_add", a=1, b=2) == 0
        assert await took("bad_add", a=1, b=2) > 3
        assert await took("bad_add", a=1, b=2) == 0
