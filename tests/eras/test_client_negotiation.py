"""What the answers to a client's handshake are, as the table of decisions sees them; sans I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._eras.client_negotiation import (
    DECISIONS,
    Answer,
    discoverable,
    newest_common,
    read_discovery,
    read_initialize,
    versions_for,
)
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import MODERN
from mcp_actors._eras.server_negotiation import VERSIONS, LegacySessionState, negotiate
from mcp_actors._eras.server_negotiation import LifecycleEvent as Event
from mcp_actors._eras.server_negotiation import LifecycleState as State
from mcp_actors.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ConnectFailed,
    ConnectionLost,
    HeaderMismatch,
    LocalProtocolError,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.types import DiscoverResult, ServerCapabilities
from tests.messages import initialize_params
from tests.pages import ROOT, with_table

MODERN_ONLY = tuple(MODERN)


@pytest.mark.parametrize(
    ("supported", "version"),
    [
        (["2026-07-28"], "2026-07-28"),
        (["2026-07-28", "2025-11-25"], "2026-07-28"),
        (["2025-11-25", "2026-07-28"], "2026-07-28"),
        (["2099-01-01", "2026-07-28"], "2026-07-28"),
        (["2025-06-18", "2024-11-05"], "2025-06-18"),
    ],
)
def test_the_newest_common_version_wins(supported: list[str], version: str) -> None:
    """Whatever the order they are listed in; versions that nobody here knows are passed over, never compared."""
    stateless = version in MODERN
    answer, era = read_discovery({"supportedVersions": supported}, VERSIONS)
    assert era is not None
    assert era.version == version
    assert answer is (Answer.AGREED if stateless else Answer.NAMES_SESSIONS)
    refused = read_discovery(UnsupportedVersion("2026-07-28", supported), VERSIONS)
    assert refused == (Answer.NAMES_STATELESS if stateless else Answer.NAMES_SESSIONS, era)


@pytest.mark.parametrize(
    "result", [{}, {"supportedVersions": []}, {"supportedVersions": "2026-07-28"}, {"capabilities": {}}]
)
def test_a_result_without_versions_is_no_discovery(result: dict[str, Any]) -> None:
    assert read_discovery(result, VERSIONS) == (Answer.REFUSED, None)


def test_a_modern_server_without_a_common_version() -> None:
    others = (Answer.NAMES_OTHERS, None)
    assert read_discovery({"supportedVersions": ["2099-01-01"]}, VERSIONS) == others
    assert read_discovery(UnsupportedVersion("2026-07-28", ["2025-11-25"]), MODERN_ONLY) == others


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, -32700, -32002, -32001, 0, 404])
def test_any_error_of_another_kind_is_a_refusal(code: int) -> None:
    assert read_discovery(RpcError.from_wire(code, "no"), VERSIONS) == (Answer.REFUSED, None)
    assert read_initialize(RpcError.from_wire(code, "no"), VERSIONS) == (Answer.REFUSED, None)


@pytest.mark.parametrize(
    "data", [None, {}, {"supported": None}, {"supported": []}, {"supported": [1, None]}, "x"]
)
def test_the_code_alone_names_no_version(data: Any) -> None:
    assert read_discovery(RpcError.from_wire(-32022, "no", data), VERSIONS) == (Answer.REFUSED, None)


@pytest.mark.parametrize("code", [-32022, -32600, -32602])
def test_a_refused_initialize_names_versions_in_an_error_of_any_code(code: int) -> None:
    named = RpcError.from_wire(code, "no", {"supported": ["2025-11-25", "2026-07-28"]})
    assert read_initialize(named, VERSIONS) == (Answer.NAMES_STATELESS, MODERN["2026-07-28"])
    assert read_initialize(named, tuple(LEGACY)) == (Answer.NAMES_OTHERS, None)
    other = RpcError.from_wire(code, "no", {"supported": ["2025-03-26"]})
    assert read_initialize(other, VERSIONS) == (Answer.NAMES_OTHERS, None)


def test_other_modern_errors_are_those_of_a_stateless_server() -> None:
    for error in (HeaderMismatch("x"), MissingCapability({"sampling": {}})):
        assert read_discovery(error, VERSIONS) == (Answer.STATELESS_ERROR, None)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Unavailable("503"), Answer.UNAVAILABLE),
        (ConnectionLost("reset"), Answer.UNAVAILABLE),
        (RemoteProtocolError("404"), Answer.REFUSED),
        (ConnectFailed("nobody"), Answer.UNREACHABLE),
        (LocalProtocolError("a header"), Answer.UNREACHABLE),
    ],
)
def test_failures_of_the_transport(error: McpError, answer: Answer) -> None:
    assert read_discovery(error, VERSIONS) == read_initialize(error, VERSIONS) == (answer, None)


@pytest.mark.parametrize("version", ["2099-01-01", "2026-07-28", None, 5, ["2025-11-25"]])
def test_an_initialize_with_a_version_that_no_session_has(version: Any) -> None:
    assert read_initialize({"protocolVersion": version}, VERSIONS) == (Answer.NAMES_OTHERS, None)


def test_what_may_be_asked_of_the_era() -> None:
    assert versions_for("auto") == VERSIONS
    assert versions_for("legacy") == tuple(LEGACY)
    assert versions_for("modern") == MODERN_ONLY
    assert versions_for("2025-03-26") == ("2025-03-26",)
    with pytest.raises(ValueError, match="2025-11-25"):
        versions_for("2023-01-01")


def test_versions_are_equal_or_not_and_nothing_else() -> None:
    assert newest_common(VERSIONS, ["2025-11-26", "2026-07-29", 5, None]) is None
    assert newest_common(VERSIONS, "2025-11-25") is None
    assert newest_common(VERSIONS, ["2024-11-05"]) == "2024-11-05"


def test_what_a_prior_discovery_must_name() -> None:
    prior = DiscoverResult(["2025-11-25", "2026-07-28"], ServerCapabilities())
    assert discoverable(VERSIONS, prior) == "2026-07-28"
    with pytest.raises(ValueError, match="2025-11-25, 2026-07-28"):
        discoverable(tuple(LEGACY), prior)
    with pytest.raises(ValueError, match="nothing"):
        discoverable(VERSIONS, DiscoverResult([], ServerCapabilities()))


# -- The page about eras shows the table of decisions as it is -------------------------------------------
#
# ``python -m tests.eras.test_client_negotiation`` writes the table into ``docs/why/eras.md`` again.

PAGE = ROOT / "docs" / "why" / "eras.md"


def table_of_decisions() -> str:
    """The decisions as a Markdown table."""
    lines = [
        "| asked | answer | step | times | otherwise | kept | taken back by |",
        "|---|---|---|---|---|---|---|",
    ]
    for (asked, answer), decision in DECISIONS.items():
        repeats = decision.step is not decision.otherwise
        cells = [
            asked.value,
            answer.value,
            decision.step.value,
            str(decision.times) if repeats else "-",
            decision.otherwise.value if repeats else "-",
            "-" if decision.kept is None else decision.kept.value,
            decision.taken_back or "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table_of_decisions_as_it_is() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, "decisions", table_of_decisions())


# -- The lifecycle of a legacy session: every state with every event, and what no order of messages can bring about ---

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
    (State.ANSWERED, Event.INITIALIZE): State.ANSWERED,
    (State.ANSWERED, Event.INITIALIZED): State.OPERATING,
    (State.ANSWERED, Event.PING): State.ANSWERED,
    (State.ANSWERED, Event.REQUEST): State.OPERATING,
    (State.OPERATING, Event.INITIALIZE): State.OPERATING,
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
    agreed, first = 0, None
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
        assert message == "ping" or agreed
        # One that is repeated changes nothing.
        first = first or conversation.peer
        assert conversation.peer is first
        assert invocation.peer is not None
    assert (conversation.state is State.NEW) == (agreed == 0)
    assert (conversation.era is None) == (agreed == 0)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "decisions", table_of_decisions()))
