"""The first message of a session, and the messages that belong to no feature: progress, cancellation, empty results."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.capabilities import Implementation
from mcp_actors.types.client_capabilities import ClientCapabilities
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "CancelledParams",
    "EmptyResult",
    "InitializeParams",
    "NotificationParams",
    "PaginatedParams",
    "ProgressParams",
    "ProgressToken",
    "RequestParams",
]


ProgressToken = int | str


@attrs.define(eq=False, repr=False)
class RequestParams(Vocabulary):
    """Params of a request without members of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class NotificationParams(Vocabulary):
    """Params of a notification without members of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class PaginatedParams(Vocabulary):
    """Params of a request for one page of a list; ``cursor`` is opaque and comes from the previous page."""

    cursor: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class EmptyResult(Vocabulary):
    """A result without members of its own."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class InitializeParams(Vocabulary):
    """Params of ``initialize``, which opens a session (MCP 2025-11-25, Lifecycle)."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ProgressParams(Vocabulary):
    """Params of ``notifications/progress``. ``progress`` only increases; ``total`` is absent if it is not known."""

    progress_token: ProgressToken
    progress: float
    total: float | None = None
    message: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class CancelledParams(Vocabulary):
    """Params of ``notifications/cancelled``. Without ``request_id`` it is ignored."""

    request_id: int | str | None = None
    reason: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
