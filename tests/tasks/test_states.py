"""The state machine of tasks, under every sequence of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Context, Server
from mcp_actors._server.tools import TaskRules
from mcp_actors.abc import TaskRecord, TaskState
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import RpcError
from mcp_actors.examples.everything import server as everything
from mcp_actors.tasks import states
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitFormParams
from tests.actors.peers import Serves

from .talking import ASKED, CORE, DECLARED, EXTENSION, Talk, make_server, talking

KEYS = st.sampled_from(["a", "b", "c"])
NOW = st.floats(min_value=0, max_value=100)
SOME = st.dictionaries(KEYS, st.integers(), max_size=3)
Event = Callable[[TaskRecord], TaskRecord | None]


def event(name: str, *arguments: Any) -> st.SearchStrategy[Event]:
    function: Callable[..., TaskRecord | None] = getattr(states, name)
    return st.tuples(*arguments, NOW).map(lambda given: lambda record: function(record, *given))


EVENTS = st.one_of(
    event("described", st.none() | st.text(max_size=3)),
    event("asked", SOME),
    event("answered", SOME),
    event("taken", st.lists(KEYS)),
    event("withdrawn", st.lists(KEYS)),
    event("sent", st.integers()),
    event("took_messages", st.integers(0, 4)),
    event("completed", st.just(b'{"result":{}}')),
    event("failed", st.just(b'{"error":{}}'), st.none() | st.just("broken")),
    event("cancelled", st.none() | st.just("not wanted")),
    event("restarted", st.sampled_from(["n1", "n2"])),
)


def fresh(**changes: Any) -> TaskRecord:
    given: dict[str, Any] = {
        "id": "t1",
        "owner": "",
        "tool": "slow",
        "version": "2026-07-28",
        "request": b"{}",
        "created": 1.0,
        "updated": 1.0,
        "ttl": 60.0,
        "poll_interval": 1.0,
        "node": "n1",
        "restartable": True,
    }
    return TaskRecord(**{**given, **changes})


@given(st.lists(EVENTS, max_size=12))
def test_every_sequence_of_events_keeps_the_rules(events: list[Event]) -> None:
    record = fresh()
    for each in events:
        after = each(record)
        if after is None:
            continue
        assert not record.is_terminal, "a terminal state never changes"
        assert after.state in states.NEXT_STATES[record.state]
        assert after.revision == record.revision + 1
        assert after.updated >= record.updated
        assert (after.id, after.owner, after.created, after.ttl) == ("t1", "", 1.0, 60.0)
        assert (after.state == "input_required") == bool(states.questions_of(after))
        assert (after.outcome is not None) == (after.state in ("completed", "failed"))
        assert after.messages_taken >= record.messages_taken
        assert not (after.is_terminal and states.messages_of(after))
        assert not set(states.questions_of(after)) & set(states.answers_of(after)) or after.state != "working"
        record = after


@given(EVENTS, st.sampled_from(["completed", "failed", "cancelled"]))
def test_nothing_happens_to_a_task_that_has_ended(event: Event, state: TaskState) -> None:
    assert event(fresh(state=state, questions=b'{"a":1}', answers=b'{"b":1}')) is None


def test_every_state_has_a_row() -> None:
    assert set(states.NEXT_STATES) == set(get_args(TaskState))


def test_a_partial_answer_leaves_the_other_questions() -> None:
    record = states.asked(fresh(), {"a": 1, "b": 2}, 2.0)
    assert record is not None
    first = states.answered(record, {"a": 10, "x": 11}, 3.0)
    assert first is not None
    assert first.state == "input_required"
    assert states.questions_of(first) == {"b": 2}
    assert states.answers_of(first) == {"a": 10}
    assert states.answered(first, {"a": 99}, 4.0) is None
    last = states.answered(first, {"b": 20}, 4.0)
    assert last is not None
    assert last.state == "working"
    assert states.answers_of(last) == {"a": 10, "b": 20}
    emptied = states.taken(last, ["a", "b"], 5.0)
    assert emptied is not None
    assert states.answers_of(emptied) == {}


def test_another_node_begins_anew() -> None:
    record = states.asked(fresh(message="half"), {"a": 1}, 2.0)
    assert record is not None
    again = states.restarted(record, "n2", 3.0)
    assert again is not None
    assert (again.state, again.node, again.runs, again.message) == ("working", "n2", 2, None)
    assert states.questions_of(again) == {}
    assert states.restarted(record, "n1", 3.0) is None
    assert states.restarted(msgspec.structs.replace(record, restartable=False), "n2", 3.0) is None


def test_a_long_status_message_is_cut() -> None:
    record = states.described(fresh(), "x" * 5000, 2.0)
    assert record is not None
    assert record.message is not None
    assert len(record.message) == states.LONGEST_MESSAGE


# -- Every tool of the everything server that can become a task, called both ways ------------------------

PLAIN = [
    ("test_simple_text", {}),
    ("test_image_content", {}),
    ("test_multiple_content_types", {}),
    ("test_error_handling", {}),
    ("add", {"a": 1, "b": 2}),
    ("divide", {"a": 1, "b": 0}),
    ("echo", {"text": "x"}),
    ("json_schema_2020_12_tool", {"nonsense": 1}),
]


def as_tasks() -> Server:
    """The tools of the everything server, all of which may become tasks."""
    server = make_server(poll_interval=0.01)
    for entry in everything._features.tools:
        server._features.tools.insert(
            msgspec.structs.replace(entry, rules=TaskRules("optional", False, None))
        )
    return server


@pytest.mark.parametrize("version", [CORE, EXTENSION])
@pytest.mark.parametrize(("name", "arguments"), PLAIN)
async def test_results_are_those_of_the_plain_call(
    name: str, arguments: dict[str, Any], version: str
) -> None:
    params = {"name": name, "arguments": arguments}
    async with talking(as_tasks(), version, ASKED) as talk:
        plain = await talk.result("tools/call", params)
    async with talking(as_tasks(), version) as talk:
        id = await talk.begin(name, arguments)
        task = await talk.until(id)
        result = task.get("result") or await talk.result("tasks/result", {"taskId": id})
    if version == CORE:
        assert result.pop("_meta") == {"io.modelcontextprotocol/related-task": {"taskId": id}}
    assert result == plain


# -- What hostile clients, other tenants and careless authors of tools get: a refusal, and nobody else notices ---

BOTH = pytest.mark.parametrize("version", [CORE, EXTENSION])
OVERLOADED = 429


def with_tools(server: Server) -> Server:
    @server.tool(task="optional")
    async def quick(text: str = "") -> str:
        return "quick"

    @server.tool(task="optional")
    async def large(size: int) -> str:
        return "x" * size

    @server.tool(task="optional")
    async def says(ctx: Context) -> str:
        await ctx.progress(1, 2, "half \ud800 done")
        await trio.sleep(5)
        return "done"

    @server.tool(task="optional")
    async def refuses(size: int) -> str:
        raise RpcError(-32000, "no", {"why": "x" * size})

    return server


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_ttl", [None, 60.0])
@pytest.mark.parametrize("asked", [10**400, 1e308, 2**64])
async def test_no_number_is_too_large_for_a_time(
    asked: float, max_ttl: float | None, autojump_clock: MockClock
) -> None:
    async with talking(with_tools(make_server(ttl=60, max_ttl=max_ttl)), CORE) as talk:
        task = (await talk.result("tools/call", {"name": "quick", "task": {"ttl": asked}}))["task"]
        assert task["ttl"] == (None if max_ttl is None else 60_000)
        assert (await talk.until(task["taskId"]))["status"] == "completed"


async def test_tasks_whose_time_is_over_hide_none_from_the_list(autojump_clock: MockClock) -> None:
    async with talking(with_tools(make_server()), CORE) as talk:
        for _ in range(102):
            await talk.result("tools/call", {"name": "quick", "task": {"ttl": 1}})
        kept = [await talk.begin("quick") for _ in range(101)]
        await trio.sleep(1)
        first = await talk.result("tasks/list")
        second = await talk.result("tasks/list", {"cursor": first["nextCursor"]})
        assert [each["taskId"] for each in first["tasks"] + second["tasks"]] == kept
        assert "nextCursor" not in second


@BOTH
async def test_one_address_cannot_take_the_bytes_of_all(version: str, autojump_clock: MockClock) -> None:
    server = with_tools(make_server(bytes_per_principal=100_000, bytes_in_all=1_000_000))
    async with talking(server, version) as talk:
        arguments = {"text": "x" * 30_000}
        created = [await talk.ask("tools/call", _call(version, "quick", arguments)) for _ in range(5)]
        assert ["error" in each for each in created] == [False, False, False, True, True]
        assert created[3]["error"]["code"] == OVERLOADED
        assert created[3]["error"]["data"]["scope"] == "holder"
        # It may go on when the time of its tasks is over.
        await trio.sleep(3600)
        assert "result" in await talk.ask("tools/call", _call(version, "quick", arguments))


@BOTH
async def test_results_count_for_the_address_that_has_them_kept(
    version: str, autojump_clock: MockClock
) -> None:
    server = with_tools(make_server(bytes_per_principal=100_000))
    async with talking(server, version) as talk:
        await talk.until(await talk.begin("large", {"size": 150_000}))
        assert await talk.code("tools/call", _call(version, "quick", {})) == OVERLOADED


@BOTH
async def test_a_refused_task_counts_for_nobody(version: str, autojump_clock: MockClock) -> None:
    server = with_tools(make_server(in_all=1))
    async with talking(server, version) as talk:
        await talk.begin("quick")
        for _ in range(1001):
            refused = await talk.ask("tools/call", _call(version, "quick", {}))
            assert refused["error"]["data"] == {"reason": "overloaded", "scope": "all", "limit": 1}


def _call(version: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    return {**params, "task": {}} if version == CORE else params


async def test_answers_that_a_task_has_not_taken_are_bounded(autojump_clock: MockClock) -> None:
    server = make_server()

    @server.tool(task="optional")
    async def asks(ctx: Context) -> str:
        form = {"type": "object", "properties": {"text": {"type": "string"}}}
        asked = {name: ElicitFormParams(message=name, requested_schema=form) for name in "abcd"}
        return str(len(await ctx.ask(asked)))

    answer = {"action": "accept", "content": {"text": "x" * 12_000_000}}
    async with talking(server, EXTENSION) as talk:
        id = await talk.begin("asks")
        asked = await talk.until(id, "input_required")
        answers = [
            await talk.ask("tasks/update", {"taskId": id, "inputResponses": {name: answer}})
            for name in asked["inputRequests"]
        ]
        assert ["error" in each for each in answers] == [False, False, False, True]


# -- authors of tools -------------------------------------------------------------------------------------------------


@BOTH
async def test_a_status_message_that_json_cannot_hold(version: str, autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with talking(with_tools(make_server()), version) as talk:
            id = await talk.begin("says")
            await trio.sleep(2)
            assert (await talk.get(id))["statusMessage"] == "half ? done"
            assert (await talk.until(id))["status"] == "completed"
    assert [each for each in logs if each["log_level"] == "error"] == []


@BOTH
@pytest.mark.parametrize("tool", ["large", "refuses"])
@pytest.mark.parametrize("around", [-5000, -300, 300, 50_000])
async def test_what_no_answer_can_carry_is_no_outcome(
    version: str, tool: str, around: int, autojump_clock: MockClock
) -> None:
    """A task whose outcome cannot be sent would never be known to have ended."""
    limit = 100_000
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=limit) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(with_tools(make_server()).serve, Serves(near))
        talk = Talk(ScriptedPeer(far), version, {**ASKED, **DECLARED})
        if version == CORE:
            await talk.peer.initialize(version, {})
        id = await talk.begin(tool, {"size": limit + around})
        task = await talk.until(id)
        shown = task if version == EXTENSION else await talk.ask("tasks/result", {"taskId": id})
        assert shown["error"]["code"] in (-32603, -32000)
        assert len(str(shown)) < 2000
        nursery.cancel_scope.cancel()
