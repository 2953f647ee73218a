"""Exception groups of one: a nursery wraps what broke it, and whoever is told wants to know what that was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_error", "sole_cause"]


def sole_cause(error: BaseException) -> BaseException:
    """The one exception inside nested groups of one, or the group if it holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def one_error() -> Iterator[None]:
    """Raises the sole cause of an exception group in its place: our nurseries are nobody's business."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = sole_cause(group)
        if cause is group:
            raise
        raise cause from cause.__cause__
