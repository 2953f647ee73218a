"""Frames of the user's own code: in the traceback of a failure, and in the call that registers something."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from mcp_actors.errors import McpError

__all__ = ["LineNamed", "passes_through", "users_frames"]

# The packages whose frames say nothing about the user's code, and the modules within them that are like the user's.
_ENGINE = frozenset({"mcp_actors", "mcp_transports", "trio", "outcome", "attr", "attrs", "cattrs", "msgspec"})
_USERS = ("mcp_actors.examples", "mcp_actors.simulate", "mcp_actors.testing")


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that begins with the first frame of the user's code, if there is one."""
    while traceback is not None and not _is_users(_module(traceback)):
        traceback = traceback.tb_next
    return traceback


def passes_through(traceback: TracebackType | None, module: str) -> bool:
    """Whether one of the frames is in ``module``."""
    while traceback is not None:
        if _module(traceback) == module:
            return True
        traceback = traceback.tb_next
    return False


class LineNamed:
    """A context manager that puts the file and line of the user's code before the text of what leaves the block."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (TypeError, ValueError, McpError)) and len(error.args) == 1:
            place = _calling_line()
            if place and not str(error).startswith(place):
                error.args = (f"{place}: {error}",)


def _calling_line() -> str:
    """The innermost line of the user's code that is being executed, or nothing if there is none."""
    frame = sys._getframe(1)
    while not _is_users(frame.f_globals.get("__name__", "")):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}, line {frame.f_lineno}"


def _is_users(module: str) -> bool:
    package = module.partition(".")[0]
    if package in _ENGINE:
        return module.startswith(_USERS)
    return package not in sys.stdlib_module_names


def _module(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", ""))
