"""Where the engine's own log lines go.

To structlog, if the program has configured it. If not, to standard error, and only warnings and worse: a library that
nobody asked to talk stays quiet, and standard output may belong to a protocol.

structlog is loaded when there is something to say: it takes a third of the time in which a stdio server starts.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from typing import Any

__all__ = ["log", "logger"]

_QUIET = frozenset({"debug", "info"})


class _Stderr:
    """Looks `sys.stderr` up for each line, so that whoever redirects it gets what is written from then on."""

    def msg(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg


@functools.cache
def _unconfigured() -> Any:
    structlog = importlib.import_module("structlog")
    return structlog.wrap_logger(
        _Stderr(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            # Plain: the pretty one takes long and prints local variables, secrets among them.
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


def logger() -> Any:
    """A structlog logger for the moment: bind to it, log with it, do not keep it."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        return structlog.get_logger("mcp_actors")
    return _unconfigured()


def _say_nothing(event: str, **details: Any) -> None:
    pass


class _Log:
    """Asks for the logger at each line, since a program may configure structlog after it imported us."""

    def __getattr__(self, level: str) -> Any:
        if level in _QUIET and "structlog" not in sys.modules:
            return _say_nothing
        return getattr(logger(), level)


log: Any = _Log()
