"""Requests about a task, and questions of its function, cut off at every phase: the task goes on as if nothing was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Context
from mcp_actors.abc import TaskBounds, TaskRecord

from .nodes import FakeShared, FakeStore
from .talking import CORE, EXTENSION, Talk, make_server, talking

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANSWER = {"action": "accept", "content": {"name": "Ada"}}
BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])
# Each step of the store takes 0.1 s before and 0.1 s after it has its effect, so that these are in the middle of each.
PHASES = pytest.mark.parametrize("phase", [0.0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65])


class SlowStore(FakeStore):
    """A store whose every step may be cut off before and after it has its effect."""

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        await trio.sleep(0.1)
        over = await super().create(record, bounds)
        await trio.sleep(0.1)
        return over

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        await trio.sleep(0.1)
        found = await super().get(ids)
        await trio.sleep(0.1)
        return found

    async def replace(self, record: TaskRecord) -> bool:
        await trio.sleep(0.1)
        kept = await super().replace(record)
        await trio.sleep(0.1)
        return kept


@asynccontextmanager
async def asking(version: str, patience: float = 1000.0) -> AsyncIterator[tuple[Talk, FakeStore, str]]:
    """A task whose function asks, for as long as it has patience, and works on for ten seconds."""
    shared = FakeShared()
    shared.store = SlowStore()
    server = make_server(shared, poll_interval=0.5)

    @server.tool(task="required")
    async def work(ctx: Context) -> str:
        name = "nobody"
        with trio.move_on_after(patience):
            answer = await ctx.elicit("Who?", FORM, key="who")
            name = (answer.content or {})["name"]
        await trio.sleep(10)
        return f"Hello, {name}!"

    async with talking(server, version) as talk:
        yield talk, shared.store, await talk.begin("work")


async def cut(talk: Talk, request: int, phase: float) -> None:
    await trio.sleep(phase)
    await talk.peer.send(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request}}
    )


@PHASES
async def test_an_update_that_is_cut_off_is_made_or_can_be_made_again(
    phase: float, autojump_clock: MockClock
) -> None:
    async with asking(EXTENSION) as (talk, _, id):
        await talk.until(id, "input_required")
        params = {"taskId": id, "inputResponses": {"who": ANSWER}}
        await cut(talk, await talk.send("tasks/update", params), phase)
        assert (await talk.result("tasks/update", params))["resultType"] == "complete"
        ended = await talk.until(id)
        assert ended["result"]["content"][0]["text"] == "Hello, Ada!"


@PHASES
async def test_a_wait_that_is_cut_off_leaves_the_question_to_another(
    phase: float, autojump_clock: MockClock
) -> None:
    async with asking(CORE) as (talk, _, id):
        await talk.until(id, "input_required")
        await cut(talk, await talk.send("tasks/result", {"taskId": id}), phase)
        await trio.sleep(1)
        waits = await talk.send("tasks/result", {"taskId": id})
        message: dict[str, Any] = {}
        while message.get("id") != waits or "method" in message:
            message = await talk.peer.receive()
            if message.get("method") == "elicitation/create":
                # The answer to one that was withdrawn with its wait is passed over.
                await talk.peer.send({"jsonrpc": "2.0", "id": message["id"], "result": ANSWER})
        assert message["result"]["content"][0]["text"] == "Hello, Ada!"


@BOTH
@PHASES
async def test_a_cancellation_that_is_cut_off_is_made_or_can_be_made_again(
    version: str, phase: float, autojump_clock: MockClock
) -> None:
    async with asking(version) as (talk, store, id):
        await cut(talk, await talk.send("tasks/cancel", {"taskId": id}), phase)
        await trio.sleep(1)
        await talk.ask("tasks/cancel", {"taskId": id})
        assert store.records[id].state == "cancelled"


@BOTH
@PHASES
async def test_a_question_that_is_given_up_is_no_longer_asked(
    version: str, phase: float, autojump_clock: MockClock
) -> None:
    async with asking(version, patience=phase) as (talk, store, id):
        await trio.sleep(5)
        record = store.records[id]
        assert (record.state, record.questions, record.answers) == ("working", b"{}", b"{}")
        await talk.until(id)
        assert store.records[id].outcome is not None
        assert b"Hello, nobody!" in (store.records[id].outcome or b"")
