"""The beginning of a task, cut off at every phase, and what it keeps of the session that began it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context
from mcp_actors.abc import TaskBounds, TaskRecord
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.testing import ScriptedPeer

from .nodes import FakeShared, FakeStore
from .talking import CORE, EXTENSION, Talk, make_server, talking

BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])


class SlowStore(FakeStore):
    """A store that takes a second to create a task, and keeps it before or after that."""

    def __init__(self, keeps: Literal["before", "after", "late"]) -> None:
        super().__init__()
        self._keeps = keeps

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        if self._keeps == "before":
            await super().create(record, bounds)
        await trio.sleep(1)
        if self._keeps == "late":
            # It was sent, and arrives when the connection is there again.
            trio.lowlevel.spawn_system_task(self._create_later, record, bounds)
            raise SharedStateUnavailable("tasks", "a test has cut it off")
        if self._keeps == "after":
            return await super().create(record, bounds)
        return None

    async def _create_later(self, record: TaskRecord, bounds: TaskBounds) -> None:
        await trio.sleep(3)
        await super().create(record, bounds)


@asynccontextmanager
async def beginning(version: str, store: FakeStore) -> AsyncIterator[tuple[Talk, int, list[str]]]:
    """A call that is about to become a task: its id, and what has run."""
    shared, runs = FakeShared(), list[str]()
    shared.store = store
    server = make_server(shared, running=2)

    @server.tool(task="required")
    async def work() -> str:
        runs.append("work")
        await trio.sleep(60)
        return "done"

    async with talking(server, version) as talk:
        id = await talk.send("tools/call", {"name": "work", **({"task": {}} if version == CORE else {})})
        yield talk, id, runs


@BOTH
@pytest.mark.parametrize("keeps", ["before", "after"])
async def test_a_call_that_is_cancelled_while_its_task_is_created_leaves_none_that_nobody_runs(
    version: str, keeps: Literal["before", "after"], autojump_clock: MockClock
) -> None:
    store = SlowStore(keeps)
    async with beginning(version, store) as (talk, id, runs):
        await trio.sleep(0.5)
        params = {"requestId": id, "reason": "never mind"}
        await talk.peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await trio.sleep(5)
        assert runs == []
        assert [each.state for each in store.records.values()] == (["failed"] if keeps == "before" else [])
        # Its place is free again: one client may run half of two.
        another = await talk.begin("work")
        assert (await talk.until(another))["status"] == "completed"


@BOTH
async def test_a_creation_that_arrives_after_an_outage_is_ended(
    version: str, autojump_clock: MockClock
) -> None:
    store = SlowStore("late")
    async with beginning(version, store) as (talk, id, runs):
        answer = await talk.answer_to(id)
        assert answer["error"]["code"] == 503
        await trio.sleep(20)
        assert [(each.state, each.message) for each in store.records.values()] == [
            ("failed", "its creation was interrupted")
        ]
        assert runs == []


@BOTH
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.5])
async def test_a_client_that_leaves_while_its_task_is_created(
    version: str, after: float, autojump_clock: MockClock
) -> None:
    """Whenever it leaves, its task either runs or is not there."""
    store = SlowStore("before")
    async with beginning(version, store) as (talk, _, runs):
        await trio.sleep(after)
        await talk.peer.channel.aclose()
        await trio.sleep(70)
        ended = [each.state for each in store.records.values()]
        assert ended == (["completed"] if runs else ["failed"] if store.records else [])


async def test_an_ended_session_is_not_kept_by_its_tasks(autojump_clock: MockClock) -> None:
    server, seen = make_server(), list[Any]()

    @server.tool(task="optional")
    async def work(ctx: Context) -> str:
        assert ctx.session is not None
        seen.append(ctx.session.name)
        await trio.sleep(60)
        seen.append(ctx.session)
        return "done"

    memory: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, memory)
        async with memory.connect() as channel:
            peer = ScriptedPeer(channel)
            await peer.initialize(CORE)
            await Talk(peer, CORE, {}).begin("work")
            await wait_all_tasks_blocked()
            held = weakref.ref(next(iter(server._runtime.sessions)).dispatcher)
        await wait_all_tasks_blocked()
        gc.collect()
        assert (held(), len(seen)) == (None, 1)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert seen[1] is None
