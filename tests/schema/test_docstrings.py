"""Docstrings of three styles, and of none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._schema.generate import Docstring, read_docstring

GOOGLE = """Forecast for a city.

    Asks the nearest station.

    Args:
        city: Where, in
            any language.
        days (int, optional): How many: at most 14.
        *rest: Ignored.
        **more (dict[str, int]): Ignored, too.

    Returns:
        The forecast.

    Raises:
        ValueError: there is no such city

    Note:
        Stations sleep at night.
    """

NUMPY = """Forecast for a city.

    Asks the nearest station.

    Parameters
    ----------
    city : str
        Where, in
        any language.
    days : int, optional
        How many: at most 14.

        Never less than one.
    low, high : float
        The limits.

    Returns
    -------
    Forecast
        The forecast.

    Notes
    -----
    Stations sleep at night.
    """

REST = """Forecast for a city.

    Asks the nearest station.

    :param city: Where, in
        any language.
    :param int days: How many: at most 14.
    :type city: str
    :returns: The forecast.
    :raises ValueError: there is no such city
    """


def test_google() -> None:
    assert read_docstring(GOOGLE) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.\n\nNote:\n    Stations sleep at night.",
        {
            "city": "Where, in any language.",
            "days": "How many: at most 14.",
            "rest": "Ignored.",
            "more": "Ignored, too.",
        },
    )


def test_numpy() -> None:
    assert read_docstring(NUMPY) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.\n\nNotes\n-----\nStations sleep at night.",
        {
            "city": "Where, in any language.",
            "days": "How many: at most 14. Never less than one.",
            "low": "The limits.",
            "high": "The limits.",
        },
    )


def test_rest() -> None:
    assert read_docstring(REST) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.",
        {"city": "Where, in any language.", "days": "How many: at most 14."},
    )


@pytest.mark.parametrize("text", [None, "", "   \n "])
def test_nothing(text: str | None) -> None:
    assert read_docstring(text) == Docstring("", {})


def test_prose_that_looks_a_little_like_a_section_stays() -> None:
    text = """Runs this: that.

    The rule is:
        a: b
    Args are not a section here
    """
    assert read_docstring(text) == Docstring(
        "Runs this: that.\n\nThe rule is:\n    a: b\nArgs are not a section here", {}
    )


def test_a_section_ends_where_the_indentation_does() -> None:
    text = """Adds.

    Args:
      a: one

      b: two
    And that is all.
    """
    assert read_docstring(text) == Docstring("Adds.\n\nAnd that is all.", {"a": "one", "b": "two"})


def test_a_section_at_the_very_beginning() -> None:
    assert read_docstring("Args:\n    a: one") == Docstring("", {"a": "one"})


def test_a_parameter_on_the_next_line_and_one_without_words() -> None:
    assert read_docstring("X.\n\nArgs:\n    a:\n        one\n    b:\n") == Docstring("X.", {"a": "one"})


def test_attributes_of_classes_count_as_parameters() -> None:
    assert read_docstring("A point.\n\nAttributes:\n    x: abscissa").parameters == {"x": "abscissa"}


@given(st.text(alphabet="Args:\n -param:xReturns()*,", max_size=200))
def test_any_text_is_read(text: str) -> None:
    found = read_docstring(text)
    assert all(found.parameters.values())
