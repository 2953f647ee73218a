"""The part of WebSocket (RFC 6455) that a load needs: text frames, which it never fragments."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from mcp_actors.bench.errors import LoadError
from mcp_actors.bench.fields.streams import MOST_BYTES, Framing

__all__ = ["WebSocketFrames", "upgrade"]

KEY = "bWNwLWFjdG9ycy1sb2FkIQ=="
# A client must mask; with a key of zeros the masked bytes are the bytes.
NO_MASK = b"\0\0\0\0"
FIN, CONTINUED, TEXT, CLOSE = 0x80, 0x0, 0x1, 0x8
MASKED = 0x80


class WebSocketFrames(Framing):
    """Sends one message in one frame; joins received fragments and ignores pings."""

    def __init__(self) -> None:
        self._fragments: list[bytes] = []
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 0  # bytes of the frame that is arriving, as far as is known

    def wrap(self, data: bytes) -> bytes:
        size = len(data)
        if size < 126:
            head = bytes((FIN | TEXT, MASKED | size))
        elif size < 65536:
            head = bytes((FIN | TEXT, MASKED | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((FIN | TEXT, MASKED | 127)) + size.to_bytes(8, "big")
        return head + NO_MASK + data

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        messages, start = self._cut(data)
        self._pieces = [data[start:]] if start < len(data) else []
        self._held = len(data) - start
        return messages

    def _cut(self, data: bytes) -> tuple[list[bytes], int]:
        messages: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= 2:
            first, size = data[start], data[start + 1] & 0x7F
            body = start + 2
            if size > 125:
                width = 2 if size == 126 else 8
                size = int.from_bytes(data[body : body + width], "big")
                body += width
            if body > end or body + size > end:
                self._needed = body + size - start if body <= end else 0
                if self._needed > MOST_BYTES:
                    raise LoadError(f"a message of more than {MOST_BYTES} bytes")
                break
            start = body + size
            kind = first & 0x0F
            if kind == CLOSE:
                raise LoadError(f"the server closed the WebSocket: {data[body:start]!r}")
            if kind not in (TEXT, CONTINUED):
                continue
            self._fragments.append(data[body:start])
            if first & FIN:
                messages.append(b"".join(self._fragments))
                self._fragments.clear()
        else:
            self._needed = 0
        return messages, start


def upgrade(
    connection: socket.socket, host: str, path: str, headers: Mapping[str, str] | None = None
) -> None:
    """Makes a client's handshake. Raises `LoadError` if the server does not switch protocols."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mcp\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
    connection.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            break
        answer += piece
    if not answer.startswith(b"HTTP/1.1 101"):
        raise LoadError(f"no WebSocket: {answer[:200]!r}")
