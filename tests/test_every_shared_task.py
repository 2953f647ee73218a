"""What the crash of each kind of task of the protocol's tasks, of stores and of forwarding costs, as `test_every_task`.

Two tasks run at a server, or two nodes serve one session, while one of the Trio tasks that this needs is made to raise
where it waits. The rows of Redis and of workers are left out: they need programs beside this one, whose failures are
the cases of `tests.shared.test_redis` and `tests.cli.workers.test_supervisor`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Server
from mcp_actors.abc import TaskRecord
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.task_kinds import (
    FORWARDED_REQUESTS,
    FORWARDING_MESSAGES,
    FORWARDING_WATCH,
    SHARED_STATE,
    SQLITE_LEASE,
    SQLITE_WORKER,
    TASK,
    TASK_END,
    TASK_STATUS,
    TASK_SWEEP,
    TASK_WATCH,
)
from tests.shared.spanning import Spanning
from tests.tasks.nodes import FakeShared
from tests.tasks.talking import EXTENSION, Talk, make_server, talking
from tests.test_every_task import CRASHES, EACH_CRASH, inject, tasks_below
from tests.transports.crashes import captured_logs
from tests.transports.http.nodes import nodes
from tests.transports.http.site import call
from tests.transports.lines import until


def errors(logs: list[Any]) -> list[str]:
    return [str(each["event"]) for each in logs if each["log_level"] == "error"]


def running(row: TaskKind) -> list[trio.lowlevel.Task]:
    """The tasks of a kind below the test's own."""
    below = tasks_below(trio.lowlevel.current_task())
    return [each for each in below if each.name == row.name or each.name.startswith(f"{row.name} ")]


def with_tools(server: Server) -> tuple[Server, trio.Event]:
    go = trio.Event()

    @server.tool(task="optional")
    async def hold(ctx: Context) -> str:
        await ctx.progress(1, 2, "it waits")
        await go.wait()
        return "held"

    return server, go


async def both_complete(talk: Talk, ids: list[str]) -> bool:
    return all([(await talk.until(id))["status"] == "completed" for id in ids])


@EACH_CRASH
@pytest.mark.parametrize("row", [TASK_STATUS, TASK_WATCH, TASK_SWEEP], ids=lambda row: row.name)
async def test_what_serves_tasks_costs_none(row: TaskKind, crash: str, autojump_clock: MockClock) -> None:
    server, go = with_tools(make_server(FakeShared(bus_spans=False)))
    with captured_logs() as logs:
        async with talking(server, EXTENSION) as talk:
            ids = [await talk.begin("hold") for _ in range(2)]
            await wait_all_tasks_blocked()
            inject(running(row)[0], CRASHES[crash]())
            await trio.sleep(10)
            # Messages have a task of their own for each task of the protocol: that of the other one is left.
            assert len(running(row)) == 1
            go.set()
            assert await both_complete(talk, [*ids, await talk.begin("hold")])
    assert errors(logs) == [f"{row.name} failed"]


class Broken(FakeShared):
    """Shared state whose store fails in a way that no store may, at the ``crashes`` first ends of tasks."""

    def __init__(self, crashes: int, make: Callable[[], BaseException]) -> None:
        super().__init__()
        self.left = crashes
        kept = self.store.replace

        async def replace(record: TaskRecord) -> bool:
            if record.is_terminal and self.left:
                self.left -= 1
                raise make()
            return await kept(record)

        self.store.replace = replace  # type: ignore[method-assign]


@EACH_CRASH
@pytest.mark.parametrize(
    ("crashes", "costs", "state"), [(1, [TASK], "failed"), (2, [TASK, TASK_END], "working")]
)
async def test_a_task_that_crashes_costs_itself(
    crashes: int, costs: list[TaskKind], state: str, crash: str, autojump_clock: MockClock
) -> None:
    server, go = with_tools(make_server(Broken(crashes, CRASHES[crash])))
    with captured_logs() as logs:
        async with talking(server, EXTENSION) as talk:
            victim = await talk.begin("hold")
            await wait_all_tasks_blocked()
            go.set()
            await trio.sleep(10)
            found = await talk.get(victim)
            assert found["status"] == state
            assert "injected" not in str(found)
            assert await both_complete(talk, [await talk.begin("hold")])
    assert errors(logs) == [f"{row.name} failed" for row in costs]


@EACH_CRASH
@pytest.mark.parametrize("row", [SQLITE_WORKER, SQLITE_LEASE], ids=lambda row: row.name)
async def test_what_serves_a_file_costs_no_task(row: TaskKind, crash: str, tmp_path: Path) -> None:
    server, go = with_tools(Server("s", shared=SqliteShared(tmp_path / "state.db", timeout=30)))
    with captured_logs() as logs:
        async with talking(server, EXTENSION) as talk:
            ids = [await talk.begin("hold") for _ in range(2)]
            before = running(row)
            inject(before[0], CRASHES[crash]())
            await until(lambda: bool(errors(logs)))
            assert running(row) == before
            go.set()
            assert await both_complete(talk, [*ids, await talk.begin("hold")])
    assert errors(logs) == [f"{row.name} failed"]


@EACH_CRASH
async def test_shared_state_that_has_ended_costs_what_needs_it(crash: str, tmp_path: Path) -> None:
    server, _ = with_tools(Server("s", shared=SqliteShared(tmp_path / "state.db", timeout=2)))

    @server.tool
    def plain() -> str:
        return "served"

    with captured_logs() as logs:
        async with talking(server, EXTENSION) as talk:
            inject(running(SHARED_STATE)[0], CRASHES[crash]())
            await until(lambda: bool(errors(logs)))
            await until(lambda: not running(SQLITE_WORKER))
            assert await talk.code("tools/call", {"name": "hold"}) == SharedStateUnavailable.CODE
            assert (await talk.result("tools/call", {"name": "plain"}))["content"][0]["text"] == "served"
    assert errors(logs)[0] == "shared state failed"


@EACH_CRASH
@pytest.mark.parametrize("row", [FORWARDING_MESSAGES, FORWARDING_WATCH], ids=lambda row: row.name)
async def test_what_serves_forwarding_costs_no_request(row: TaskKind, crash: str) -> None:
    with captured_logs() as logs:
        async with nodes(2, Spanning()) as (a, b):
            session = await a.open()
            before = running(row)
            assert len(before) == 2
            for each in before:
                inject(each, CRASHES[crash]())
            await until(lambda: len(errors(logs)) == 2)
            assert running(row) == before
            assert "result" in (await b.post(call(1, "add", a=1, b=1), session)).json()
    assert errors(logs) == [f"{row.name} failed"] * 2


@EACH_CRASH
async def test_a_listener_that_forwards_no_more_says_so(crash: str) -> None:
    with captured_logs() as logs:
        async with nodes(2, Spanning()) as (a, b):
            session = await a.open()
            assert "result" in (await b.post(call(1, "add", a=1, b=1), session)).json()
            for each in running(FORWARDED_REQUESTS):
                inject(each, CRASHES[crash]())
            await until(lambda: len(errors(logs)) == 2)
            assert "result" in (await a.post(call(2, "add", a=1, b=1), session)).json()
            assert (await b.post(call(3, "add", a=1, b=1), session)).status_code == 503
    assert errors(logs) == [f"{FORWARDED_REQUESTS.name} failed"] * 2
