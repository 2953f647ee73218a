"""Lines over a socket, or over TLS on one: the channel of both ends of a connection."""

from __future__ import annotations

import trio

from mcp_actors.abc import Frame
from mcp_actors.budget import Account
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.framing import LineChannel
from mcp_transports.sockets.stream import ConnectedSocket

__all__ = ["SocketChannel"]

# Seconds that closing may take: TLS sends a closing alert, which a peer that reads nothing does not take, and the end
# of what the peer still sends is waited for.
_CLOSE_TIMEOUT = 2.0

Secured = trio.SSLStream[ConnectedSocket]


class SocketChannel(LineChannel):
    """Frames over ``stream``."""

    def __init__(
        self,
        stream: ConnectedSocket | Secured,
        *,
        max_message_bytes: int,
        peer: str,
        account: Account | None = None,
    ) -> None:
        super().__init__(stream, stream, max_message_bytes=max_message_bytes, peer=peer, account=account)
        self._stream = stream
        self._plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream

    @property
    def needs_pings(self) -> bool:
        """True: a host that is gone, or a process that hangs, sends nothing."""
        return True

    async def receive(self) -> Frame:
        """Waits for one frame; see `LineChannel.receive`."""
        try:
            return await super().receive()
        except trio.BrokenResourceError as error:
            self._note_violation(error)
            raise

    async def receive_many(self) -> list[Frame]:
        """Waits for at least one frame and returns all that one read brought; see `LineChannel.receive_many`."""
        try:
            return await super().receive_many()
        except trio.BrokenResourceError as error:
            self._note_violation(error)
            raise

    def _note_violation(self, error: trio.BrokenResourceError) -> None:
        # A peer that sends too long a message is still sending it, and would not see the last error if we just closed.
        if isinstance(error.__cause__, RemoteProtocolError):
            self._plain.expect_more()

    async def send_eof(self) -> None:
        """Ends the sending direction and goes on receiving.

        Raises:
            trio.ClosedResourceError: this channel was closed, or is one over TLS, which has no half-closed connections.
        """
        if isinstance(self._stream, trio.SSLStream):
            raise trio.ClosedResourceError("TLS has no half-closed connections here")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes within two seconds, whatever the peer does; at once if cancelled."""
        try:
            with trio.move_on_after(_CLOSE_TIMEOUT):
                await super().aclose()
        except trio.ClosedResourceError:
            pass  # another task closes too and was faster
