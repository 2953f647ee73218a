"""The answer of a listener that has no room for a request or a connection: 503, for a while."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["BAD_REQUEST_CODE", "NO_ROOM_AFTER", "error_body"]

# The convention of the protocol's official servers, where the protocol names no code of its own.
BAD_REQUEST_CODE = -32000
# RFC 9110 section 10.2.3, in seconds. The server stops or is full, so the same request may succeed a moment later.
NO_ROOM_AFTER = "1"


def error_body(message: str, code: int = BAD_REQUEST_CODE, data: Any = None) -> bytes:
    """Returns a JSON-RPC error without an id, for a request that was not decoded."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return json.dumps({"jsonrpc": "2.0", "error": error}, separators=(",", ":")).encode()
