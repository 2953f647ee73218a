"""Types that pydantic validates: its models and dataclasses, and annotations with its constraints.

Pydantic is never imported here: a program that uses its types has imported it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import msgspec

from mcp_actors._schema.explain import Problem, path_text

__all__ = [
    "ConversionError",
    "PydanticType",
    "dump",
    "has_pydantic_metadata",
    "is_pydantic_model",
    "is_pydantic_type",
    "pydantic_type",
]

_PYDANTIC_ATTRIBUTES = ("__pydantic_core_schema__", "__pydantic_validator__", "__get_pydantic_core_schema__")
_PYDANTIC_PACKAGES = ("pydantic", "annotated_types")

_encode = msgspec.json.Encoder().encode


class ConversionError(ValueError):
    """A value does not fit a type. The paths of ``problems`` are relative to that value."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def is_pydantic_type(tp: Any) -> bool:
    """Whether pydantic validates ``tp`` by what the class itself defines."""
    return isinstance(tp, type) and any(hasattr(tp, name) for name in _PYDANTIC_ATTRIBUTES)


def is_pydantic_model(tp: Any) -> bool:
    """Whether ``tp`` is a pydantic model. msgspec passes those to its hooks without any help."""
    return isinstance(tp, type) and hasattr(tp, "model_fields") and hasattr(tp, "__pydantic_validator__")


def has_pydantic_metadata(metadata: tuple[Any, ...]) -> bool:
    """Whether a part of the metadata of an ``Annotated`` is meant for pydantic."""
    return any(
        type(each).__module__.partition(".")[0] in _PYDANTIC_PACKAGES
        or hasattr(each, "__get_pydantic_core_schema__")
        for each in metadata
    )


class PydanticType:
    """A type compiled by pydantic. Raises `TypeError` for a type that pydantic refuses, or if it is not imported."""

    def __init__(self, tp: Any) -> None:
        pydantic = sys.modules.get("pydantic")
        if pydantic is None:
            raise TypeError(
                f"{tp!r} carries constraints for pydantic, which is not imported; use Meta instead"
            )
        try:
            self._adapter: Any = pydantic.TypeAdapter(tp)
        except Exception as error:  # pydantic's own errors, which cannot be named without importing it
            raise TypeError(f"pydantic cannot use {tp!r}: {error}") from error

    def convert(self, value: Any) -> Any:
        """Validates a JSON value strictly: no string becomes a number, but dates are read from strings.

        Raises `ConversionError` for a value that does not fit.
        """
        try:
            return self._adapter.validate_json(_encode(value), strict=True)
        except ValueError as error:
            if not hasattr(error, "errors"):
                raise
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise ConversionError(
                [Problem(path_text(each["loc"]), _uncapitalized(each["msg"])) for each in found]
            ) from None

    def encode(self, value: Any) -> Any:
        """Returns the JSON value of an instance."""
        return self._adapter.dump_python(value, mode="json", by_alias=True)

    def schema(self, *, output: bool, definitions: str) -> dict[str, Any]:
        """Returns its JSON Schema. ``definitions`` is put before each name in ``$defs`` and in the references to it."""
        schema: dict[str, Any] = self._adapter.json_schema(
            mode="serialization" if output else "validation", ref_template=f"#/$defs/{definitions}{{model}}"
        )
        if definitions and "$defs" in schema:
            schema["$defs"] = {definitions + name: each for name, each in schema["$defs"].items()}
        return schema


@lru_cache(maxsize=1024)
def pydantic_type(tp: Any) -> PydanticType:
    """Returns the compiled form of ``tp``, the same object for the same type."""
    return PydanticType(tp)


def dump(value: Any) -> Any:
    """Returns the JSON value of an instance of a pydantic class, made by the serializer of that class."""
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]
