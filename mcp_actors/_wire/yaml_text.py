"""YAML as JSON values: documents of APIs, and what stands before the instructions of a skill.

It is YAML 1.2 in the JSON schema: ``no`` is a text, so is a date, and all keys are texts. The library is an extra of
the package, and is loaded when a text has to be read.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from typing import Any

__all__ = ["is_within", "load_yaml"]


def load_yaml(text: bytes | str, *, unique: bool = False) -> Any:
    """Returns the value of a YAML text.

    Aliases make one object stand at several places: `is_within` bounds what they would be when written out.

    Args:
        text: The text.
        unique: Whether a key that a mapping has twice is an error, as YAML says; documents that exist have such keys.

    Raises:
        ValueError: It is no YAML of JSON values, or nested too deeply.
        ImportError: The library is not installed.
    """
    library = importlib.import_module("yaml")
    try:
        return library.load(text, Loader=_loader(unique))
    except (library.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


def is_within(value: Any, most: int, deepest: int) -> bool:
    """Whether JSON values have a bounded extent as they would be written out.

    So aliases of aliases are no bomb, nor one of itself.

    Args:
        value: The values.
        most: How many there may be.
        deepest: Levels of nesting.
    """
    count = 0
    pending = [(value, 0)]
    while pending:
        value, depth = pending.pop()
        count += 1
        if count > most or depth > deepest:
            return False
        if isinstance(value, dict):
            pending.extend((each, depth + 1) for each in value.values())
        elif isinstance(value, list):
            pending.extend((each, depth + 1) for each in value)
    return True


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {text:.80}")
    return value


@functools.cache
def _loader(unique: bool) -> Any:
    """The loader of YAML 1.2 in the JSON schema, as OpenAPI 3.1 section 4.3 asks for.

    Otherwise ``no`` would be false, a date an object of Python, and a key such as ``200`` a number.
    """
    library = importlib.import_module("yaml")
    base: Any = getattr(library, "CSafeLoader", library.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            self.flatten_mapping(node)
            found: dict[str, Any] = {}
            for key, value in node.value:
                if not isinstance(key, library.ScalarNode):
                    raise ValueError("a key of a mapping is not a text")
                if unique and key.value in found:
                    raise ValueError(f"the key {key.value!r:.80} is there twice")
                found[key.value] = self.construct_object(value, deep=deep)
            return found

    for tag, pattern, first in (
        ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
        ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
        ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
        ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
        ("merge", r"^<<$", "<"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), [*first])
    # Empty text is null, and has no first character.
    Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^$"), [""])
    Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_yaml_map)
    # YAML 1.1 reads 010 as eight, and 1.2 as ten.
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
    Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: _finite(node.value))
    return Loader
