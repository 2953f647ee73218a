"""A WebSocket message that comes in pieces (RFC 6455 section 5.4)."""

from __future__ import annotations

import codecs

from wsproto.frame_protocol import CloseReason, ParseFailed

from mcp_actors.budget import Account
from mcp_actors.framing import weigh

__all__ = ["Fragments"]


class Fragments:
    """The pieces of the message that is being received, its longest size, and what is charged for them."""

    __slots__ = ("account", "data", "decoder", "limit")

    def __init__(self, limit: int, account: Account | None) -> None:
        self.limit = limit
        self.account = account
        # One buffer: a list of pieces would cost a hundred bytes for each one-letter piece that a peer sends.
        self.data = bytearray()
        # There is one while more is to come.
        self.decoder: codecs.IncrementalDecoder | None = None

    def add(self, payload: bytes, finished: bool) -> bytes | None:
        """Takes a piece and returns the message if this was the last one.

        Raises:
            ParseFailed: There is no room for the message; the connection is to be closed with 1013.
            UnicodeDecodeError: The text is not UTF-8.
        """
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.decoder.decode(payload, finished)
        self.data += payload
        if finished:
            message = bytes(self.data)
            self.drop()
            return message
        if (overloaded := weigh(self.account, len(self.data))) is not None:
            raise ParseFailed(overloaded.message, CloseReason.TRY_AGAIN_LATER)
        return None

    def drop(self) -> None:
        """Forgets the pieces, and takes back what is charged for them."""
        self.data, self.decoder = bytearray(), None
        if self.account is not None:
            self.account.keep(0)
