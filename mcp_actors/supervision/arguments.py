"""Checks of what programs pass to constructors: a mistake is reported at its own line, with what to write instead."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mcp_actors.errors.protocol import see_page

__all__ = [
    "callback",
    "did_you_mean",
    "instance_of",
    "positive_number",
    "require",
    "require_number",
    "require_trio",
]

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what it has to be, in words."""

# Characters of a name that is compared with others, and the names it is compared with: comparing takes long, and the
# name may come from a peer.
COMPARED_CHARACTERS = 64
COMPARED_NAMES = 200


def require(checks: Mapping[str, Check], values: Mapping[str, Any]) -> None:
    """Raises `TypeError` for the first of ``values`` that its check does not allow; those without a check are right."""
    for name, (allows, wanted) in checks.items():
        if not allows(values[name]):
            raise TypeError(f"{name} is {wanted}, not {_shown(values[name])}")


def _shown(value: object) -> str:
    text = repr(value)
    if inspect.isroutine(value):
        try:
            text = f"{value.__qualname__}{inspect.signature(value)}"
        except (AttributeError, ValueError):
            pass  # one that is written in C
    return text if len(text) <= 80 else f"{text[:80]}… ({type(value).__name__})"


def instance_of(kind: type[Any] | tuple[type[Any], ...], wanted: str) -> Check:
    return lambda value: isinstance(value, kind), wanted


def callback(wanted: str, parameters: int) -> Check:
    """The check of a function that is called with so many positional arguments, or of ``None``.

    It would be told of nothing but failures, later and one by one, if it took another number of them.
    """

    def allows(value: Any) -> bool:
        return value is None or (callable(value) and _takes(value, parameters))

    return allows, f"{wanted}, called with {parameters} arguments" if parameters > 1 else wanted


def _takes(function: Callable[..., Any], parameters: int) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True  # some functions that are written in C do not say
    try:
        signature.bind(*range(parameters))
    except TypeError:
        return False
    return True


def positive_number(wanted: str) -> Check:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0, wanted


def require_number(what: str, value: object, least: float, most: float, *, whole: bool = False) -> None:
    """Checks a number that a program has given.

    Args:
        what: The name of it, such as ``RateLimit(rate=)``.
        value: The number; ``nan`` is not one.
        least: The smallest one that is allowed.
        most: The largest one that is allowed.
        whole: Whether it has to be an `int`.

    Raises:
        TypeError: It is not a number, or is a truth value.
        ValueError: It is out of range.
    """
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{what} is {kind}, not {_shown(value)}")
    if not least <= value <= most:
        raise ValueError(f"{what} is {kind}, at least {least:g} and at most {most:g}, not {_shown(value)}")


def require_trio(what: str, name: str) -> None:
    """Raises `RuntimeError` outside of Trio, under asyncio or in a notebook for example.

    Args:
        what: The expression that needs Trio.
        name: The name in `mcp_actors.asyncio` of what does it there.
    """
    if not importlib.import_module("trio").lowlevel.in_trio_run():
        in_threads = f", without a loop mcp_actors.sync.{name}" if name[0].isupper() else ""
        raise RuntimeError(
            f"{what} runs on Trio, with trio.run(main): under asyncio and in notebooks use mcp_actors.asyncio.{name}"
            f"{in_threads}; {see_page('asyncio')}"
        )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the name that is closest, or nothing without a close one."""
    if len(name) > COMPARED_CHARACTERS:
        return ""
    known = [each for each, _ in zip(names, range(COMPARED_NAMES), strict=False)]
    # Loaded where it is used: a program without mistakes has no use for it.
    close = importlib.import_module("difflib").get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
