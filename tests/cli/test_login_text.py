"""A login in words: what is shown, and that a token never is."""

from __future__ import annotations

import base64
import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.login import LoginStatus, expiry_in_words, login_lines, subject_of

NOW = 1_800_000_000.0
STATUS = LoginStatus(
    issuer="https://login.example.org",
    resource="https://mcp.example.org/mcp",
    client_id="client",
    scopes=("mcp:read", "mcp:write"),
    expires_at=None,
    refreshable=False,
    token="opaque-token",
)


def jwt(claims: Any) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("expires_at", "says"),
    [
        (None, "not known; the authorization server did not say"),
        (NOW + 1, "in 1 second (2027-01-15 08:00:01 UTC)"),
        (NOW + 3599, "in 59 minutes (2027-01-15 08:59:59 UTC)"),
        (NOW + 2 * 86400, "in 2 days (2027-01-17 08:00:00 UTC)"),
        (NOW, "0 seconds ago (2027-01-15 08:00:00 UTC)"),
        (NOW - 7200, "2 hours ago (2027-01-15 06:00:00 UTC)"),
        (1e300, "not known; the authorization server said a time that no calendar has"),
    ],
)
def test_an_expiry(expires_at: float | None, says: str) -> None:
    assert expiry_in_words(expires_at, NOW) == says


def test_a_login_that_cannot_be_renewed_says_what_to_run() -> None:
    assert login_lines(STATUS, "https://mcp.example.org/mcp?a&b") == [
        "  issuer:    https://login.example.org",
        "  resource:  https://mcp.example.org/mcp",
        "  client:    client",
        "  scopes:    mcp:read mcp:write",
        "  expires:   not known; the authorization server did not say",
        "  renewal:   none; then run: mcp-actors login 'https://mcp.example.org/mcp?a&b'",
    ]


def test_the_subject_of_a_jwt_is_shown_without_what_a_terminal_obeys() -> None:
    lines = login_lines(attrs.evolve(STATUS, token=jwt({"sub": "ada\x1b[31m"})), "https://mcp.example.org")
    assert "  subject:   ada\\x1b[31m (as the token says)" in lines


def test_no_name_makes_up_another_fact_or_turns_a_line_round() -> None:
    forged = attrs.evolve(
        STATUS,
        client_id="c\n  issuer:    https://bank.example\r\x9b2J\u202e\t",
        token=jwt({"sub": "ada\n  scopes:    none"}),
        scopes=["s" * 250] * 200,
    )
    lines = login_lines(forged, "https://mcp.example.org")
    assert "  client:    c\\n  issuer:    https://bank.example\\r\\x9b2J\\u202e\\t" in lines
    assert all(line.isprintable() and len(line) < 2100 for line in lines)
    assert len(lines) == 7


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b.c",
        jwt(["sub"]),
        jwt({"sub": 1}),
        jwt({"sub": ""}),
        f"e30.{'A' * 100_000}.c2ln",
        f"e30.{base64.urlsafe_b64encode(b'[' * 40_000).decode()}.c2ln",
    ],
)
def test_what_has_no_subject(token: str) -> None:
    assert subject_of(token) is None


@given(st.text())
def test_any_text_may_be_a_token(token: str) -> None:
    assert subject_of(token) is None or token.count(".") == 2


def test_a_status_shows_no_token() -> None:
    assert "opaque-token" not in repr(STATUS)
    assert not any("opaque-token" in line for line in login_lines(STATUS, "https://mcp.example.org"))
