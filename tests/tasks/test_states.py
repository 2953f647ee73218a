"""The state machine of tasks, under every sequence of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.abc import TaskRecord, TaskState
from mcp_actors.tasks import states

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
