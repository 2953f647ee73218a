"""The floor over HTTP: Trio and httptools."""

from __future__ import annotations

import httptools
import trio

from benchmarks.peers.floor import ANSWERS, encode
from benchmarks.suite.programs.floor import READ_BYTES, Request, call, read

__all__ = ["serve"]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: floor\r\ncontent-length: %d\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


class HttpConnection:
    """One request after the other; closing the connection takes the one in flight back."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.pieces: list[bytes] = []
        self.ready: list[Request] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.pieces:
            self.ready.append(read(b"".join(self.pieces)))
            self.pieces.clear()

    async def run(self, request: Request) -> None:
        with trio.CancelScope():
            if request.id is None:
                await self.stream.send_all(ACCEPTED)
                return
            begun = False

            async def notify(data: bytes) -> None:
                nonlocal begun
                await self.stream.send_all((b"" if begun else STREAM) + event(data))
                begun = True

            if request.method == "tools/call":
                assert request.params is not None
                result = await call(request.params, notify)
            else:
                result = ANSWERS[request.method]
            body = encode({"jsonrpc": "2.0", "id": request.id, "result": result})
            await self.stream.send_all(event(body) + b"0\r\n\r\n" if begun else HEAD % len(body) + body)

    async def serve(self) -> None:
        async with self.stream, trio.open_nursery() as nursery:
            while True:
                try:
                    data = await self.stream.receive_some(READ_BYTES)
                except trio.BrokenResourceError:
                    data = b""
                if not data:
                    nursery.cancel_scope.cancel()
                    return
                self.parser.feed_data(data)
                for request in self.ready:
                    nursery.start_soon(self.run, request)
                self.ready.clear()


async def serve(port: int) -> None:
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=4096)

    async def handle(stream: trio.SocketStream) -> None:
        await HttpConnection(stream).serve()

    await trio.serve_listeners(handle, listeners)
