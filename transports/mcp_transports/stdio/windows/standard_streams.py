"""Takes descriptors 0 and 1 for the protocol on Windows, as private copies, and replaces them meanwhile."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from types import TracebackType

import trio

from mcp_actors.errors import ConnectFailed

__all__ = ["DivertedStreams"]

# Private copies stay clear of 0, 1 and 2, also when one of those was closed.
_FIRST_PRIVATE = 3
_O_BINARY = 0x8000


class DivertedStreams:
    """Takes descriptors 0 and 1 for the protocol and gives them back: a ``with`` block that yields two descriptors.

    Inside, descriptor 0 reads as empty and descriptor 1 is a copy of descriptor 2, for this process and for those that
    it starts. That is more than tidiness: a child that inherited the pipe at which a thread of this process waits would
    hang at its start, because the system lets nobody look at a pipe while another one is in a call on it.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> tuple[int, int]:
        _flush()
        private: list[int] = []
        try:
            for standard, name in enumerate(("input", "output")):
                private.append(self._take(standard, name))
            _point_at_null(0)
            if sys.__stderr__ is None:
                _point_at_null(1)
            else:
                os.dup2(2, 1)
        except BaseException:
            self._restore()
            for fd in private:
                os.close(fd)
            raise
        return private[0], private[1]

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _take(self, standard: int, name: str) -> int:
        # A program without a console, such as pythonw, has nothing there.
        if (sys.__stdin__, sys.__stdout__)[standard] is None:
            raise ConnectFailed(f"standard {name} is closed")
        try:
            saved = _private_copy(standard)
        except OSError as error:
            raise ConnectFailed(f"standard {name} cannot be used: {error}") from error
        self._undo.append(lambda: _put_back(saved, standard))
        return _private_copy(standard)

    def _restore(self) -> None:
        # Buffered output is written before descriptor 1 is the peer's again. If that fails it must be dropped.
        if self._undo and not _flush():
            _point_at_null(1)
            _flush()
        while self._undo:
            self._undo.pop()()


def _private_copy(fd: int) -> int:
    """Returns a copy that no child inherits, in which no newline is translated."""
    low: list[int] = []
    try:
        while (copy := os.dup(fd)) < _FIRST_PRIVATE:
            low.append(copy)
    finally:
        for each in low:
            os.close(each)
    importlib.import_module("msvcrt").setmode(copy, _O_BINARY)
    return copy


def _put_back(saved: int, standard: int) -> None:
    os.dup2(saved, standard)
    os.close(saved)


def _point_at_null(standard: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != standard:
        os.dup2(null, standard)
        os.close(null)


def _flush() -> bool:
    """Flushes the buffers of Python and of the C runtime that it uses. Returns false if that failed."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):
        pass  # None or closed: there is no buffer then
    except OSError:
        return False
    return bool(ctypes.CDLL("ucrtbase").fflush(None) == 0)
