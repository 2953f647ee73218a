"""A read full of small frames is taken in parts, so that others have their turn."""

from __future__ import annotations

import pytest
import trio.testing

from mcp_transports.websocket.channel import WebSocketChannel
from mcp_transports.websocket.protocol import FRAMES_IN_A_TURN


def masked(opcode: int, payload: bytes) -> bytes:
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


@pytest.mark.parametrize("times", [1, 10])
async def test_others_have_turns_beside_a_flood_of_frames(times: int) -> None:
    near, far = trio.testing.memory_stream_pair()
    turns, receives, total = 0, 0, 1000 * times

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        channel = WebSocketChannel(near, client=False, nursery=nursery)
        # Every second frame is a pong, which brings no message.
        flood = b"".join(masked(1, b"%d" % number) + masked(10, b"") for number in range(total))
        await far.send_all(flood)
        nursery.start_soon(other)
        received: list[bytes] = []
        while len(received) < total:
            frames = await channel.receive_many()
            assert len(frames) <= FRAMES_IN_A_TURN
            receives += 1
            received += [frame.data for frame in frames]
        nursery.cancel_scope.cancel()
    assert turns >= receives // 2 > times
    assert received == [b"%d" % number for number in range(total)]
