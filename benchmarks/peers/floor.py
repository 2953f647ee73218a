"""The floor: the least that could do the job on Trio, against which the work of an engine is told.

A task and a cancel scope for every request in flight and one writer task: no schema, no protocol check.
"""

from __future__ import annotations

import math
import os
from typing import Any

import msgspec
import trio


class Params(msgspec.Struct):
    name: str = ""
    arguments: dict[str, int] = {}


class Request(msgspec.Struct):
    method: str
    id: int | str | None = None
    params: Params | None = None


INFO = {"name": "floor", "version": "0"}
ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO},
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "resultType": "complete",
    },
}
decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode


async def add(a: int, b: int) -> dict[str, int]:
    return {"total": a + b}


class Floor:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.scopes: dict[int | str | None, trio.CancelScope] = {}
        self.outbox, self.queued = trio.open_memory_channel[bytes](math.inf)

    async def call(self, request: Request) -> None:
        assert request.params is not None
        with trio.CancelScope() as scope:
            self.scopes[request.id] = scope
            try:
                value = await add(**request.params.arguments)
                content = [{"type": "text", "text": encode(value).decode()}]
                self.reply(request.id, {"content": content, "structuredContent": value, "isError": False})
            finally:
                del self.scopes[request.id]

    def reply(self, id: int | str | None, result: dict[str, Any]) -> None:
        self.outbox.send_nowait(encode({"jsonrpc": "2.0", "id": id, "result": result}))

    async def write(self) -> None:
        async for line in self.queued:
            lines = [line]
            while True:
                try:
                    lines.append(self.queued.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            view = memoryview(b"\n".join(lines) + b"\n")
            while view:
                try:
                    view = view[os.write(1, view) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(1)

    async def read(self) -> None:
        rest = b""
        while True:
            await trio.lowlevel.wait_readable(0)
            chunk = os.read(0, 65536)
            if not chunk:
                self.outbox.close()
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                request = decode(line)
                if request.method == "tools/call":
                    self.nursery.start_soon(self.call, request)
                elif request.id is not None:
                    self.reply(request.id, ANSWERS[request.method])


async def main() -> None:
    os.set_blocking(1, False)
    async with trio.open_nursery() as nursery:
        floor = Floor(nursery)
        nursery.start_soon(floor.write)
        nursery.start_soon(floor.read)


if __name__ == "__main__":
    trio.run(main)
