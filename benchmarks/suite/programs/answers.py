"""The fixed answers of the floor programs, and their one tool."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ACCEPTED", "ANSWERS", "HEAD", "NO_STREAM", "UNKNOWN_METHOD", "encode", "sum_result"]

_INFO = {"name": "floor", "version": "0"}
_NUMBER = {"type": "integer"}
_ADD = {
    "name": "add",
    "inputSchema": {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "required": ["a", "b"]},
    "outputSchema": {"type": "object", "properties": {"total": _NUMBER}, "required": ["total"]},
}
# What both eras' results must have: nothing here is ever out of date, nothing is left to ask.
_WHOLE = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"}

ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": _INFO},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **_WHOLE},
    "tools/list": {"tools": [_ADD], **_WHOLE},
    "ping": {},
}
# For clients and gateways of others, which ask for more than the loads do.
UNKNOWN_METHOD = {"code": -32601, "message": "method not found"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: floor\r\ncontent-length: %d\r\n\r\n"
NO_STREAM = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"

encode = msgspec.json.Encoder().encode


def sum_result(a: int, b: int) -> dict[str, Any]:
    value = {"total": a + b}
    content = [{"type": "text", "text": encode(value).decode()}]
    return {"content": content, "structuredContent": value, "isError": False, "resultType": "complete"}
