"""The sealed state: opens for the call it was made for, for nothing else, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors._eras.modern import STATE_LIFETIME, StateSealer
from mcp_actors.errors import RpcError
from mcp_actors.supervision.principal import Principal

SEALER = StateSealer(b"0123456789abcdef0123456789abcdef")
CALL: dict[str, Any] = {
    "method": "tools/call",
    "target": {"name": "pay", "arguments": {"sum": 3, "to": "Zoë"}},
    "principal": Principal("alice"),
    "now": 1_000_000.0,
}
PAYLOAD = {"answers": {"confirm": {"action": "accept", "content": {"sure": True}}}, "round": 2}
STATE = SEALER.seal(PAYLOAD, **CALL)


def refusal(text: Any, sealer: StateSealer = SEALER, **changed: Any) -> str:
    with pytest.raises(RpcError) as caught:
        sealer.open(text, **{**CALL, **changed})
    assert caught.value.code == -32602
    return caught.value.message


def test_it_opens_for_the_same_call() -> None:
    assert SEALER.open(STATE, **CALL) == PAYLOAD


def test_it_opens_in_another_process_with_the_same_key() -> None:
    assert StateSealer(b"0123456789abcdef0123456789abcdef").open(STATE, **CALL) == PAYLOAD


def test_the_order_of_arguments_does_not_matter() -> None:
    target = {"arguments": {"to": "Zoë", "sum": 3}, "name": "pay"}
    assert SEALER.open(STATE, **{**CALL, "target": target}) == PAYLOAD


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "prompts/get"},
        {"target": {"name": "pay", "arguments": {"sum": 3000, "to": "Zoë"}}},
        {"target": {"name": "pay", "arguments": {"sum": "3", "to": "Zoë"}}},
        {"target": {"name": "steal", "arguments": {"sum": 3, "to": "Zoë"}}},
        {"target": None},
        {"principal": Principal("bob")},
        {"principal": None},
        {"principal": Principal("")},
        {"principal": Principal("alice", client="an app")},
        {"principal": Principal("alice", "https://as.test")},
    ],
)
def test_it_is_bound_to_the_call_and_the_principal(changed: dict[str, Any]) -> None:
    assert refusal(STATE, **changed) == "requestState was not issued for this request"


def test_nobody_and_the_empty_name_are_not_the_same_principal() -> None:
    anonymous = SEALER.seal(PAYLOAD, **{**CALL, "principal": None})
    assert refusal(anonymous, principal=Principal("")) == "requestState was not issued for this request"


def test_no_name_is_made_to_look_like_a_principal_of_an_issuer() -> None:
    of_issuer = Principal("alice", "https://as.test", "an app")
    state = SEALER.seal(PAYLOAD, **{**CALL, "principal": of_issuer})
    namesake = Principal(of_issuer.key)
    assert namesake.key != of_issuer.key
    assert refusal(state, principal=namesake) == "requestState was not issued for this request"


def test_another_key_does_not_open_it() -> None:
    assert "not issued" in refusal(STATE, StateSealer(b"another key, also long enough"))


def test_it_expires() -> None:
    just_in_time = {**CALL, "now": CALL["now"] + STATE_LIFETIME - 1}
    assert SEALER.open(STATE, **just_in_time) == PAYLOAD
    assert refusal(STATE, now=CALL["now"] + STATE_LIFETIME) == "requestState has expired"


def test_the_lifetime_can_be_set() -> None:
    short = StateSealer(b"0123456789abcdef", lifetime=10)
    state = short.seal(PAYLOAD, **CALL)
    assert "expired" in refusal(state, short, now=CALL["now"] + 11)
    assert repr(short) == "<StateSealer lifetime=10s>"


@pytest.mark.parametrize("position", range(len(STATE)))
def test_no_character_can_be_changed(position: int) -> None:
    for other in "AZaz09-_=.+/ \n\x00é":
        if other != STATE[position]:
            assert refusal(STATE[:position] + other + STATE[position + 1 :])


@pytest.mark.parametrize("position", range(len(STATE)))
def test_no_character_can_be_left_out_or_added(position: int) -> None:
    assert refusal(STATE[:position] + STATE[position + 1 :])
    assert refusal(STATE[:position] + "A" + STATE[position:])
    assert refusal(STATE[:position])


@pytest.mark.parametrize(
    "text", ["", "AAAA", "=", STATE + "=", STATE + "\n", "é" + STATE, None, 3, {}, b"AAAA"]
)
def test_what_is_no_state_is_refused(text: Any) -> None:
    assert refusal(text).startswith("requestState ")


@settings(deadline=None)
@given(text=st.text())
def test_any_text_is_refused(text: str) -> None:
    assert refusal(text).startswith("requestState ")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        StateSealer(b"short")


def test_the_state_is_small_and_travels_in_json_and_headers() -> None:
    assert len(STATE) < 200
    assert set(STATE) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
