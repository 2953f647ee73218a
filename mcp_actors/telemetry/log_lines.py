"""Log lines of a program, with the call that they belong to."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from mcp_actors.abc.telemetry import log_members

__all__ = ["add_call"]


def add_call(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the session, the principal and the trace of the call in whose function a line is written.

    A processor of structlog, for the lines of a program's own: ``structlog.configure(processors=[add_call, …])``. The
    engine's own lines have them without it. What a line has already is left as it is.
    """
    for name, value in log_members().items():
        line.setdefault(name, value)
    return line
