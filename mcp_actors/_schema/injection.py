"""The parameters of a function that no peer fills: the one that takes the context, and the receiver of a method."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from mcp_actors._schema.fields import read_hints, strip

__all__ = ["check_receiver", "function_hints", "injected_parameter"]

# Without an annotation this name is meant for the context all the same.
CONTEXT_NAME = "ctx"
# Functions of Python and of Cython have annotations by such an attribute of their class.
_COMPUTED = types.GetSetDescriptorType


def function_hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function, partial or callable object, resolved; ``return`` is among them."""
    return read_hints(_annotated(call))


def _annotated(call: Any) -> Any:
    """Returns what has the annotations of a callable.

    Annotations of an object are those of its fields, which are found through its class up to CPython 3.13. A decorator
    such as `functools.cache`, which makes an object of a function, copies the annotations up to 3.13 only.
    """
    while True:
        if isinstance(call, functools.partial):
            call = call.func
        elif inspect.ismethod(call):
            call = call.__func__
        elif isinstance(call, type) or isinstance(vars(type(call)).get("__annotations__"), _COMPUTED):
            return call
        elif "__wrapped__" in getattr(call, "__dict__", ()):
            call = call.__wrapped__
        else:
            return type(call).__call__


def injected_parameter(call: Callable[..., Any], injected: type) -> str | None:
    """Returns the name of the parameter that takes the context, if there is one.

    Raises `TypeError` for two of them, for one without an annotation, and for one with a class that does not fit.
    """
    hints = function_hints(call)
    named = [name for name, hint in hints.items() if name != "return" and _is_injected(hint, injected)]
    where = getattr(call, "__qualname__", None) or repr(call)
    if len(named) > 1:
        raise TypeError(f"{where} takes the context twice: {' and '.join(named)}")
    if CONTEXT_NAME not in hints and CONTEXT_NAME in inspect.signature(call).parameters:
        raise TypeError(
            f"{where}: the parameter {CONTEXT_NAME} has no annotation and would be an argument of the model; "
            f"write {CONTEXT_NAME}: {injected.__name__}"
        )
    if named and inspect.iscoroutinefunction(call) and _is_narrower(hints[named[0]], injected):
        raise TypeError(f"{where} is async, and awaits its context: write {named[0]}: {injected.__name__}")
    return named[0] if named else None


def _is_narrower(hint: Any, injected: type) -> bool:
    bare, _ = strip(hint)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return any(
            _is_narrower(each, injected) for each in typing.get_args(bare) if _is_injected(each, injected)
        )
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and cls is not injected


def check_receiver(call: Callable[..., Any], where: str) -> None:
    """Raises `TypeError` for a method that is taken from its class instead of from an object."""
    first = next(iter(inspect.signature(call).parameters), None)
    if first in ("self", "cls") and first not in function_hints(call):
        raise TypeError(
            f"{where}: the parameter {first} would be an argument of the model; make the object first, and add its"
            " method: server.add_tool(thing.method)"
        )


def _is_injected(hint: Any, injected: type) -> bool:
    bare, _ = strip(hint)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return any(_is_injected(each, injected) for each in typing.get_args(bare))
    cls = typing.get_origin(bare) or bare
    return isinstance(cls, type) and issubclass(cls, injected)
