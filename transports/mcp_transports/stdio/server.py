"""The server side: one connection over the descriptors that this process was started with."""

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
    from mcp_transports.stdio.descriptors import StandardStreams
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
