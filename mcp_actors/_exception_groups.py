"""Unwraps exception groups that hold a single exception: nurseries wrap every exception that leaves them."""

from __future__ import annotations

from types import TracebackType

__all__ = ["one_error", "sole_cause"]


def sole_cause(error: BaseException) -> BaseException:
    """Returns the only exception inside nested groups, or the innermost group that holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class one_error:
    """Raises the sole cause of an exception group instead of the group, so that nurseries of the engine do not show.

    It is no generator, whose frames would keep the group, and with it the cause and all frames, until the garbage
    collector runs.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        cause = sole_cause(error)
        if cause is error:
            return
        context = cause.__context__
        try:
            raise cause from cause.__cause__
        finally:
            # Python has made the group, which has the cause, the context of the cause.
            cause.__context__ = context
            del cause, context, error, traceback
