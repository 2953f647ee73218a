"""Where the engine's own log lines go.

To structlog, if the program has configured it. If not, to standard error, and only warnings and worse: a library that
nobody asked to talk stays quiet, and standard output may belong to a protocol.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["log", "logger"]


class _Stderr:
    """Looks `sys.stderr` up for each line, so that whoever redirects it gets what is written from then on."""

    def msg(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg


_unconfigured: Any = structlog.wrap_logger(
    _Stderr(),
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.dev.ConsoleRenderer(colors=False),
    ],
    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
)


def logger() -> Any:
    """A structlog logger for the moment: bind to it, log with it, do not keep it."""
    return structlog.get_logger("mcp_actors") if structlog.is_configured() else _unconfigured


class _Log:
    """Asks for the logger at each line, since a program may configure structlog after it imported us."""

    def __getattr__(self, level: str) -> Any:
        return getattr(logger(), level)


log: Any = _Log()
