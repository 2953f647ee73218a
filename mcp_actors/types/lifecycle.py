"""How two programs meet, and the messages that belong to no feature: progress, cancelling, empty answers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.capabilities import ClientCapabilities, Implementation, ServerCapabilities
from mcp_actors.types.resources import CacheScope

__all__ = [
    "CancelledParams",
    "DiscoverResult",
    "EmptyResult",
    "InitializeParams",
    "InitializeResult",
    "NotificationParams",
    "PaginatedParams",
    "ProgressParams",
    "ProgressToken",
    "RequestParams",
]

ProgressToken = int | str


@attrs.define
class RequestParams:
    """Params of a request that has none of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class NotificationParams:
    """Params of a notification that has none of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class PaginatedParams:
    """Asks for one page of a list; ``cursor`` is opaque and comes from the page before."""

    cursor: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class EmptyResult:
    """Done, and nothing to say."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class InitializeParams:
    """Opens a session (revisions with sessions)."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class InitializeResult:
    """The server's side of the handshake; ``instructions`` are for the model."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class DiscoverResult:
    """What a server without sessions says of itself."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ProgressParams:
    """How far a request got. ``progress`` only ever grows; ``total`` is absent when nobody knows it."""

    progress_token: ProgressToken
    progress: float
    total: float | None = None
    message: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CancelledParams:
    """Takes a request back. Without ``request_id`` it says nothing and is ignored."""

    request_id: int | str | None = None
    reason: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
