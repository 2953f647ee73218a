"""The names of functions, for logs and representations."""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = ["function_name"]

# Characters of a name that are shown.
_MOST_SHOWN = 80


def function_name(function: Any) -> str:
    """Returns the name of a callable, and nothing of its arguments or of the object that it belongs to.

    Those may be secrets, and the ``repr`` of a partial or of a bound method has them in it.
    """
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name[:_MOST_SHOWN]
