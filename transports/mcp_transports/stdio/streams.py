"""Trio streams on file descriptors.

`trio.lowlevel.FdStream` would work for pipes. These streams wait before they read (one system call and one exception
less for each message), can read descriptors that cannot be polled, and can be ended by another task (`finish`).
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("on Windows the streams are those of mcp_transports.stdio.windows")

import array
import fcntl
import os
import select
import socket
import stat
import termios
from collections.abc import Awaitable, Callable

import trio

from mcp_actors.abc import NothingSent

__all__ = ["DescriptorReceiveStream", "DescriptorSendStream", "EndHook"]

_RECEIVE_BYTES = 64 * 1024
# How many sends may go through before other tasks run: a reader that is always fast enough would otherwise keep a
# sending loop from ever reaching a checkpoint.
_SENDS_PER_CHECKPOINT = 16

EndHook = Callable[[], Awaitable[object]]


async def _nothing() -> None:
    """The default of ``before_end``."""


def is_pollable(fd: int) -> bool:
    """Whether the kernel can report when ``fd`` is ready. Otherwise (files, /dev/null) a read never waits."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def _is_unix(fd: int, mode: int) -> bool:
    if not stat.S_ISSOCK(mode):
        return False
    with socket.socket(fileno=os.dup(fd)) as same:
        return same.family == socket.AF_UNIX


class _Descriptor:
    """Owns ``fd``, which is non-blocking if it can be polled."""

    def __init__(self, fd: int, before_end: EndHook) -> None:
        self._fd = fd
        self._pollable = is_pollable(fd)
        self._before_end = before_end
        if self._pollable:
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        return self._fd

    def release(self) -> int | None:
        """Closes this stream, but returns the descriptor, still open; None if this stream was closed before."""
        if self._fd < 0:
            return None
        fd, self._fd = self._fd, -1
        trio.lowlevel.notify_closing(fd)
        return fd

    def close(self) -> None:
        fd = self.release()
        if fd is not None:
            os.close(fd)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def _require_open(self) -> int:
        if self._fd < 0:
            raise trio.ClosedResourceError("this stream was closed")
        return self._fd


class DescriptorReceiveStream(_Descriptor, trio.abc.ReceiveStream):
    """Receives from a descriptor and owns it.

    ``before_end`` is awaited before the end of the stream is reported, clean or broken.
    """

    def __init__(self, fd: int, *, before_end: EndHook = _nothing) -> None:
        super().__init__(fd, before_end)
        self._left: int | None = None

    def finish(self) -> None:
        """Ends the stream after the bytes that the kernel holds now, even if another process has the other end open."""
        if self._fd >= 0 and self._left is None:
            held = array.array("i", [0])
            fcntl.ioctl(self._fd, termios.FIONREAD, held)
            self._left = held[0]
            trio.lowlevel.notify_closing(self._fd)  # wakes the task that waits

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end. Cancelling loses nothing: after the read there is no checkpoint.

        Raises:
            trio.BrokenResourceError: the descriptor cannot be read.
            trio.ClosedResourceError: this stream was closed.
            trio.BusyResourceError: another task is receiving.
        """
        max_bytes = max_bytes or _RECEIVE_BYTES
        if not self._pollable or self._left is not None:
            await trio.lowlevel.checkpoint()
        while True:
            fd = self._require_open()
            if self._left is None and self._pollable:
                try:
                    await trio.lowlevel.wait_readable(fd)
                except trio.ClosedResourceError:
                    continue  # closed or finished: the next round finds out which
            try:
                data = os.read(fd, max_bytes if self._left is None else min(max_bytes, self._left))
            except BlockingIOError:
                if self._left is None:
                    continue
                data = b""  # another process took the remaining bytes
            except OSError as error:
                await self._before_end()
                raise trio.BrokenResourceError(f"reading failed: {error}") from error
            if not data:
                await self._before_end()
            elif self._left is not None:
                self._left -= len(data)
            return data

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Gives ``take`` what arrives, and ``b""`` at the end, until it returns false; raises as `receive_some`."""
        while take(await self.receive_some()):
            pass


class DescriptorSendStream(_Descriptor, trio.abc.SendStream):
    """Sends to a descriptor and owns it; ``before_end`` is awaited before it is reported as broken."""

    def __init__(self, fd: int, *, before_end: EndHook = _nothing) -> None:
        super().__init__(fd, before_end)
        self._broken = False
        # What the system has said against a write of `send_at_once`.
        self._refusal: OSError | None = None
        self._sends = 0
        self.sent = 0
        """Bytes that were sent, in all."""
        mode = os.fstat(fd).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        # On Linux a pipe and a Unix socket say what the peer has not read. Other descriptors say nothing or something
        # else, and so do those of other systems: on macOS either end of a pipe says what waits for itself.
        self._unread_request = None
        if sys.platform == "linux":
            if self._is_pipe:
                self._unread_request = termios.FIONREAD
            elif _is_unix(fd, mode):
                self._unread_request = termios.TIOCOUTQ

    def finish(self) -> None:
        """Breaks the stream, because the peer reads no more, though another process may still have its end open."""
        self._broken = True
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)

    def send_at_once(self, data: bytes) -> bool:
        """Sends all of ``data`` now or nothing: POSIX promises that for pipes, up to `select.PIPE_BUF` bytes.

        Raises:
            NothingSent: the peer reads no more.
        """
        if (
            not self._is_pipe
            or self._broken
            or self._refusal is not None
            or self._fd < 0
            or len(data) > select.PIPE_BUF
        ):
            return False
        try:
            os.write(self._fd, data)
        except BlockingIOError:
            return False  # full
        except OSError as error:
            self._refusal = error
            raise NothingSent(f"writing failed: {error}") from error
        self.sent += len(data)
        return True

    def unread(self) -> int | None:
        """Bytes that the peer's program has not read yet, or a few more; ``None`` if that cannot be known."""
        if self._unread_request is None or self._fd < 0:
            return None
        held = array.array("i", [0])
        try:
            fcntl.ioctl(self._fd, self._unread_request, held)
        except OSError:
            return None
        return held[0]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent.

        Raises:
            trio.BrokenResourceError: the peer reads no more; a `~mcp_actors.abc.NothingSent` if nothing was sent.
            trio.ClosedResourceError: this stream was closed.
        """
        self._sends = (self._sends + 1) % _SENDS_PER_CHECKPOINT
        if self._sends:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                fd = self._require_open()
                if self._refusal is not None:
                    await self._break(f"writing failed: {self._refusal}", sent, self._refusal)
                if self._broken:
                    await self._break("the peer is gone", sent)
                try:
                    written = os.write(fd, view[sent:])
                    sent += written
                    self.sent += written
                except BlockingIOError:
                    await self._wait_writable(fd)
                except OSError as error:
                    await self._break(f"writing failed: {error}", sent, error)

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the descriptor takes bytes."""
        fd = self._require_open()
        if self._pollable and not self._broken:
            await self._wait_writable(fd)
        else:
            await trio.lowlevel.checkpoint()

    async def _wait_writable(self, fd: int) -> None:
        try:
            await trio.lowlevel.wait_writable(fd)
        except trio.ClosedResourceError:
            self._require_open()  # returns if only `finish` was called

    async def _break(self, reason: str, sent: int, cause: OSError | None = None) -> None:
        self._broken = True
        await self._before_end()
        kind = trio.BrokenResourceError if sent else NothingSent
        raise kind(reason) from cause
