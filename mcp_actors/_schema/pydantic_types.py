"""Types that bring their own schema and validator: pydantic's models, dataclasses, and what they are annotated with.

Pydantic is never imported here: whoever uses its types has imported it.
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
    """A value does not fit a type; ``problems`` are relative to that value."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def is_pydantic_type(tp: Any) -> bool:
    """Whether ``tp`` itself knows how it is validated."""
    return isinstance(tp, type) and any(hasattr(tp, name) for name in _PYDANTIC_ATTRIBUTES)


def is_pydantic_model(tp: Any) -> bool:
    """Whether ``tp`` is a pydantic model, which msgspec hands to its hooks by itself."""
    return isinstance(tp, type) and hasattr(tp, "model_fields") and hasattr(tp, "__pydantic_validator__")


def has_pydantic_metadata(metadata: tuple[Any, ...]) -> bool:
    """Whether one of the things that ``Annotated`` says is meant for pydantic."""
    return any(
        type(each).__module__.partition(".")[0] in _PYDANTIC_PACKAGES
        or hasattr(each, "__get_pydantic_core_schema__")
        for each in metadata
    )


class PydanticType:
    """A type that pydantic takes care of, compiled once. Raises `TypeError` when pydantic cannot or is not there."""

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
        """Validates as strict JSON: strings stay strings, and dates are strings by their nature."""
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
        """The JSON value of an instance."""
        return self._adapter.dump_python(value, mode="json", by_alias=True)

    def schema(self, *, output: bool, definitions: str) -> dict[str, Any]:
        """Its JSON Schema; ``definitions`` goes before each name in ``$defs`` and in the references to it."""
        schema: dict[str, Any] = self._adapter.json_schema(
            mode="serialization" if output else "validation", ref_template=f"#/$defs/{definitions}{{model}}"
        )
        if definitions and "$defs" in schema:
            schema["$defs"] = {definitions + name: each for name, each in schema["$defs"].items()}
        return schema


@lru_cache(maxsize=1024)
def pydantic_type(tp: Any) -> PydanticType:
    """The compiled form of ``tp``, the same one for the same type."""
    return PydanticType(tp)


def dump(value: Any) -> Any:
    """The JSON value of an instance of a pydantic class, by that class's own serializer."""
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]
