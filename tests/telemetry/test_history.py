"""The last ten minutes of a server, which its live view has before anybody looks, and what it says of its health."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.abc import ServerHandler
from mcp_actors.errors import UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.supervision.containment import Crash, crash_log
from mcp_actors.supervision.histogram import quantile_of_buckets
from mcp_actors.telemetry import Metrics, Together
from mcp_actors.telemetry.history import MOST_KEPT, MOST_SHOWN, SAMPLES, OperationRow, ProcessRow, counting
from mcp_actors.telemetry.live_view import Action, ActionOutcome, Feed, ServerView
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.telemetry.snapshot import NodeSnapshot, Queues, Snapshot, troubles_of
from tests.gateway.upstreams import Behind, make_server


class Watched:
    """A companion that keeps the history of its server, and looks at it without an endpoint."""

    is_companion: Literal[True] = True

    def __init__(self) -> None:
        self.view: ServerView | None = None
        self.feed: Feed | None = None

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.view = ServerView(handler)
        self.feed = Feed(self.view)
        task_status.started(None)
        await self.view.keep_history()

    async def snapshot(self) -> Snapshot:
        assert self.feed is not None
        return msgspec.json.decode(await self.feed.latest(), type=Snapshot)

    async def node(self) -> NodeSnapshot:
        (found,) = (await self.snapshot()).nodes
        return found

    async def cancel_task(self, key: str) -> ActionOutcome:
        assert self.view is not None
        return await self.view.act(Action("cancel_task", self.view.node, key), "a test")


@asynccontextmanager
async def watched(server: Server, name: str) -> AsyncIterator[Watched]:
    found = Watched()
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[object]) -> None:
                await server.serve(f"memory:{name}", found, task_status=task_status)

            await nursery.start(serve)
            yield found
            nursery.cancel_scope.cancel()


def rows(node: NodeSnapshot) -> dict[str, OperationRow]:
    return {each.name: each for each in node.operations}


def working() -> Server:
    server = Server("watched", telemetry=Metrics())

    @server.tool
    async def work(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    @server.tool
    async def fail() -> str:
        raise ValueError("the disk is full")

    return server


async def test_it_is_there_before_anybody_looks(autojump_clock: MockClock) -> None:
    async with watched(working(), "history") as view, Client("memory:history", era="legacy") as client:
        for _ in range(9):
            await client.call_tool("work", {"seconds": 0.5})
        await client.call_tool("fail")
        await trio.sleep(6)
        await client.call_tool("work", {"seconds": 4.0})
        await trio.sleep(7)
        node = await view.node()
        history, work, fail = node.history, rows(node)["work"], rows(node)["fail"]
        assert history is not None
        # The first reading has the ten calls, the second the slow one; initialize and initialized count too.
        assert work.series == [9, 1]
        assert (fail.series, fail.series_failed) == ([1, 0], [1, 0])
        assert (work.calls, work.failed, fail.failed) == (10, 0, 1)
        assert work.quantile(0.5) == pytest.approx(0.5, rel=0.3)
        assert work.quantile(0.99) == pytest.approx(4.0, rel=0.3)
        assert history.failed == [0.1, 0.0]
        first, second = history.p50
        assert first == pytest.approx(0.5, rel=0.3)
        assert second == pytest.approx(4.0, rel=0.3)
        assert history.requests[1] == pytest.approx(0.1)
        assert history.sessions == [1, 1]
        # What came since the last reading counts already.
        await client.call_tool("work", {"seconds": 0.001})
        await trio.sleep(0.6)
        now = rows(await view.node())["work"]
        assert (now.calls, now.series) == (11, [9, 1])
        assert now.rate is not None
        assert now.rate > 0
        await trio.sleep(1200)
        node = await view.node()
        assert node.history is not None
        assert len(node.history.requests) == SAMPLES
        assert node.operations == []


async def test_without_metrics_there_is_what_the_server_counts_itself(autojump_clock: MockClock) -> None:
    server = Server("watched")
    async with watched(server, "uncounted") as view, Client("memory:uncounted", era="legacy") as client:
        await client.ping()
        await trio.sleep(15)
        node = await view.node()
    assert (node.counts_calls, node.operations) == (False, [])
    assert node.history is not None
    assert node.history.requests[0] > 0
    assert node.history.p50 == []


async def test_its_memory_is_bounded(autojump_clock: MockClock) -> None:
    server = Server("many", telemetry=Metrics())

    async def tool() -> str:
        return "done"

    for number in range(MOST_KEPT + 50):
        server.add_tool(tool, name=f"tool{number}")
    async with watched(server, "many") as view, Client("memory:many", era="legacy") as client:
        for number in range(MOST_KEPT + 50):
            await client.call_tool(f"tool{number}")
        await trio.sleep(15)
        node = await view.node()
    assert len(node.operations) == MOST_SHOWN
    assert rows(node)["other"].calls >= 50


async def test_upstreams_have_rates_of_their_own(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    behind = Behind(nursery, make_server())
    await behind.come()
    upstreams = [Upstream(name="a", target=behind, era="modern"), Upstream(name="b", target=make_server())]
    gateway = Gateway(upstreams, telemetry=Metrics())
    # Those of other tests in this process.
    crash_log.recent = ()
    async with watched(gateway, "gateway") as view, Client("memory:gateway") as client:
        await client.call_tool("a_add", {"a": 1, "b": 2})
        await trio.sleep(12)
        snapshot = await view.snapshot()
        (row,) = [each for each in snapshot.nodes[0].operations if each.upstream == "a"]
        assert row.calls >= 1
        assert row.quantile(0.99) is not None
        assert snapshot.troubles == []
        behind.go()
        await trio.sleep(20)
        with pytest.raises(UpstreamUnavailable):
            await client.call_tool("a_add", {"a": 1, "b": 2})
        (trouble,) = [each for each in (await view.snapshot()).troubles if "upstream" in each.text]
    assert trouble.grave
    assert trouble.text.startswith("upstream a is away: ")


async def test_a_task_is_shown_without_its_id_and_cancelled(autojump_clock: MockClock) -> None:
    server = Server("tasks")

    @server.tool(task="required")
    async def long() -> str:
        await trio.sleep_forever()
        return "never"

    async with watched(server, "tasks") as view, Client("memory:tasks") as client:
        task = await client.start_tool("long")
        (shown,) = (node := await view.node()).tasks
        assert (shown.tool, shown.state, node.running_tasks) == ("long", "working", 1)
        assert task.id is not None
        assert task.id not in json.dumps(msgspec.to_builtins(node))
        assert (await view.cancel_task("0" * 16)) == ActionOutcome(False, "the task has ended")
        assert (await view.cancel_task(shown.key)) == ActionOutcome(True, "the task was cancelled")
        assert (await task.status()).status == "cancelled"
        await trio.sleep(1)
        assert (await view.node()).tasks == []


def test_what_counts_already_is_not_counted_twice() -> None:
    metrics = Metrics()
    assert counting(metrics) is metrics
    together = Together(OpenTelemetry(metrics=metrics), Together())
    assert counting(together) is together
    assert isinstance(counting(None), Metrics)
    assert isinstance(counting(OpenTelemetry()), Together)


# -- health ------------------------------------------------------------------------------------------------

WELL = NodeSnapshot(
    node="n1",
    server="s",
    version="1",
    host="h",
    pid=7,
    state="serving",
    uptime=900.0,
    at=10_000.0,
    lag=0.001,
    process=ProcessRow(processor=1.0, memory=5, descriptors=10, descriptors_limit=1024),
    queues=Queues(
        sessions=1,
        running=3,
        running_limit=10,
        waiting=0,
        queued=0,
        blocked=0,
        subscriptions=0,
        events=0,
        in_flight_bytes=0,
        in_flight_limit=100,
        kept_bytes=0,
        kept_limit=100,
    ),
    operations=[
        OperationRow(method="tools/call", target="slow", ended=9, calls=9, series=[9], series_failed=[0])
    ],
)
FULL = Queues(**{**msgspec.structs.asdict(WELL.queues), "waiting": 4, "running": 10, "kept_bytes": 85})
FAILING = OperationRow(
    method="tools/call",
    target="save",
    ended=200,
    calls=110,
    failed=2,
    series=[90] + [0] * 10 + [10],
    series_failed=[0] * 12,
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        (
            {"state": "gone", "note": "killed by SIGKILL", "worker": 2},
            [(True, "worker 2 is gone: killed by SIGKILL")],
        ),
        ({"state": "stopping"}, [(False, "n1 is stopping")]),
        ({"note": "silent for 3.0 s"}, [(False, "n1 is silent for 3.0 s")]),
        ({"missing": ["shared state: no route"]}, [(True, "not ready: shared state: no route")]),
        ({"lag": 0.3}, [(False, "a turn of the event loop takes 0.30 s: a function does not await")]),
        ({"lag": 2.0}, [(True, "a turn of the event loop takes 2.00 s: a function does not await")]),
        (
            {"process": ProcessRow(processor=1.0, descriptors=820, descriptors_limit=1024)},
            [(True, "820 of 1024 descriptors are open")],
        ),
        (
            {"queues": FULL},
            [
                (False, "4 calls wait for one of 10 places"),
                (False, "clients fill 85% of the memory that they may take"),
            ],
        ),
        ({"operations": [FAILING]}, [(True, "save: 2 of 20 calls failed in the last minute")]),
        (
            {"crashes": [Crash(kind="drain", task="drain", error="x", at=9_990.0, restarted=True)]},
            [(False, "a task has crashed in the last ten minutes: drain")],
        ),
        ({"crashes": [Crash(kind="drain", task="drain", error="x", at=9.0, restarted=True)]}, []),
    ],
)
def test_what_an_operator_should_know_first(changes: dict[str, Any], said: list[tuple[bool, str]]) -> None:
    found = troubles_of([msgspec.structs.replace(WELL, **changes)])
    assert [(each.grave, each.text) for each in found] == said


def test_that_because_of_which_calls_fail_comes_first() -> None:
    late = msgspec.structs.replace(WELL, lag=0.3)
    gone = msgspec.structs.replace(WELL, state="gone", node="n2")
    assert [each.node for each in troubles_of([late, gone])] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 0.5),
        ([0, 10, 0], 1.0, 3.0),
        ([5, 5, 0], 0.75, 2.0),
        ([0, 0, 4], 0.5, 3.0),
    ],
)
def test_a_quantile_of_buckets(counts: list[int], share: float, seconds: float | None) -> None:
    assert quantile_of_buckets((1.0, 3.0), counts, share) == seconds
