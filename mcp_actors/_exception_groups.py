"""Unwraps exception groups that hold a single exception: nurseries wrap every exception that leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_error", "sole_cause"]


def sole_cause(error: BaseException) -> BaseException:
    """Returns the only exception inside nested groups, or the innermost group that holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def one_error() -> Iterator[None]:
    """Raises the sole cause of an exception group instead of the group, so that nurseries of the engine do not show."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = sole_cause(group)
        if cause is group:
            raise
        raise cause from cause.__cause__
