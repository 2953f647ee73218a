"""The key that the processes of one server share may come from the environment."""

from __future__ import annotations

import base64

import pytest

from mcp_actors import Server
from mcp_actors._server.scope import VARIABLE, derived_key, state_key_of_environment

KEY = bytes(range(200, 232))


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode().rstrip("="),
        f"  {KEY.hex()}\n",
    ],
)
def test_a_key_is_hexadecimal_or_base64(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert state_key_of_environment() == KEY


@pytest.mark.parametrize(
    ("text", "said"),
    [("secret word!", "neither hexadecimal"), ("abcd", "has 2 bytes"), ("c2hvcnQ=", "has 5 bytes")],
)
def test_a_key_that_is_none_is_refused_where_the_server_is_made(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=said) as refused:
        Server("kiosk")
    assert text not in str(refused.value)


def test_a_program_that_gives_a_key_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "not a key")
    assert Server("kiosk", state_key=KEY).name == "kiosk"


@pytest.mark.parametrize("empty", ["", "  "])
def test_without_a_key_each_server_has_one_of_its_own(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, empty)
    assert state_key_of_environment() != state_key_of_environment()


def test_derived_keys_are_the_same_for_one_purpose_only() -> None:
    assert derived_key(KEY, "nonces") == derived_key(KEY, "nonces")
    assert (
        len({derived_key(KEY, "nonces"), derived_key(KEY, "others"), derived_key(KEY[:16], "nonces"), KEY})
        == 4
    )
