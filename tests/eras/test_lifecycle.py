"""The lifecycle of a legacy session: every state with every event, and what no order of messages can bring about."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.server_negotiation import LegacySessionState, negotiate
from mcp_actors._eras.server_negotiation import LifecycleEvent as Event
from mcp_actors._eras.server_negotiation import LifecycleState as State
from mcp_actors.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from tests.messages import initialize_params

SERVED = tuple(LEGACY)


def conversation_in(state: State) -> LegacySessionState:
    conversation = LegacySessionState(SERVED)
    if state is not State.NEW:
        conversation.open(0, "initialize", initialize_params(), None)
    if state is State.OPERATING:
        conversation.notified("notifications/initialized")
    assert conversation.state is state
    return conversation


EXPECTED = {
    (State.NEW, Event.INITIALIZE): State.ANSWERED,
    (State.NEW, Event.INITIALIZED): None,
    (State.NEW, Event.PING): State.NEW,
    (State.NEW, Event.REQUEST): None,
    (State.ANSWERED, Event.INITIALIZE): None,
    (State.ANSWERED, Event.INITIALIZED): State.OPERATING,
    (State.ANSWERED, Event.PING): State.ANSWERED,
    (State.ANSWERED, Event.REQUEST): State.OPERATING,
    (State.OPERATING, Event.INITIALIZE): None,
    (State.OPERATING, Event.INITIALIZED): State.OPERATING,
    (State.OPERATING, Event.PING): State.OPERATING,
    (State.OPERATING, Event.REQUEST): State.OPERATING,
}


def test_every_state_is_driven_with_every_event() -> None:
    assert set(EXPECTED) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), list(EXPECTED))
def test_each_row_of_the_table_is_obeyed(state: State, event: Event) -> None:
    conversation = conversation_in(state)
    expected = EXPECTED[state, event]
    if event is Event.INITIALIZED:
        conversation.notified("notifications/initialized")
        assert conversation.state is (expected or state)  # a notification is never answered, so never refused
        return
    name = "tools/list" if event is Event.REQUEST else event.value
    params = initialize_params() if event is Event.INITIALIZE else {}
    if expected is None:
        with pytest.raises(RpcError) as refused:
            conversation.open(1, name, params, None)
        assert refused.value.code == INVALID_REQUEST
        assert conversation.state is state
    else:
        assert conversation.open(1, name, params, None).method.name == name
        assert conversation.state is expected


def test_a_request_before_initialize_is_told_every_version() -> None:
    with pytest.raises(RpcError) as refused:
        conversation_in(State.NEW).open(1, "tools/list", {}, None)
    assert all(version in refused.value.message for version in SERVED)
    assert refused.value.data == {"supported": list(SERVED)}


def test_the_bare_method_of_the_tutorials_counts() -> None:
    conversation = conversation_in(State.ANSWERED)
    conversation.notified("initialized")
    assert conversation.state is State.OPERATING


@pytest.mark.parametrize("said", ["notifications/initialized", "initialized", "tools/list"])
def test_the_moment_from_which_a_client_may_be_told_things_unasked(said: str) -> None:
    told: list[str] = []
    conversation = LegacySessionState(SERVED, lambda: told.append(said))
    for early in ("notifications/initialized", "initialized"):
        conversation.notified(early)
    conversation.open(0, "ping", {}, None)
    conversation.open(1, "initialize", initialize_params(), None)
    conversation.open(2, "ping", {}, None)
    assert told == []
    for id in (3, 4):
        if "initialized" in said:
            conversation.notified(said)
        else:
            conversation.open(id, said, {}, None)
    assert told == [said]


@pytest.mark.parametrize("version", SERVED)
def test_a_version_that_is_served_is_agreed(version: str) -> None:
    conversation = LegacySessionState(SERVED)
    invocation = conversation.open(1, "initialize", initialize_params(version), None)
    assert invocation.era.version == version
    assert invocation.peer.version == version


@pytest.mark.parametrize("requested", ["2026-07-28", "2024-10-07", "1.0", "", "9999-99-99"])
def test_for_an_unknown_version_our_newest_is_offered(requested: str) -> None:
    assert negotiate(requested, SERVED).version == "2025-11-25"
    assert negotiate(requested, ("2024-11-05", "2025-03-26")).version == "2025-03-26"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"protocolVersion": 1},
        {"protocolVersion": None},
        {"protocolVersion": "2025-11-25", "capabilities": []},
        {**initialize_params(), "_meta": 5},
        {**initialize_params(), "_meta": {"progressToken": {}}},
    ],
)
def test_a_malformed_initialize_leaves_the_session_new(params: dict[str, Any]) -> None:
    conversation = LegacySessionState(SERVED)
    with pytest.raises(RpcError) as refused:
        conversation.open(1, "initialize", params, None)
    assert refused.value.code == INVALID_PARAMS
    assert conversation.state is State.NEW
    assert conversation.open(2, "initialize", initialize_params(), None).method.name == "initialize"


MESSAGES = st.sampled_from(
    ["initialize", "notifications/initialized", "initialized", "ping", "tools/list", "acme/unknown", "broken"]
)


@given(st.lists(MESSAGES, max_size=12))
def test_no_order_of_messages_breaks_a_promise(messages: list[str]) -> None:
    conversation = LegacySessionState(SERVED)
    agreed = 0
    for id, message in enumerate(messages):
        before = conversation.state
        if "initialized" in message:
            conversation.notified(message)
            continue
        params = initialize_params() if message == "initialize" else {}
        name = "initialize" if message == "broken" else message
        refused: RpcError | None = None
        try:
            invocation = conversation.open(id, name, params, None)
        except RpcError as error:
            refused = error
        if refused is not None:
            assert refused.code in (INVALID_REQUEST, INVALID_PARAMS, METHOD_NOT_FOUND)
            # Only what comes before initialize, and a second initialize, is refused for the time it comes at.
            if refused.code == INVALID_REQUEST:
                assert before is State.NEW or name == "initialize"
            assert message != "ping"
            assert conversation.state is before
            continue
        agreed += message == "initialize"
        assert message == "ping" or agreed == 1
        assert invocation.peer is not None
    assert agreed <= 1
    assert (conversation.state is State.NEW) == (agreed == 0)
    assert (conversation.era is None) == (agreed == 0)
