"""The era of messages that arrive by themselves, as in HTTP, with what the client mirrored outside the body.

First row that fits:

======================================================  ================================================================
what arrived                                            era
======================================================  ================================================================
a mirrored version that is a modern one                 modern; a batch or an answer is refused: it has neither
a batch                                                 legacy
a request with a protocol version in its ``_meta``      modern, whatever its method is
a mirrored version that is a legacy one                 legacy
any other mirrored version                              modern, which refuses it by name; in a session just refused
it named a session                                      legacy
``initialize``                                          legacy
``server/discover`` or ``subscriptions/listen``, or     modern, which asks for the version
a mirrored method
anything else                                           legacy: sessions may be required, which the binding knows
======================================================  ================================================================

A server that serves one era only sorts everything into it, apart from what says itself that it is the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import VERSION
from mcp_actors._eras.modern.mirror import METHOD_HEADER, VERSION_HEADER
from mcp_actors._wire.codec import decode_value
from mcp_actors._wire.messages import JsonRpcMessage, JsonRpcNotification, JsonRpcRequest
from mcp_actors.errors import INVALID_REQUEST, MalformedMessage

__all__ = ["Classified", "Message", "sort"]

Message = JsonRpcMessage | list[JsonRpcMessage | MalformedMessage]

_VERSION_KEY = VERSION.encode()
_MODERN_ONLY = frozenset({"server/discover", "subscriptions/listen"})


class Classified(msgspec.Struct, frozen=True, gc=False):
    """Messages that arrived together, decoded, and their era."""

    message: Message
    era: Literal["legacy", "modern"]
    metadata: Mapping[str, str]
    requests: int
    initializes: bool
    refusal: None = None

    @property
    def stateless(self) -> bool:
        return self.era == "modern"


def sort(message: Message, metadata: Mapping[str, str], in_session: bool) -> Classified:
    """Raises `MalformedMessage`, ready to be answered, for what its era does not have."""
    era = _era(message, metadata, in_session)
    if isinstance(message, JsonRpcRequest):
        return Classified(message, era, metadata, 1, era == "legacy" and message.method == "initialize")
    owed = 0
    if isinstance(message, list):
        owed = sum(isinstance(each, (JsonRpcRequest, MalformedMessage)) for each in message)
    if era == "modern" and not isinstance(message, JsonRpcNotification):
        what = "a batch" if isinstance(message, list) else "an answer"
        raise MalformedMessage(f"{what} does not exist in this protocol version", code=INVALID_REQUEST)
    return Classified(message, era, metadata, owed, False)


def _era(message: Message, metadata: Mapping[str, str], in_session: bool) -> Literal["legacy", "modern"]:
    version = metadata.get(VERSION_HEADER)
    if version in MODERN:
        return "modern"
    if isinstance(message, list):
        return "legacy"
    if isinstance(message, JsonRpcRequest) and _names_version(message):
        return "modern"
    if version in LEGACY:
        return "legacy"
    if version is not None:
        if in_session:
            raise MalformedMessage(
                "MCP-Protocol-Version is not one that a session can have", code=INVALID_REQUEST
            )
        return "modern"
    if (
        in_session
        or not isinstance(message, (JsonRpcRequest, JsonRpcNotification))
        or message.method == "initialize"
    ):
        return "legacy"
    return "modern" if message.method in _MODERN_ONLY or METHOD_HEADER in metadata else "legacy"


def _names_version(request: JsonRpcRequest) -> bool:
    # Looking for the key first saves decoding what is decoded later anyway.
    if request.params is None or _VERSION_KEY not in bytes(request.params):
        return False
    params = decode_value(request.params)
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION in meta
