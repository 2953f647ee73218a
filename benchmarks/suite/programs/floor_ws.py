"""The floor over WebSocket: trio-websocket."""

from __future__ import annotations

import trio
import trio_websocket

from benchmarks.suite.programs.floor import FloorConnection

__all__ = ["serve"]

MOST_BYTES = 32 * 2**20


async def web_socket(request: trio_websocket.WebSocketRequest) -> None:
    connection = await request.accept(subprotocol="mcp")
    async with trio.open_nursery() as nursery:
        peer = FloorConnection(nursery)

        async def write() -> None:
            try:
                async for message in peer.queued:
                    await connection.send_message(message.decode())
            except trio_websocket.ConnectionClosed:
                nursery.cancel_scope.cancel()

        nursery.start_soon(write)
        try:
            while True:
                message = await connection.get_message()
                peer.take(message.encode() if isinstance(message, str) else message)
        except trio_websocket.ConnectionClosed:
            nursery.cancel_scope.cancel()


async def serve(port: int) -> None:
    await trio_websocket.serve_websocket(
        web_socket, "127.0.0.1", port, ssl_context=None, max_message_size=MOST_BYTES
    )
