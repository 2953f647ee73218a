"""Converts returned values: of a peer to a type that the program names, and of a function to JSON for the peer.

What this takes is compiled once for each type.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcp_actors._schema.convert import (
    ConversionError,
    PydanticType,
    adapt,
    convert,
    has_pydantic_metadata,
    is_pydantic_model,
    is_pydantic_type,
    problems_of,
    to_json_value,
    whole_numbers,
)
from mcp_actors._schema.fields import read_fields, record_kind, strip
from mcp_actors._schema.validate import Problem, Validator

__all__ = ["conversion", "output_encoder"]


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


# -- Results of functions: to JSON, and checked against the schema of the return annotation ---

# Members of a record up to which looking at each one is faster than converting and validating them all.
FEW_MEMBERS = 8


def output_encoder(tp: Any, compiled: Callable[[], Validator | None]) -> Callable[[Any], Any]:
    """Returns an encoder of results of the type ``tp``, which raises `TypeError` for those that do not fit.

    Results are validated by what ``compiled`` returns, if anything, but not those of which their classes say enough.
    It is called for the first result that has to be validated: many functions never return one.
    """
    encode, validator_of_type = _encoder(tp), functools.cache(compiled)
    scalars, members = _scalars(tp), _members(tp)

    def encode_output(value: Any) -> Any:
        kind = value.__class__
        if kind in scalars:
            # JSON has no infinity and no NaN: the validator refuses those floats.
            if kind is not float or math.isfinite(value):
                return value
        elif members and kind is dict and value.keys() == members.keys() and _fits(value, members):
            return value.copy()
        content = encode(value)
        validator = validator_of_type()
        if validator is not None and not validator.is_valid(content):
            problems = "; ".join(validator.problems(content))
            raise TypeError(f"what was returned is not of the declared type: {problems}")
        return content

    return encode_output


def _encoder(tp: Any) -> Callable[[Any], Any]:
    """The encoder of results: pydantic's for the types that only pydantic can encode as declared."""
    bare, metadata = strip(tp)
    if has_pydantic_metadata(metadata) or (is_pydantic_type(bare) and not is_pydantic_model(bare)):
        return PydanticType(tp).encode
    return to_json_value


def _scalars(tp: Any) -> frozenset[type]:
    """The classes of which every exact instance is JSON that fits the schema of ``tp``, but for infinity and NaN.

    Only numbers, booleans and ``None`` without constraints are among them: Python checks nothing that is in a class or
    a container.
    """
    is_union = typing.get_origin(tp) in (typing.Union, types.UnionType)
    members = typing.get_args(tp) if is_union else (tp,)
    found = {each for each in members if each in (int, bool, float, type(None))}
    return frozenset(found | {int} if float in found else found)


def _members(tp: Any) -> Mapping[str, frozenset[type]]:
    """The classes of the members of a small `TypedDict` that has scalars only, all of them required; else nothing."""
    if record_kind(tp) != "typeddict":
        return {}
    fields = read_fields(tp)
    members = {field.wire: _scalars(field.hint) for field in fields if field.required}
    is_plain = len(members) == len(fields) <= FEW_MEMBERS and all(members.values())
    return members if is_plain else {}


def _fits(value: dict[Any, Any], members: Mapping[str, frozenset[type]]) -> bool:
    """Whether each member is of one of its classes and finite, and its name is a plain string."""
    for name, each in value.items():
        kind = each.__class__
        if kind not in members[name] or (kind is float and not math.isfinite(each)):
            return False
        if name.__class__ is not str:
            return False
    return True
