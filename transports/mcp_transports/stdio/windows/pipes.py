"""The pipes to a child, which are Trio's with overlapped calls, as a `ChildProcess` needs them.

They can be ended by another task (`finish`), and are told when it is over.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

__all__ = ["ChildReceivePipe", "ChildSendPipe"]

_RECEIVE_BYTES = 64 * 1024
# Seconds. The child is gone, so what it wrote is in the pipe. Another process may have its end open, and may even
# write: reading goes on until nothing comes for the first time, and for the second at most.
_QUIET = 0.05
_REST = 0.5


class ChildReceivePipe(trio.abc.ReceiveStream):
    """Receives from a child and owns the pipe.

    Args:
        inner: Trio's stream.
        before_end: Is awaited before the end of the stream is reported, clean or broken.
        on_close: Is given the pipe, still open, when this stream is closed; without it the pipe is closed too.
        reading: Is held while the pipe is read: it is the same one after `on_close`, until a read that was cancelled
            has ended.
    """

    def __init__(
        self,
        inner: trio.abc.ReceiveStream,
        *,
        before_end: Callable[[], Awaitable[object]] | None = None,
        on_close: Callable[[ChildReceivePipe], object] | None = None,
        reading: trio.Lock | None = None,
    ) -> None:
        self._inner = inner
        self._before_end = before_end
        self._on_close = on_close
        self._reading = trio.Lock() if reading is None else reading
        self._waiting: trio.CancelScope | None = None
        self._closed = False
        self._end_by = math.inf

    def finish(self) -> None:
        """Ends the stream after the bytes that the pipe holds now, even if another process has the other end open."""
        if self._end_by == math.inf:
            self._end_by = trio.current_time() + _REST
            self._wake()

    def close(self) -> None:
        """Closes the stream; a task that receives gets `trio.ClosedResourceError`."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._on_close is not None:
            self._on_close(ChildReceivePipe(self._inner, reading=self._reading))
        else:
            _close(self._inner)

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end. Cancelling loses nothing.

        Args:
            max_bytes: The most to return; 64 KiB by default.

        Raises:
            trio.BrokenResourceError: The pipe cannot be read.
            trio.ClosedResourceError: This stream was closed.
        """
        async with self._reading:
            while not self._closed:
                rest = self._end_by < math.inf
                until = min(self._end_by, trio.current_time() + _QUIET) if rest else math.inf
                with trio.CancelScope(deadline=until) as self._waiting:
                    data = await self._read(max_bytes or _RECEIVE_BYTES)
                    if data:
                        return data
                if not self._waiting.cancelled_caught or rest:
                    break
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        await self._report()
        return b""

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self._inner.receive_some(max_bytes))
        except (trio.BrokenResourceError, OSError) as error:
            await self._report()
            raise trio.BrokenResourceError(f"reading failed: {error}") from error

    async def _report(self) -> None:
        if self._before_end is not None:
            await self._before_end()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class ChildSendPipe(trio.abc.SendStream):
    """Sends to a child and owns the pipe.

    Args:
        inner: Trio's stream.
        before_end: Is awaited before the stream is reported as broken.
    """

    def __init__(self, inner: trio.abc.SendStream, *, before_end: Callable[[], Awaitable[object]]) -> None:
        self._inner = inner
        self._before_end = before_end
        self._waiting: trio.CancelScope | None = None
        self._broken = self._closed = False

    def finish(self) -> None:
        """Breaks the stream, because the child reads no more, though another process may still have its end open."""
        self._broken = True
        self._wake()

    def close(self) -> None:
        """Closes the stream and the pipe."""
        if not self._closed:
            self._closed = True
            self._wake()
            _close(self._inner)

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent.

        Args:
            data: The bytes.

        Raises:
            trio.BrokenResourceError: The child reads no more.
            trio.ClosedResourceError: This stream was closed.
        """
        cause: Exception | None = None
        if not (self._closed or self._broken):
            with trio.CancelScope() as self._waiting:
                try:
                    await self._inner.send_all(data)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                    cause = error
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed") from cause
        self._broken = True
        await self._before_end()
        raise trio.BrokenResourceError("the peer is gone") from cause

    async def wait_send_all_might_not_block(self) -> None:
        """Returns at once: the system does not tell."""
        await trio.lowlevel.checkpoint()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


def _close(stream: object) -> None:
    """Closes one of Trio's pipes, which can be closed without waiting although their abstract classes do not say so."""
    close: Callable[[], None] = getattr(stream, "close")  # noqa: B009
    close()
