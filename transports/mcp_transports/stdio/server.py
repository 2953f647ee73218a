"""The server's side of stdio: one connection over the descriptors that this process was started with.

`StandardStreams` takes descriptors 0 and 1 for the protocol, as private copies, and replaces them meanwhile; on Windows
that is `mcp_transports.stdio.windows.standard_streams.DivertedStreams`.
"""

from __future__ import annotations

import sys

import trio

from mcp_actors.abc import ConnectionHandler
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES, LineChannel
from mcp_actors.errors import LocalProtocolError

if sys.platform == "win32":
    from mcp_transports.stdio.windows.standard_streams import BlockingReceiveStream as DescriptorReceiveStream
    from mcp_transports.stdio.windows.standard_streams import BlockingSendStream as DescriptorSendStream
    from mcp_transports.stdio.windows.standard_streams import DivertedStreams as StandardStreams
else:
    import ctypes
    import fcntl
    import os
    import stat
    from collections.abc import Callable
    from types import TracebackType

    from mcp_actors.errors import ConnectFailed
    from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream

__all__ = ["StdioServerTransport"]


class StdioServerTransport:
    """Serves the one peer at descriptors 0 and 1 (MCP 2026-07-28, Transports, stdio). A `ServerTransport`.

    While it serves, descriptor 0 reads as empty and descriptor 1 is stderr for all other code: `print`,
    ``os.write(1)``, C code and child processes cannot corrupt the protocol, and appear on stderr. Both are restored,
    with the blocking mode they had, however serving ends. Pipes, sockets, terminals, files and /dev/null are all
    served. No thread reads, but on Windows, which has no other way.

    Args:
        max_message_bytes: the longest message in either direction, 16 MiB by default; see `LineChannel`.
    """

    _serving = False

    def __init__(self, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes

    def __repr__(self) -> str:
        return (
            "<StdioServerTransport: serving>"
            if StdioServerTransport._serving
            else "<StdioServerTransport: idle>"
        )

    async def serve(
        self,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs ``handler(channel)`` once, in the task that called, and returns when it returns.

        The end of input is `trio.EndOfChannel`; answers may still be sent then.

        Raises:
            ConnectFailed: descriptor 0 or 1 is closed.
            LocalProtocolError: this process serves them already.
            ValueError: ``max_message_bytes`` is less than 1.
            BaseException: whatever the handler raises, because this transport has no other connection.
        """
        if StdioServerTransport._serving:
            raise LocalProtocolError("standard input and output are served already")
        StdioServerTransport._serving = True
        try:
            with StandardStreams() as (fd_in, fd_out):
                channel = LineChannel(
                    DescriptorReceiveStream(fd_in),
                    DescriptorSendStream(fd_out),
                    max_message_bytes=self._max_message_bytes,
                    peer="stdio",
                )
                async with channel:
                    task_status.started("stdio:")
                    await handler(channel)
        finally:
            StdioServerTransport._serving = False


if sys.platform != "win32":
    # Private copies stay clear of 0, 1 and 2, also when one of those was closed.
    _FIRST_PRIVATE = 3

    class StandardStreams:
        """Takes descriptors 0 and 1 for the protocol and gives them back: a ``with`` block that yields two descriptors.

        Inside, descriptor 0 is /dev/null and descriptor 1 is a copy of descriptor 2. So the output of other code, also
        of C code and child processes, does not reach the peer, and no other code reads the peer's bytes.

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
                    private.append(self._take(standard, name))
                _divert()
            except BaseException:
                self._restore()
                for fd in private:
                    os.close(fd)
                raise
            return private[0], private[1]

        @trio.lowlevel.enable_ki_protection
        def __exit__(
            self,
            kind: type[BaseException] | None,
            value: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            self._restore()

        def _take(self, standard: int, name: str) -> int:
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
            # Buffered output is written before descriptor 1 is the peer's again. If that fails it must be dropped.
            if self._undo and not _flush_everything():
                _point_at_null(1)
                _flush_everything()
            while self._undo:
                self._undo.pop()()

    def _put_back(saved: int, standard: int, was_blocking: bool) -> None:
        os.set_blocking(saved, was_blocking)
        os.dup2(saved, standard)
        os.close(saved)

    def _divert() -> None:
        _point_at_null(0)
        # Descriptor 2 was closed when Python started, so by now it may be a private descriptor of other code.
        if sys.__stderr__ is None:
            _point_at_null(1)
        else:
            os.dup2(2, 1)

    def _point_at_null(standard: int) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if null != standard:
            os.dup2(null, standard)
            os.close(null)

    def _reopened(fd: int, direction: int) -> int:
        """Returns a descriptor for the same pipe or terminal, with an open file of its own if the system gives one."""
        try:
            path = _path_to_reopen(fd)
            opened = (
                fd if path is None else os.open(path, direction | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            )
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
            # Anonymous pipes only: a named FIFO without a writer, opened anew, would not report its end.
            if os.readlink(link).startswith("pipe:"):
                return link
        return None

    def _flush_everything() -> bool:
        """Flushes the buffers of Python and C. Returns false if that failed."""
        try:
            sys.stdout.flush()
        except (AttributeError, ValueError):
            pass  # None or closed: there is no buffer then
        except OSError:
            return False
        # C's own buffers; trio has imported ctypes already.
        return bool(ctypes.CDLL(None).fflush(None) == 0)
