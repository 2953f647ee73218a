"""A stdio server whose handler lives in another process: ``python relay.py SOCKET`` passes frames on, both ways."""

from __future__ import annotations

import sys

import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.framing import LineChannel
from mcp_transports.stdio import StdioServerTransport


async def pass_on(source: FrameChannel, sink: FrameChannel, scope: trio.CancelScope) -> None:
    try:
        while True:
            await sink.send_many(await source.receive_many())
    except (trio.EndOfChannel, trio.BrokenResourceError):
        scope.cancel()


async def relay(near: FrameChannel) -> None:
    stream = await trio.open_unix_socket(sys.argv[1])
    async with LineChannel(stream, stream) as far, trio.open_nursery() as nursery:
        nursery.start_soon(pass_on, near, far, nursery.cancel_scope)
        nursery.start_soon(pass_on, far, near, nursery.cancel_scope)


if __name__ == "__main__":
    trio.run(StdioServerTransport().serve, relay)
