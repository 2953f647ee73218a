"""A peer made of bytes: it keeps no rule of WebSocket that a test does not keep for it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.supervision.principal import Principal

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}
MASK = b"\x01\x02\x03\x04"
TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    masked: bool = True,
    bits: int = 0,
    length: int = -1,
) -> bytes:
    """A frame; ``length`` is what its head says if that shall not be true, ``bits`` goes over the reserved ones."""
    size = len(payload) if length < 0 else length
    flag = 0x80 if masked else 0
    head = bytes([(0x80 if fin else 0) | bits | opcode])
    if size < 126:
        head += bytes([flag | size])
    elif size < 65536:
        head += bytes([flag | 126]) + struct.pack("!H", size)
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


def closing(code: int, reason: str = "", *, masked: bool = True) -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason.encode(), masked=masked)


class RawPeer:
    """Reads and writes bytes; understands the frames and heads that come."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._data = bytearray()

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _need(self, size: int) -> None:
        while len(self._data) < size:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EOFError
            self._data += more

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._data[:size])
        del self._data[:size]
        return piece

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            await self._need(len(self._data) + 1)
        lines = self._cut(end + 4).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        size = int(headers.get("content-length", 0))
        await self._need(size)
        return status, headers, self._cut(size)

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; frames that come here are never fragmented."""
        await self._need(2)
        size, extra = self._data[1] & 0x7F, 0
        masked = bool(self._data[1] & 0x80)
        if size >= 126:
            extra = 2 if size == 126 else 8
            await self._need(2 + extra)
            size = int.from_bytes(self._data[2 : 2 + extra], "big")
        await self._need(2 + extra + (4 if masked else 0) + size)
        opcode = self._cut(2 + extra)[0] & 0x0F
        mask = self._cut(4) if masked else b"\0\0\0\0"
        return opcode, bytes(byte ^ mask[at % 4] for at, byte in enumerate(self._cut(size)))

    async def closed_with(self) -> tuple[int, str]:
        """Code and reason of the close frame, which must be the next one."""
        opcode, payload = await self.frame()
        assert opcode == CLOSE, (opcode, payload)
        return struct.unpack("!H", payload[:2])[0], payload[2:].decode()

    async def ended(self) -> bool:
        """Waits for the end of the stream; False when something else came before it."""
        try:
            await self._need(1)
        except (EOFError, trio.BrokenResourceError):
            return True
        return False

    async def upgrade(self, path: str = "/", **changes: str | None) -> None:
        """Sends an upgrade request; ``Sec_WebSocket_Key=None`` leaves a header out."""
        headers: dict[str, str | None] = dict(UPGRADE)
        headers.update({name.replace("_", "-"): value for name, value in changes.items()})
        lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
        await self.send(f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1"))


@asynccontextmanager
async def raw_peer(url: str, **changes: str | None) -> AsyncIterator[RawPeer]:
    """A raw peer with an open WebSocket at ``url``."""
    async with connected(url) as peer:
        await peer.upgrade(path_of(url), **changes)
        status, _ = await peer.head()
        assert status == 101
        yield peer


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawPeer]:
    host, _, port = url.split("/")[2].partition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield RawPeer(stream)


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


class Listening:
    """A handler for `ServerTransport.serve` that hands every channel to ``serve``; it never stops by itself."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve
        self.leaving, self.stopping = trio.Event(), trio.Event()
        self.principals: list[Principal | None] = []

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        self.principals.append(principal)
        try:
            await self._serve(channel)
        finally:
            # As the engine does: the closing handshake needs a moment even when everything is cancelled.
            with trio.move_on_after(1, shield=True):
                await channel.aclose()
