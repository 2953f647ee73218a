"""The four forms of JSON-RPC messages, with their payloads still encoded.

None of them can be part of a reference cycle, so the garbage collector need not track them (``gc=False``).
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "JsonRpcError",
    "JsonRpcMessage",
    "JsonRpcNotification",
    "JsonRpcRequest",
    "JsonRpcResult",
    "RequestId",
]

# The JSON type of an id matters: "1" is not 1. MCP does not allow null.
RequestId = int | str


class JsonRpcRequest(msgspec.Struct, frozen=True, gc=False):
    """A request. The answer is one `JsonRpcResult` or `JsonRpcError` with the same id.

    ``params`` is the raw JSON, ``None`` when absent.
    """

    id: RequestId
    method: str
    params: msgspec.Raw | None = None


class JsonRpcNotification(msgspec.Struct, frozen=True, gc=False):
    """A message that is never answered. ``params`` is the raw JSON, ``None`` when absent.

    ``about`` is the request of ours that it came with, where the binding tells that; the message does not say it.
    """

    method: str
    params: msgspec.Raw | None = None
    about: RequestId | None = None


class JsonRpcResult(msgspec.Struct, frozen=True, gc=False):
    """A successful answer; ``result`` is the raw JSON."""

    id: RequestId
    result: msgspec.Raw


class JsonRpcError(msgspec.Struct, frozen=True, gc=False):
    """An error answer; ``id`` is ``None`` if the request was unreadable."""

    id: RequestId | None
    code: int
    message: str
    data: Any = None


JsonRpcMessage = JsonRpcRequest | JsonRpcNotification | JsonRpcResult | JsonRpcError
