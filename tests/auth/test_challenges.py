"""The ``WWW-Authenticate`` header, as others write it and as we do."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_actors.auth.metadata import Challenge, first_parameter, format_challenge, parse_challenges

PRM = "https://h/.well-known/oauth-protected-resource/mcp?a=b"

CASES: list[tuple[list[str], list[tuple[str, dict[str, str]]]]] = [
    ([], []),
    ([""], []),
    (["Bearer"], [("bearer", {})]),
    (['bEaReR ERROR="invalid_token"'], [("bearer", {"error": "invalid_token"})]),
    ([f'Bearer resource_metadata="{PRM}"'], [("bearer", {"resource_metadata": PRM})]),
    ([f"Bearer resource_metadata={PRM}"], [("bearer", {"resource_metadata": PRM})]),
    (['Bearer scope="a b", error="x"'], [("bearer", {"scope": "a b", "error": "x"})]),
    (['Bearer scope="a" error="x"'], [("bearer", {"scope": "a", "error": "x"})]),
    (['Bearer, DPoP algs="ES256"'], [("bearer", {}), ("dpop", {"algs": "ES256"})]),
    (['Basic realm="a", Bearer scope="b"'], [("basic", {"realm": "a"}), ("bearer", {"scope": "b"})]),
    (['Negotiate abc==, Bearer scope="b"'], [("negotiate", {}), ("bearer", {"scope": "b"})]),
    (["Negotiate abc==", 'Bearer scope="b"'], [("negotiate", {}), ("bearer", {"scope": "b"})]),
    (
        [r'Bearer error_description="say \"a, b\" \\"'],
        [("bearer", {"error_description": r'say "a, b" ' + "\\"})],
    ),
    (['Bearer scope="a", scope="b"'], [("bearer", {"scope": "a"})]),
    (['Bearer error="x", scope="never ends'], [("bearer", {"error": "x"})]),
    (['Bearer scope=""'], [("bearer", {"scope": ""})]),
    (['Bearer  realm = "a" ,, scope = b'], [("bearer", {"realm": "a", "scope": "b"})]),
    (['scope="a"'], []),
]


@pytest.mark.parametrize(("lines", "found"), CASES)
def test_challenges_are_read(lines: list[str], found: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(lines) == [Challenge(scheme, params) for scheme, params in found]


def test_a_parameter_is_that_of_the_first_scheme_we_know_that_has_it() -> None:
    challenges = parse_challenges(['Basic scope="no"', "Bearer", 'DPoP scope="yes"', 'Bearer scope="late"'])
    assert first_parameter(challenges, "scope") == "yes"
    assert first_parameter(challenges, "error") is None


@given(st.lists(st.text(), max_size=4))
@example(['Bearer a="\\'])
@example(['Bearer a="' + "\\" * 99])
@example(["a" * 20000, "a " * 9000, 'a="' * 7000])
def test_no_line_is_too_odd(lines: list[str]) -> None:
    for challenge in parse_challenges(lines):
        assert challenge.scheme == challenge.scheme.lower()


@pytest.mark.parametrize(
    "piece", ["a ", 'a="', "a=b ", 'a="b" ', ", ", "a,", "a\t", "\\", 'x="\\"', "A" * 50 + " "]
)
def test_a_response_takes_time_in_proportion(piece: str) -> None:
    line = "Bearer " + piece * (1024 * 1024 // len(piece))
    began = time.process_time()
    parse_challenges([line] * 10_000)
    assert time.process_time() - began < 2


@given(st.dictionaries(st.sampled_from(["scope", "error", "resource_metadata"]), st.text(), min_size=1))
@example({"scope": 'a"\r\nSet-Cookie: x=\\'})
def test_a_challenge_of_ours_is_one_clean_line(params: dict[str, str]) -> None:
    line = format_challenge("Bearer", params)
    assert line.isascii()
    assert line.isprintable()
    (found,) = parse_challenges([line])
    assert found.scheme == "bearer"
    assert list(found.params) == list(params)


def test_a_challenge_of_ours_says_what_it_was_given() -> None:
    params = {"error": "invalid_token", "scope": "a b", "resource_metadata": PRM}
    assert format_challenge("Bearer", params) == (
        f'Bearer error="invalid_token", scope="a b", resource_metadata="{PRM}"'
    )
    assert format_challenge("Bearer", {}) == "Bearer"
