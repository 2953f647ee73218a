"""Tracebacks for people: a connection that fails ends with the line that wanted it, the reason and what to do.

A wrong argument ends with the line that gave it. The frames between that line and the socket, or the check, are ours,
and the reason stands in the text of the error. With ``MCP_ACTORS_TRACEBACK=full`` in the environment everything is
there, for those who look for a defect of this package.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from mcp_actors.errors import McpError
from mcp_actors.supervision import arguments

__all__ = ["VARIABLE", "is_users_module", "module_of", "shorten", "users_frames", "with_users_frames"]

VARIABLE = "MCP_ACTORS_TRACEBACK"

_FROM_A_CHECK = "_mcp_actors_from_a_check"

# What fails at a connection by itself. Any other error in a chain is a defect of somebody's code, which is to be found.
# Those of Trio by their names, because processes import this that have no Trio.
_OF_TRIO = frozenset({"BrokenResourceError", "ClosedResourceError", "EndOfChannel", "TooSlowError"})
_PACKAGES_OF_CONNECTIONS = ("httpcore2", "httpx2", "mcp_actors", "mcp_transports", "wsproto")


def shorten(error: BaseException) -> None:
    """Takes away the frames and causes that say nothing more, where a program called us: ``shorten(error); raise``.

    Raised so, an error begins with the frame of the caller. Errors that are not of this package stay as they are.

    Args:
        error: What has ended an attempt to connect, or to make an object that connects.
    """
    if os.environ.get(VARIABLE, "").strip().lower() == "full":
        return
    if not isinstance(error, McpError) and not _is_about_an_argument(error):
        return
    error.__traceback__ = None
    if not _has_defect(_shown_cause(error)):
        error.__cause__ = error.__context__ = None


def _is_about_an_argument(error: BaseException) -> bool:
    """Whether a check of arguments has raised an error, so that its text says everything and no code of ours failed."""
    if not isinstance(error, TypeError):
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is not None and frame.tb_frame.f_globals.get("__name__") == arguments.__name__:
        # Whoever catches it further out sees its frames no more.
        setattr(error, _FROM_A_CHECK, True)
    return hasattr(error, _FROM_A_CHECK)


def _has_defect(cause: BaseException | None) -> bool:
    if cause is None:
        return False
    if isinstance(cause, BaseExceptionGroup):
        return any(map(_has_defect, cause.exceptions))
    package = type(cause).__module__.partition(".")[0]
    expected = (
        isinstance(cause, OSError)
        or package in _PACKAGES_OF_CONNECTIONS
        or (package == "trio" and type(cause).__name__ in _OF_TRIO)
    )
    return not expected or _has_defect(_shown_cause(cause))


def _shown_cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# -- whose code a frame is ---

# The packages whose frames say nothing about the user's code, and the modules within them that are like the user's.
_ENGINE = frozenset({"mcp_actors", "mcp_transports", "trio", "outcome", "attr", "attrs", "cattrs", "msgspec"})
_USERS = ("mcp_actors.examples.", "mcp_actors.testing.", "mcp_actors.cli.demo.servers.")


def is_users_module(module: str) -> bool:
    """Whether code of a module is the user's, and neither the engine's nor the standard library's."""
    package = module.partition(".")[0]
    if package in _ENGINE:
        return f"{module}.".startswith(_USERS)
    return package not in sys.stdlib_module_names


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that begins with the first frame of the user's code, if there is one."""
    while traceback is not None and not is_users_module(module_of(traceback)):
        traceback = traceback.tb_next
    return traceback


def with_users_frames(cause: BaseException, group: BaseException) -> BaseException:
    """Returns ``cause``, which alone was in a group, behind the frames of the group if it has none of the user's.

    A nursery of the user's in which a method of ours is started has a task whose frames are ours alone.
    """
    if cause is not group and users_frames(cause.__traceback__) is None:
        around, outer = cause.__traceback__, []
        traceback = group.__traceback__
        while traceback is not None:
            outer.append(traceback)
            traceback = traceback.tb_next
        for each in reversed(outer):
            around = TracebackType(around, each.tb_frame, each.tb_lasti, each.tb_lineno)
        cause.__traceback__ = around
    return cause


def module_of(traceback: TracebackType) -> str:
    """Returns the name of the module whose code a frame runs."""
    return str(traceback.tb_frame.f_globals.get("__name__", ""))
