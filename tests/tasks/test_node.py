"""Tasks of several nodes: looked at anywhere, found when their node is gone, kept through outages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Server
from mcp_actors.abc import TaskBounds, TaskRecord
from mcp_actors.types import ElicitFormParams

from .nodes import FakeShared, FakeStore
from .talking import CORE, EXTENSION, Talk, make_server, talking

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANSWER = {"who": {"action": "accept", "content": {"name": "Ada"}}}
BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])


def make_node(shared: FakeShared, runs: list[str]) -> Server:
    server = make_server(shared)

    @server.tool(task="optional", restartable=True)
    async def patient(word: str, ctx: Context) -> str:
        runs.append(word)
        await trio.sleep(60)
        return f"{word} for {ctx.principal} by {ctx.peer.version}"

    @server.tool(task="optional")
    async def once(word: str) -> str:
        runs.append(word)
        await trio.sleep(60)
        return word

    @server.tool(task="optional")
    async def asking(ctx: Context) -> str:
        answers = await ctx.ask({"who": ElicitFormParams(message="Who?", requested_schema=FORM)})
        return f"Hello, {answers['who'].content['name']}!"

    return server


@asynccontextmanager
async def two_nodes(version: str, **options: Any) -> AsyncIterator[tuple[Talk, Talk, list[str], FakeShared]]:
    shared, runs = FakeShared(**options), list[str]()
    async with (
        talking(make_node(shared, runs), version) as first,
        talking(make_node(shared, runs), version) as second,
    ):
        yield first, second, runs, shared


@BOTH
@pytest.mark.parametrize("bus_spans", [True, False])
async def test_any_node_answers_for_a_task(version: str, bus_spans: bool, autojump_clock: MockClock) -> None:
    async with two_nodes(version, bus_spans=bus_spans) as (first, second, runs, _):
        id = await first.begin("once", {"word": "x"})
        assert (await second.get(id))["status"] == "working"
        if version == CORE:
            result = await second.result("tasks/result", {"taskId": id})
            assert result["content"][0]["text"] == "x"
        assert (await second.until(id))["status"] == "completed"
        assert runs == ["x"]


@BOTH
@pytest.mark.parametrize("bus_spans", [True, False])
async def test_a_task_is_cancelled_at_another_node(
    version: str, bus_spans: bool, autojump_clock: MockClock
) -> None:
    async with two_nodes(version, bus_spans=bus_spans) as (first, second, _, shared):
        id = await first.begin("once", {"word": "x"})
        await second.result("tasks/cancel", {"taskId": id})
        assert (await first.get(id))["status"] == "cancelled"
        await trio.sleep(100)
        assert shared.store.records[id].state == "cancelled"
        assert shared.store.records[id].outcome is None


@pytest.mark.parametrize("bus_spans", [True, False])
async def test_a_question_is_answered_at_another_node(bus_spans: bool, autojump_clock: MockClock) -> None:
    async with two_nodes(EXTENSION, bus_spans=bus_spans) as (first, second, _, _):
        id = await first.begin("asking")
        await second.until(id, "input_required")
        await second.result("tasks/update", {"taskId": id, "inputResponses": ANSWER})
        assert (await second.until(id))["result"]["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize("bus_spans", [True, False])
async def test_a_listener_hears_of_a_task_of_another_node(bus_spans: bool, autojump_clock: MockClock) -> None:
    async with two_nodes(EXTENSION, bus_spans=bus_spans) as (first, second, _, _):
        id = await first.begin("asking")
        await second.until(id, "input_required")
        listening = await second.send("subscriptions/listen", {"notifications": {"taskIds": [id, "unknown"]}})
        acknowledged = await second.peer.receive()
        assert acknowledged["params"]["notifications"] == {"taskIds": [id]}
        await trio.sleep(2)
        await first.result("tasks/update", {"taskId": id, "inputResponses": ANSWER})
        while True:
            told = await second.peer.receive()
            assert told["method"] == "notifications/tasks"
            assert told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == listening
            if told["params"]["status"] == "completed":
                break
        assert told["params"]["result"]["content"][0]["text"] == "Hello, Ada!"


async def test_nobody_listens_without_the_extension(autojump_clock: MockClock) -> None:
    server = make_node(FakeShared(), [])
    async with talking(server, EXTENSION, {}) as talk:
        code = await talk.code("subscriptions/listen", {"notifications": {"taskIds": ["x"]}})
        assert code == -32021
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert await talk.code(method, {"taskId": "x"}) == -32021


@BOTH
async def test_tasks_of_a_node_that_is_gone(version: str, autojump_clock: MockClock) -> None:
    async with two_nodes(version) as (first, second, runs, shared):
        ids = [await first.begin(name, {"word": name}) for name in ("patient", "once")]
        await trio.sleep(1)
        shared.store.lost.add(shared.nodes[0])
        await trio.sleep(6)
        again, failed = [await second.get(id) for id in ids]
        assert again["status"] == "working"
        assert failed["status"] == "failed"
        assert "ended" in failed["statusMessage"]
        assert runs == ["patient", "once", "patient"]
        await second.until(ids[0])
        assert shared.store.records[ids[0]].runs == 2
        assert b"patient for None by " in (shared.store.records[ids[0]].outcome or b"")
        assert version.encode() in (shared.store.records[ids[0]].outcome or b"")


async def test_a_task_that_ends_its_processes_is_given_up(autojump_clock: MockClock) -> None:
    shared, runs = FakeShared(), list[str]()
    async with talking(make_node(shared, runs), EXTENSION) as talk:
        id = await talk.begin("patient", {"word": "deadly"})
        await trio.sleep(1)
        shared.store.lost.add(shared.nodes[0])
        for number in range(1, 5):
            async with talking(make_node(shared, runs), EXTENSION):
                await trio.sleep(6)
                shared.store.lost.add(shared.nodes[number])
        assert shared.store.records[id].state == "failed"
        assert len(runs) == 3


async def test_tasks_that_no_node_can_run_do_not_hide_the_others(autojump_clock: MockClock) -> None:
    shared = FakeShared()
    server = make_node(shared, [])

    @server.tool(task="optional", restartable=True)
    async def removed() -> str:
        await trio.sleep_forever()
        return "never"

    async with talking(server, EXTENSION) as talk:
        for _ in range(250):
            await talk.begin("removed")
        lost = [await talk.begin("once", {"word": "x"}) for _ in range(250)]
        # As if its process had been killed.
        records = dict(shared.store.records)
    shared.store.records.update(records)
    async with talking(make_node(shared, []), EXTENSION):
        await trio.sleep(1)
        states = [each.state for each in shared.store.records.values()]
        assert (states.count("working"), states.count("failed")) == (250, 250)
        assert all(shared.store.records[id].state == "failed" for id in lost)


@BOTH
async def test_the_outcome_is_kept_when_an_outage_is_over(version: str, autojump_clock: MockClock) -> None:
    shared = FakeShared()
    async with talking(make_node(shared, []), version) as talk:
        id = await talk.begin("once", {"word": "x"})
        await trio.sleep(30)
        shared.store.away = True
        assert await talk.code("tasks/get", {"taskId": id}) == 503
        params = {"name": "once", "arguments": {"word": "y"}, "task": {}}
        assert await talk.code("tools/call", params) == 503
        await trio.sleep(600)
        shared.store.away = False
        await trio.sleep(10)
        assert (await talk.get(id))["status"] == "completed"


async def test_a_server_that_stops_gives_tasks_their_time(autojump_clock: MockClock) -> None:
    shared, runs = FakeShared(), list[str]()
    server = make_node(shared, runs)

    @server.tool(task="optional")
    async def quick() -> str:
        await trio.sleep(2)
        return "done"

    async with talking(server, EXTENSION) as talk:
        ids = [await talk.begin("quick"), await talk.begin("once", {"word": "x"})]
        ids.append(await talk.begin("patient", {"word": "y"}))
        await wait_all_tasks_blocked()
        server.stop()
        await trio.sleep(60)
        records = [shared.store.records[id] for id in ids]
        assert [each.state for each in records] == ["completed", "failed", "working"]
        assert records[1].message == "the server that ran it was stopped"


async def test_a_server_that_is_cancelled_waits_for_nothing(autojump_clock: MockClock) -> None:
    shared = FakeShared()
    async with talking(make_node(shared, []), EXTENSION) as talk:
        id = await talk.begin("once", {"word": "x"})
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert shared.store.records[id].state == "failed"


# -- Requests about a task, and questions of its function, cut off at every phase ------------------------
#
# The task goes on as if nothing was.

ANSWER_CUT_OFF = {"action": "accept", "content": {"name": "Ada"}}
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
        params = {"taskId": id, "inputResponses": {"who": ANSWER_CUT_OFF}}
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
                await talk.peer.send({"jsonrpc": "2.0", "id": message["id"], "result": ANSWER_CUT_OFF})
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
