"""Converts what a peer returned to a type that the program names, by what is compiled once for each type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from mcp_actors._schema.adapt import adapt
from mcp_actors._schema.convert import convert, problems_of, whole_numbers
from mcp_actors._schema.explain import Problem
from mcp_actors._schema.pydantic_types import ConversionError

__all__ = ["conversion"]

# Types that are remembered compiled; a program that names more than these compiles some of them again.
REMEMBERED_TYPES = 256


def conversion(tp: Any) -> Callable[[Any], Any]:
    """Returns the function that makes a value of ``tp`` of a JSON value.

    It raises `ConversionError` for a value that does not fit. Conversion is strict, as for the arguments of tools.

    Raises:
        TypeError: The type has no form in JSON.
    """
    try:
        return _remembered(tp)
    except TypeError:
        # The type may be one that cannot be hashed, such as one that is annotated with a dict.
        return _compiled(tp)


def _compiled(tp: Any) -> Callable[[Any], Any]:
    adapted = adapt(tp)

    def made(value: Any) -> Any:
        try:
            return convert(value, adapted)
        except msgspec.ValidationError as error:
            refused = error
        except ValueError as error:
            raise ConversionError([Problem("", str(error))]) from None
        try:
            return convert(whole_numbers(value), adapted)
        except ValueError:
            raise ConversionError(problems_of(refused)) from None

    return made


_remembered = functools.lru_cache(REMEMBERED_TYPES)(_compiled)
