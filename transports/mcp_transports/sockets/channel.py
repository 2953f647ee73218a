"""What both ends of a socket connection are: lines over a socket, or over TLS on one."""

from __future__ import annotations

import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.framing import LineChannel
from mcp_transports.sockets.stream import ConnectedSocket

__all__ = ["SocketChannel"]

# How long closing may take: TLS sends a goodbye, which a peer that reads nothing does not take, and what a peer still
# sends is waited for.
_GOODBYE_TIME = 2.0

Secured = trio.SSLStream[ConnectedSocket]


class SocketChannel(LineChannel):
    """Frames over ``stream``."""

    def __init__(self, stream: ConnectedSocket | Secured, *, max_message_bytes: int, peer: str) -> None:
        super().__init__(stream, stream, max_message_bytes=max_message_bytes, peer=peer)
        self._stream = stream
        self._plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream

    async def receive(self) -> Frame:
        """Waits for one frame."""
        try:
            return await super().receive()
        except trio.BrokenResourceError as error:
            self._note(error)
            raise

    async def receive_many(self) -> list[Frame]:
        """Waits for at least one frame and returns all that one read of the socket brought."""
        try:
            return await super().receive_many()
        except trio.BrokenResourceError as error:
            self._note(error)
            raise

    def _note(self, error: trio.BrokenResourceError) -> None:
        # Who sends too long a message is still sending it, and would not see the last error if we just closed.
        if isinstance(error.__cause__, RemoteProtocolError):
            self._plain.expect_more()

    async def send_eof(self) -> None:
        """Ends what is sent and goes on receiving. Over TLS that cannot be: raises `trio.ClosedResourceError` there."""
        if isinstance(self._stream, trio.SSLStream):
            raise trio.ClosedResourceError("TLS has no half-closed connections here")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes within two seconds, whatever the peer does; at once if cancelled."""
        try:
            with trio.move_on_after(_GOODBYE_TIME):
                await super().aclose()
        except trio.ClosedResourceError:
            pass  # another task closes too and was faster
