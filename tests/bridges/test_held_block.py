"""Blocks of the engine that a program enters and leaves by calls from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.faces import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge


class Block:
    """A block with a cancel scope of its own; notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        with trio.CancelScope():
            self.seen.append("entered")
            yield "value"
            self.seen.append("left")


def test_a_block_is_entered_and_left_by_two_calls_of_a_thread() -> None:
    inner = Block()
    block = HeldBlock(inner.open)
    assert repr(block) == "<HeldBlock not entered>"
    assert ThreadBridge().call(block.enter) == "value"
    assert (inner.seen, repr(block)) == (["entered"], "<HeldBlock inside>")
    for _ in range(2):
        ThreadBridge().call(block.leave)
        assert (inner.seen, repr(block)) == (["entered", "left"], "<HeldBlock ended>")


def test_what_entering_raises_is_raised_by_enter() -> None:
    @asynccontextmanager
    async def refuses() -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    with pytest.raises(ValueError, match="no"):
        ThreadBridge().call(HeldBlock(refuses).enter)


def test_what_ends_a_block_from_inside_is_raised_where_it_is_left() -> None:
    failing = trio.Event()

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        with trio.CancelScope() as scope:
            yield scope.cancel
        raise ValueError("ended from inside")

    held = HeldBlock(block)
    cancel = ThreadBridge().call(held.enter)

    async def end() -> None:
        cancel()  # type: ignore[func-returns-value,misc]
        failing.set()

    ThreadBridge().call(end)
    with pytest.raises(ValueError, match="ended from inside"):
        ThreadBridge().call(held.leave)


def test_a_block_whose_entering_is_cancelled_is_left_again() -> None:
    seen = []

    @asynccontextmanager
    async def never_ready() -> AsyncIterator[None]:
        try:
            await trio.sleep_forever()
            yield
        finally:
            seen.append("ended")

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await bridge.call(HeldBlock(never_ready).enter)

    asyncio.run(main())
    assert seen == ["ended"]
