"""Takes descriptors 0 and 1 for the protocol on Windows, as private copies, and replaces them meanwhile.

The standard streams of a process on Windows are pipes, consoles and files without overlapped calls, and the system does
not report when they are ready. So each call is made in a thread of Trio's cache. No task waits for the thread longer
than it wants to: a read goes on when its receiver is cancelled, and what it brings is received next. A descriptor is
closed only after the call has ended, because Windows would wait for that end inside of the closing.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import outcome
import trio

from mcp_actors.errors import ConnectFailed
from mcp_transports.stdio.windows.kernel32 import kernel32

__all__ = ["BlockingReceiveStream", "BlockingSendStream", "DivertedStreams", "Interrupt"]

# Private copies stay clear of 0, 1 and 2, also when one of those was closed.
_FIRST_PRIVATE = 3
_O_BINARY = 0x8000

_RECEIVE_BYTES = 64 * 1024
# Seconds to end the call of a thread, and between two tries: the thread may have been on its way into the call.
_INTERRUPT_TIMEOUT = 0.5
_INTERRUPT_AGAIN = 0.01

Interrupt = Callable[[int], bool]
"""Ends the call in which a thread waits, which is given by its number of the system."""


class DivertedStreams:
    """Takes descriptors 0 and 1 for the protocol and gives them back: a ``with`` block that yields two descriptors.

    Inside, descriptor 0 reads as empty and descriptor 1 is a copy of descriptor 2, for this process and for those that
    it starts. That is more than tidiness: a child that inherited the pipe at which a thread of this process waits would
    hang at its start, because the system lets no thread look at a pipe while another one is in a call on it.
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


def _interrupt(thread: int) -> bool:
    return kernel32().interrupt(thread)


class _BlockingDescriptor:
    """Owns a descriptor, and the thread that is in a call on it.

    Args:
        fd: The descriptor.
        interrupt: For tests.
    """

    def __init__(self, fd: int, interrupt: Interrupt = _interrupt) -> None:
        self._fd = fd
        self._interrupt = interrupt
        self._changing = threading.Lock()
        self._closed = False
        self._thread: int | None = None
        """The thread that is in a call; 0 while it starts."""
        self._done = trio.Event()
        self._result: outcome.Outcome[bytes] | None = None

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._fd

    def _start(self, call: Callable[[int], bytes]) -> None:
        """Begins a call; ``_done`` is set and ``_result`` there when it has ended.

        Raises:
            trio.BrokenResourceError: The system starts no thread.
        """
        token = trio.lowlevel.current_trio_token()
        self._done, self._result = trio.Event(), None
        self._thread = 0

        def work() -> bytes:
            with self._changing:
                if self._closed:
                    raise OSError("closed")
                self._thread = threading.get_native_id()
            return call(self._fd)

        def ended(result: outcome.Outcome[bytes]) -> None:
            with self._changing:
                self._thread = None
                if self._closed:
                    os.close(self._fd)
            try:
                token.run_sync_soon(self._take, result)
            except trio.RunFinishedError:
                return  # the loop has ended before the call, and no task waits for it

        try:
            trio.lowlevel.start_thread_soon(work, ended, name="mcp-actors stdio")
        except RuntimeError as error:
            # The process has no thread left, so that none will close the descriptor either.
            self._thread = None
            raise trio.BrokenResourceError(f"no thread can be started: {error}") from error

    def _take(self, result: outcome.Outcome[bytes]) -> None:
        self._result = result
        self._done.set()

    def close(self) -> None:
        """Closes the descriptor, or has the thread do it that is in a call on it."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            if self._thread is None:
                os.close(self._fd)
        self._done.set()

    async def aclose(self) -> None:
        """As `close`, and ends the call in which a thread waits; a call that cannot be ended is left to the thread."""
        self.close()
        with trio.move_on_after(_INTERRUPT_TIMEOUT, shield=True):
            while (thread := self._thread) is not None:
                if thread:
                    self._interrupt(thread)
                await trio.sleep(_INTERRUPT_AGAIN)
        await trio.lowlevel.checkpoint()

    def _require_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")


class BlockingReceiveStream(_BlockingDescriptor, trio.abc.ReceiveStream):
    """Receives from a descriptor and owns it. A thread reads when somebody waits, and at most one piece ahead."""

    _is_receiving = False
    _is_reading = False
    """Whether a thread reads, or has read what has not been received yet."""
    _rest = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end. Cancelling loses nothing.

        Args:
            max_bytes: The most to return; 64 KiB by default.

        Raises:
            trio.BrokenResourceError: The descriptor cannot be read.
            trio.ClosedResourceError: This stream was closed.
            trio.BusyResourceError: Another task is receiving.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._require_open()
        if self._is_receiving:
            raise trio.BusyResourceError("another task is receiving")
        self._is_receiving = True
        try:
            data = self._rest or await self._read()
        finally:
            self._is_receiving = False
        max_bytes = max_bytes or _RECEIVE_BYTES
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def _read(self) -> bytes:
        if not self._is_reading:
            self._start(lambda fd: os.read(fd, _RECEIVE_BYTES))
            self._is_reading = True
        await self._done.wait()
        self._require_open()
        self._is_reading = False
        assert self._result is not None
        try:
            return self._result.unwrap()
        except OSError as error:
            raise trio.BrokenResourceError(f"reading failed: {error}") from error


class BlockingSendStream(_BlockingDescriptor, trio.abc.SendStream):
    """Sends to a descriptor and owns it. A thread writes."""

    _broken: str | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent or may still be, and no more can be sent.

        Args:
            data: The bytes.

        Raises:
            trio.BrokenResourceError: The peer reads no more, or an earlier call was cancelled.
            trio.ClosedResourceError: This stream was closed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._require_open()
        if self._broken is not None:
            raise trio.BrokenResourceError(self._broken)
        self._broken = "an earlier call did not end"
        whole = bytes(data)
        self._start(lambda fd: _write(fd, whole))
        await self._done.wait()
        self._require_open()
        assert self._result is not None
        try:
            self._result.unwrap()
        except OSError as error:
            self._broken = f"writing failed: {error}"
            raise trio.BrokenResourceError(self._broken) from error
        self._broken = None

    async def wait_send_all_might_not_block(self) -> None:
        """Returns at once: the system does not tell."""
        await trio.lowlevel.checkpoint()


def _write(fd: int, data: bytes) -> bytes:
    with memoryview(data) as view:
        sent = 0
        while sent < len(view):
            sent += os.write(fd, view[sent:])
    return b""
