"""The pauses between looks at a task, and what is asked of a person, whatever a server says."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors._client.task_requests import LONGEST_PAUSE, SHORTEST_PAUSE, pause_before_look
from mcp_actors.errors import McpError
from mcp_actors.types import ElicitResult
from tests.messages import MODERN

from .task_scripts import TaskScript, completed, playing

QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


@given(told=st.none() | st.floats(), looks=st.integers(0, 10**9))
def test_every_pause_is_within_the_bounds(told: float | None, looks: int) -> None:
    assert SHORTEST_PAUSE <= pause_before_look(told, looks) <= LONGEST_PAUSE


@given(told=st.floats(SHORTEST_PAUSE, LONGEST_PAUSE), looks=st.integers(0, 100))
def test_a_sane_wish_is_kept(told: float, looks: int) -> None:
    assert pause_before_look(told, looks) == told


def test_pauses_grow_where_a_server_says_nothing() -> None:
    pauses = [pause_before_look(None, looks) for looks in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(5.0)


_LOOKS = st.one_of(
    st.just({"status": "working"}),
    st.builds(
        lambda keys: {"status": "input_required", "inputRequests": dict.fromkeys(keys, QUESTION)},
        st.lists(st.sampled_from("abc"), max_size=3),
    ),
    st.sampled_from(
        [{"status": "asleep"}, {"status": "cancelled"}, {"status": "failed"}, {"status": "completed"}]
    ),
)


@settings(max_examples=25, deadline=None)
@given(looks=st.lists(_LOOKS, max_size=8), poll=st.none() | st.integers(-(10**12), 10**12))
def test_any_course_of_a_task_ends_with_a_result_or_an_error_and_no_question_is_put_twice(
    looks: list[dict[str, Any]], poll: int | None
) -> None:
    script = TaskScript(MODERN, *looks, completed(MODERN), poll=poll)
    script.grants_listening = False

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async def play() -> str:
        async with playing(script, elicitation=accept) as client:
            try:
                return (await client.call_tool("t", cap=10_000)).text
            except McpError as error:
                return type(error).__name__

    outcome = trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    answered = [key for each in script.params("tasks/update") for key in each["inputResponses"]]
    assert sorted(answered) == sorted(set(answered))
    assert outcome in ("done", "TaskCancelled", "RemoteProtocolError")
    assert script.methods.count("tools/call") == 1
