"""The extra ``auth``: the modules that need a library for signatures are imported when a setting asks for them."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["signatures"]


def signatures(module: str) -> Any:
    """Returns the module of this name, one of those that need joserfc.

    Raises:
        ImportError: joserfc is missing; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"{module} needs a library for signatures: pip install 'mcp-actors[auth]'"
        raise ImportError(message, name=error.name) from error
