"""The four JSON-RPC message forms, their payloads still encoded.

None of them can be part of a reference cycle, so the garbage collector need not look at them (``gc=False``).
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

# The JSON type of an id is kept, "1" is not 1; null is no id in MCP.
RequestId = int | str


class JsonRpcRequest(msgspec.Struct, frozen=True, gc=False):
    """Expects one `JsonRpcResult` or `JsonRpcError` with the same id.

    ``params`` is the raw JSON, ``None`` when absent.
    """

    id: RequestId
    method: str
    params: msgspec.Raw | None = None


class JsonRpcNotification(msgspec.Struct, frozen=True, gc=False):
    """Is never answered."""

    method: str
    params: msgspec.Raw | None = None


class JsonRpcResult(msgspec.Struct, frozen=True, gc=False):
    """A successful answer."""

    id: RequestId
    result: msgspec.Raw


class JsonRpcError(msgspec.Struct, frozen=True, gc=False):
    """An error answer; without an id when the request was unreadable."""

    id: RequestId | None
    code: int
    message: str
    data: Any = None


JsonRpcMessage = JsonRpcRequest | JsonRpcNotification | JsonRpcResult | JsonRpcError
