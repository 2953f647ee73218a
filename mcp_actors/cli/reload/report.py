"""The lines that ``--reload`` writes to standard error."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
import traceback
from collections.abc import Iterator

from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.output import safe
from mcp_actors.cli.target import is_ours

__all__ = ["failure_block"]

# Frames that are shown of a traceback: those where it ended.
MOST_FRAMES = 12
_ENGINE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_NOT_ENGINE = os.path.join(_ENGINE, "examples")
_LIBRARY = frozenset({contextlib.__file__, importlib.__file__})
_TRIO = f"{os.sep}site-packages{os.sep}trio{os.sep}"


def failure_block(what: str, error: BaseException, since: float) -> str:
    """Returns what a person is told of a reload that failed: the error, the user's own frames, and what goes on.

    Args:
        what: The target.
        error: The error, or the `CommandFailure` that it was turned into.
        since: When the version was loaded that serves on, in seconds since the epoch.
    """
    cause = error.__cause__ if isinstance(error, CommandFailure) else error
    clock = time.strftime("%H:%M:%S", time.localtime(since))
    if cause is None:
        lines = [f"mcp-actors: {what} was not reloaded: {error}"]
    else:
        lines = [f"mcp-actors: {what} was not reloaded:", *_frames(cause)]
    lines.append(f"mcp-actors: what was loaded at {clock} serves on; the next change of a file is tried")
    return "\n".join(safe(line) for line in lines)


def _frames(error: BaseException) -> Iterator[str]:
    """Yields the lines of the user's own frames, and of the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    told = traceback.TracebackException.from_exception(error)
    own = [frame for frame in told.stack if not _is_of_the_engine(frame.filename)]
    shown = traceback.StackSummary.from_list(own[-MOST_FRAMES:])
    for text in (*shown.format(), *told.format_exception_only()):
        yield from text.rstrip("\n").split("\n")


def _is_of_the_engine(filename: str) -> bool:
    if is_ours(filename) or filename in _LIBRARY or _TRIO in filename:
        return True
    return filename.startswith(_ENGINE + os.sep) and not filename.startswith(_NOT_ENGINE + os.sep)
