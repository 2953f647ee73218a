"""A client's transport on which every receive is cancelled a few times before it may end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp_actors.abc import ClientTransport, Frame, FrameChannel
from mcp_actors.testing.conformance.cancelling import cancelled_at_step
from mcp_actors.testing.passing import PassingChannel

__all__ = ["InterruptingTransport"]

# At which resumption a receive is cancelled, in turn; -1 lets it be.
STEPS = (0, 1, 2, 3, 4, -1)


class InterruptingTransport:
    """For checks of what only a whole client can drive: its channels lose what the binding's lose when cancelled."""

    def __init__(self, inner: ClientTransport) -> None:
        self._inner = inner

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """As the inner transport."""
        async with self._inner.connect() as channel:
            yield _InterruptedChannel(channel)


class _InterruptedChannel(PassingChannel):
    _turn = 0

    async def receive_many(self) -> list[Frame]:
        got: list[Frame] = []

        async def receive() -> None:
            got.extend(await self._inner.receive_many())

        while not got:
            step = STEPS[self._turn % len(STEPS)]
            self._turn += 1
            if step < 0:
                await receive()
            else:
                await cancelled_at_step(step, receive)
        return got
