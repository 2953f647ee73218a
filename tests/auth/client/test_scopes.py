"""Scopes: which are asked for, and how often more are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.auth.client.registration import MAX_SCOPES, StepUps, read_scopes, scopes_to_ask_for, union


@pytest.mark.parametrize(
    ("challenge", "resource", "configured", "before", "server", "found"),
    [
        (None, (), (), (), None, ()),
        ("b a", ("x",), (), (), None, ("b", "a")),
        ("", ("x",), (), (), None, ()),
        (None, ("x", "y"), (), (), None, ("x", "y")),
        ("a", (), ("u", "a"), (), None, ("a", "u")),
        ("b", (), (), ("a", "b"), None, ("a", "b")),
        ("a", (), (), (), ("a", "offline_access"), ("a", "offline_access")),
        ("a", (), (), (), ("a",), ("a",)),
        (None, (), (), (), ("offline_access",), ()),
        ("offline_access", (), (), (), None, ("offline_access",)),
    ],
)
def test_scopes_that_are_asked_for(
    challenge: str | None,
    resource: tuple[str, ...],
    configured: tuple[str, ...],
    before: tuple[str, ...],
    server: tuple[str, ...] | None,
    found: tuple[str, ...],
) -> None:
    assert (
        scopes_to_ask_for(challenge, resource, configured, before=before, authorization_server=server)
        == found
    )


@given(st.text())
def test_what_is_read_can_be_sent(text: str) -> None:
    for scope in read_scopes(text):
        assert scope.isascii()
        assert scope.isprintable()
        assert not set(scope) & set(' "\\')


def test_scopes_are_bounded() -> None:
    assert len(read_scopes(" ".join(f"s{number}" for number in range(10_000)))) == MAX_SCOPES
    assert union(["a" * 1000, "b"]) == ("b",)
    assert read_scopes(7) == ()


def test_step_ups_are_counted_by_operation_and_in_vain_for_all() -> None:
    step_ups = StepUps()
    assert step_ups.begin("a")
    assert step_ups.begin("b")
    assert step_ups.begin("a")
    assert not step_ups.begin("a")
    assert not step_ups.begin("c")
    step_ups.succeeded("x")
    assert not step_ups.begin("c")
    step_ups.succeeded("b")
    assert step_ups.begin("c")


def test_step_ups_of_operations_without_end_take_bounded_memory() -> None:
    step_ups = StepUps()
    for number in range(10_000):
        assert step_ups.begin(str(number))
    assert len(step_ups._counts) <= 1024
