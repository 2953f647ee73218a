"""The floor over HTTP: Trio and httptools, the same work on JSON as over stdio, no protocol check.

A task and a cancel scope for every request, or, with ``--inline``, answered in the reader, which is what no engine
that can cancel a call does.
"""

from __future__ import annotations

import sys

import httptools
import trio

from benchmarks.peers.floor import ANSWERS, Request, add, decode, encode

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: floor\r\ncontent-length: %d\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


class Connection:
    def __init__(self, socket: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        self.socket = socket
        self.nursery = nursery
        self.scope: trio.CancelScope | None = None
        self.body = b""
        self.ready: list[Request] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.ready.append(decode(self.body))
        self.body = b""

    async def answer(self, request: Request) -> None:
        if request.method == "tools/call":
            assert request.params is not None
            value = await add(**request.params.arguments)
            content = [{"type": "text", "text": encode(value).decode()}]
            result = {"content": content, "structuredContent": value, "isError": False}
        elif request.id is not None:
            result = ANSWERS[request.method]
        else:
            await self.socket.send(ACCEPTED)
            return
        body = encode({"jsonrpc": "2.0", "id": request.id, "result": result})
        await self.socket.send(HEAD % len(body) + body)

    async def call(self, request: Request) -> None:
        with trio.CancelScope() as self.scope:
            await self.answer(request)

    async def read(self, inline: bool) -> None:
        with self.socket:
            while data := await self.socket.recv(65536):
                self.parser.feed_data(data)
                for request in self.ready:
                    if inline:
                        await self.answer(request)
                    else:
                        self.nursery.start_soon(self.call, request)
                self.ready.clear()


async def main(port: int, inline: bool) -> None:
    listener = trio.socket.socket()
    listener.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    await listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    async with trio.open_nursery() as nursery:
        while True:
            socket, _ = await listener.accept()
            socket.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
            nursery.start_soon(Connection(socket, nursery).read, inline)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[-1]), "--inline" in sys.argv)
