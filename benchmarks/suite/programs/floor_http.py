"""The floor over HTTP: Trio and httptools."""

from __future__ import annotations

import httptools
import trio

from benchmarks.suite.programs.answers import ACCEPTED, ANSWERS, HEAD, encode
from benchmarks.suite.programs.floor import READ_BYTES, Request, call, read

__all__ = ["serve"]

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


class FloorHttpConnection:
    """A connection with one request at a time. Closing it cancels the request, as a cancellation does."""

    # Calls in flight by id, of all connections, because this server has no sessions.
    calls: dict[int, trio.CancelScope] = {}

    def __init__(self, socket: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        self.socket = socket
        self.nursery = nursery
        self.scope: trio.CancelScope | None = None
        self.pieces: list[bytes] = []
        self.ready: list[Request] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        # DELETE has no body, and ends nothing here.
        self.ready.append(read(b"".join(self.pieces)) if self.pieces else Request("DELETE"))
        self.pieces.clear()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[await self.socket.send(view) :]
        except OSError:
            self.socket.close()

    async def answer(self, request: Request) -> None:
        begun = False

        async def notify(data: bytes) -> None:
            nonlocal begun
            await self.send((b"" if begun else STREAM) + event(data))
            begun = True

        if request.method == "tools/call":
            assert request.params is not None
            result = await call(request.params, notify)
        else:
            result = ANSWERS[request.method]
        body = encode({"jsonrpc": "2.0", "id": request.id, "result": result})
        await self.send(event(body) + b"0\r\n\r\n" if begun else HEAD % len(body) + body)

    async def run(self, request: Request) -> None:
        with trio.CancelScope() as self.scope:
            if request.id is not None:
                self.calls[request.id] = self.scope
                try:
                    await self.answer(request)
                finally:
                    del self.calls[request.id]
                return
            taken_back = self.calls.get(request.params.requestId) if request.params is not None else None
            if taken_back is not None:
                taken_back.cancel()
            await self.send(ACCEPTED)

    async def serve(self) -> None:
        self.socket.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        with self.socket:
            try:
                while data := await self.socket.recv(READ_BYTES):
                    self.parser.feed_data(data)
                    for request in self.ready:
                        self.nursery.start_soon(self.run, request)
                    self.ready.clear()
            except OSError:
                pass
            finally:
                if self.scope is not None:
                    self.scope.cancel()


async def serve(port: int) -> None:
    listener = trio.socket.socket()
    listener.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    await listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    async with trio.open_nursery() as nursery:
        while True:
            socket, _ = await listener.accept()
            nursery.start_soon(FloorHttpConnection(socket, nursery).serve)
