"""Trio streams on file descriptors, and the loan of descriptors 0 and 1.

`trio.lowlevel.FdStream` would do for pipes. These streams are here because they wait first and read then (one
system call and one exception less for each message), read what cannot be polled, and can be told that no more comes.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Awaitable, Callable
from types import TracebackType

import trio

from mcp_actors.errors import ConnectFailed

__all__ = ["DescriptorReceiveStream", "DescriptorSendStream", "EndHook", "StandardStreams", "is_pollable"]

_RECEIVE_BYTES = 64 * 1024
# How many sends may go through without another task having had its turn: a reader that is always fast enough would
# otherwise keep a sending loop from ever giving way.
_SENDS_PER_TURN = 16
# Private copies stay clear of 0, 1 and 2, also when one of those was closed.
_FIRST_PRIVATE = 3

EndHook = Callable[[], Awaitable[object]]


async def _nothing() -> None:
    """The default of ``before_end``."""


def is_pollable(fd: int) -> bool:
    """Whether the kernel can say that ``fd`` is ready. What it cannot (files, /dev/null) never keeps one waiting."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


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
        """Gives the descriptor up, open: for whoever used this stream it is closed. None if it was closed before."""
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
        """Ends the stream after what the kernel holds now, though somebody may still have the other end open."""
        if self._fd >= 0 and self._left is None:
            held = array.array("i", [0])
            fcntl.ioctl(self._fd, termios.FIONREAD, held)
            self._left = held[0]
            trio.lowlevel.notify_closing(self._fd)  # wakes the task that waits

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end. Cancelling loses nothing: after the read there is no checkpoint."""
        max_bytes = max_bytes or _RECEIVE_BYTES
        if not self._pollable or self._left is not None:
            await trio.lowlevel.checkpoint()
        while True:
            fd = self._require_open()
            if self._left is None and self._pollable:
                try:
                    await trio.lowlevel.wait_readable(fd)
                except trio.ClosedResourceError:
                    continue  # closed or finished: the next turn tells which
            try:
                data = os.read(fd, max_bytes if self._left is None else min(max_bytes, self._left))
            except BlockingIOError:
                if self._left is None:
                    continue
                data = b""  # somebody else took what was left
            except OSError as error:
                if error.errno != errno.EIO:  # a terminal that hung up
                    await self._before_end()
                    raise trio.BrokenResourceError(f"reading failed: {error}") from error
                data = b""
            if not data:
                await self._before_end()
            elif self._left is not None:
                self._left -= len(data)
            return data


class DescriptorSendStream(_Descriptor, trio.abc.SendStream):
    """Sends to a descriptor and owns it; ``before_end`` is awaited before it is reported as broken."""

    def __init__(self, fd: int, *, before_end: EndHook = _nothing) -> None:
        super().__init__(fd, before_end)
        self._broken = False
        self._turn = 0

    def finish(self) -> None:
        """Breaks the stream: nobody reads at the other end, though somebody may still have it open."""
        self._broken = True
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent."""
        self._turn = (self._turn + 1) % _SENDS_PER_TURN
        if self._turn:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                fd = self._require_open()
                if self._broken:
                    await self._break("the peer is gone")
                try:
                    sent += os.write(fd, view[sent:])
                except BlockingIOError:
                    await self._wait_writable(fd)
                except OSError as error:
                    await self._break(f"writing failed: {error}", error)

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

    async def _break(self, reason: str, cause: OSError | None = None) -> None:
        self._broken = True
        await self._before_end()
        raise trio.BrokenResourceError(reason) from cause


class StandardStreams:
    """Takes descriptors 0 and 1 for the protocol and gives them back: a ``with`` block that yields two descriptors.

    Inside, descriptor 0 is /dev/null and descriptor 1 is where descriptor 2 points, so nothing that prints, not C
    code, not a child process, reaches the peer, and nothing that reads takes the peer's bytes.

    The flag O_NONBLOCK belongs to the open file, which the parent process and the shell may share. Terminals and
    pipes are therefore opened anew, which leaves the shared one alone. Where that cannot be (sockets, named FIFOs),
    the mode found is set again at the end.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> tuple[int, int]:
        _flush_everything()
        private: list[int] = []
        try:
            for standard, name in enumerate(("input", "output")):
                private.append(self._borrow(standard, name))
            _divert()
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

    def _borrow(self, standard: int, name: str) -> int:
        # Python had nothing to open there at its start: by now the number may belong to something else.
        if (sys.__stdin__, sys.__stdout__)[standard] is None:
            raise ConnectFailed(f"standard {name} is closed")
        try:
            saved = fcntl.fcntl(standard, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE)
        except OSError as error:
            raise ConnectFailed(f"standard {name} cannot be used: {error}") from error
        was_blocking = os.get_blocking(saved)
        self._undo.append(lambda: _put_back(saved, standard, was_blocking))
        return _reopened(saved, os.O_WRONLY if standard else os.O_RDONLY)

    def _restore(self) -> None:
        if self._undo:
            # What was printed meanwhile goes where it belongs before descriptor 1 is the peer's again.
            _flush_everything()
        while self._undo:
            self._undo.pop()()


def _put_back(saved: int, standard: int, was_blocking: bool) -> None:
    os.set_blocking(saved, was_blocking)
    os.dup2(saved, standard)
    os.close(saved)


def _divert() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no descriptor 2
        os.dup2(null, 1)
    if null >= _FIRST_PRIVATE:
        os.close(null)


def _reopened(fd: int, direction: int) -> int:
    """A descriptor for the same thing, with an open file of its own where the system gives one."""
    try:
        path = _path_to_reopen(fd)
        opened = fd if path is None else os.open(path, direction | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        opened = fd  # of another user, or without a reader: shared then, and put back at the end
    if opened >= _FIRST_PRIVATE and opened != fd:
        return opened
    private = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE)
    if opened != fd:
        os.close(opened)
    return private


def _path_to_reopen(fd: int) -> str | None:
    if os.isatty(fd):
        return os.ttyname(fd)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        link = f"/proc/self/fd/{fd}"
        # Anonymous pipes only: a named FIFO without a writer, opened anew, would not tell its end.
        if os.readlink(link).startswith("pipe:"):
            return link
    return None


def _flush_everything() -> None:
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):
        pass  # None, broken or closed: there is nothing to flush then
    ctypes.CDLL(None).fflush(None)  # C's own buffers; trio has imported ctypes already
