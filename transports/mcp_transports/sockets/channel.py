"""What both ends of a socket connection are: lines over a socket, or over TLS on one."""

from __future__ import annotations

import trio

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

    async def send_eof(self) -> None:
        """Ends what is sent and goes on receiving. Over TLS that cannot be: raises `trio.ClosedResourceError` there."""
        if isinstance(self._stream, trio.SSLStream):
            raise trio.ClosedResourceError("TLS has no half-closed connections here")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes within two seconds, whatever the peer does; at once if cancelled."""
        stream = self._stream
        plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        try:
            with trio.move_on_after(_GOODBYE_TIME):
                await super().aclose()
        except trio.ClosedResourceError:
            pass  # another task closes too and was faster
        finally:
            if plain.socket.fileno() >= 0:
                await trio.aclose_forcefully(plain)
