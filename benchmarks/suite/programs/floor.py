"""The floor, the smallest server on Trio for each transport: ``floor URL``.

A task and a cancel scope for every request, one writer task a connection, no schema, no protocol check.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import trio

from benchmarks.suite.programs.answers import ANSWERS, UNKNOWN_METHOD, encode, sum_result
from benchmarks.suite.programs.telling import tell

READ_BYTES = 65_536


class Meta(msgspec.Struct):
    progressToken: int = 0


class Params(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] = {}
    requestId: int = 0
    meta: Meta | None = msgspec.field(name="_meta", default=None)


class Request(msgspec.Struct):
    method: str
    id: int | None = None
    params: Params | None = None


read = msgspec.json.Decoder(Request).decode
Notify = Callable[[bytes], Awaitable[None]]


async def call(params: Params, notify: Notify) -> dict[str, Any]:
    arguments = params.arguments
    if params.name == "add":
        return sum_result(arguments["a"], arguments["b"])
    if params.name == "add_awaiting":
        await trio.lowlevel.checkpoint()
        return sum_result(arguments["a"], arguments["b"])
    if params.name == "hang":
        tell("began")
        try:
            await trio.sleep_forever()
        finally:
            tell("cancelled")
    if params.name == "steps":
        for number in range(1, arguments["count"] + 1):
            token = params.meta.progressToken if params.meta else 0
            report = {"progressToken": token, "progress": number, "message": "x" * arguments["size"]}
            await notify(encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": report}))
    return {"content": [{"type": "text", "text": arguments.get("text", "done")}], "isError": False}


class FloorConnection:
    """One connection that carries nothing but messages."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.scopes: dict[int | None, trio.CancelScope] = {}
        self.outbox, self.queued = trio.open_memory_channel[bytes](math.inf)

    def take(self, data: bytes) -> None:
        request = read(data)
        if request.method == "tools/call":
            self.nursery.start_soon(self.run, request)
        elif request.id is not None:
            result = ANSWERS.get(request.method)
            outcome = {"error": UNKNOWN_METHOD} if result is None else {"result": result}
            self.outbox.send_nowait(encode({"jsonrpc": "2.0", "id": request.id, **outcome}))
        elif request.method == "notifications/cancelled" and request.params is not None:
            scope = self.scopes.get(request.params.requestId)
            if scope is not None:
                scope.cancel()

    async def run(self, request: Request) -> None:
        assert request.params is not None
        with trio.CancelScope() as scope:
            self.scopes[request.id] = scope
            try:
                self.reply(request.id, await call(request.params, self.outbox.send))
            finally:
                del self.scopes[request.id]

    def reply(self, id: int | None, result: dict[str, Any]) -> None:
        self.outbox.send_nowait(encode({"jsonrpc": "2.0", "id": id, "result": result}))

    def all_queued(self, first: bytes) -> list[bytes]:
        lines = [first]
        while True:
            try:
                lines.append(self.queued.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return lines


async def lines(source: int, sink: int) -> None:
    """Messages as lines between two file descriptors."""
    os.set_blocking(source, False)
    os.set_blocking(sink, False)
    async with trio.open_nursery() as nursery:
        peer = FloorConnection(nursery)

        async def write() -> None:
            async for line in peer.queued:
                view = memoryview(b"\n".join(peer.all_queued(line)) + b"\n")
                while view:
                    try:
                        view = view[os.write(sink, view) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(sink)
                    except ConnectionError:
                        nursery.cancel_scope.cancel()
                        return

        nursery.start_soon(write)
        rest: list[bytes] = []
        while True:
            await trio.lowlevel.wait_readable(source)
            try:
                chunk = os.read(source, READ_BYTES)
            except ConnectionError:
                chunk = b""
            if not chunk:
                nursery.cancel_scope.cancel()
                return
            *whole, last = chunk.split(b"\n")
            for line in whole:
                peer.take(b"".join([*rest, line]))
                rest = []
            if last:
                rest.append(last)


async def serve_sockets(listeners: list[trio.SocketListener]) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await lines(stream.socket.fileno(), stream.socket.fileno())

    await trio.serve_listeners(handle, listeners)


async def main(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "stdio":
        await lines(0, 1)
        return
    if parts.scheme == "unix":
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(parts.path)
        listener.listen(4096)
        await serve_sockets([trio.SocketListener(listener)])
        return
    if parts.scheme == "tcp":
        await serve_sockets(await trio.open_tcp_listeners(parts.port or 0, host="127.0.0.1", backlog=4096))
    # What a start costs is measured too: only the one that is used is loaded.
    serve = importlib.import_module(f"benchmarks.suite.programs.floor_{parts.scheme}").serve
    await serve(parts.port)


if __name__ == "__main__":
    if sys.argv[1].startswith("codec:"):
        codec = importlib.import_module("benchmarks.suite.programs.codec")
        codec.measure(codec.FLOOR, sys.argv[1])
        sys.exit(0)
    try:
        trio.run(main, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
