"""The messages of a listener to others."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.abc import Bus
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_transports.http.server.forwarding.messages import Message, encode_message

__all__ = ["Outbox"]

# Messages that wait to be sent and are no part of a body. Over it they are dropped, and what they said is said again in
# the next `OpenRequests`.
MAX_POSTED = 10_000


class Outbox:
    """Sends the messages of one listener.

    Args:
        bus: Carries them.
        on_gone: Called with a mailbox whose node is gone.
    """

    def __init__(self, bus: Bus, on_gone: Callable[[str], None]) -> None:
        self._bus = bus
        self._on_gone = on_gone
        self._posted_end, self._posted = trio.open_memory_channel[tuple[str, Message]](MAX_POSTED)

    def __repr__(self) -> str:
        return f"<Outbox {self._posted.statistics().current_buffer_used} wait>"

    def post(self, address: str, message: Message) -> None:
        """Has a message sent soon. Never waits; when too many wait it is dropped."""
        try:
            self._posted_end.send_nowait((address, message))
        except trio.WouldBlock:
            log.warning("messages about forwarded requests are dropped", waiting=MAX_POSTED)

    async def send(self, address: str, message: Message) -> bool:
        """Hands a message to a mailbox, and returns whether its node was there.

        Raises:
            SharedStateUnavailable: It may have been handed over, or not.
            TypeError: It cannot be encoded.
        """
        return await self._bus.send(address, encode_message(message))

    async def run(self) -> None:
        """Sends what was posted, until cancelled."""
        async for address, message in self._posted:
            try:
                if not await self.send(address, message):
                    self._on_gone(address)
            except SharedStateUnavailable as error:
                log.debug("a message about forwarded requests is lost", reason=error.cause)
