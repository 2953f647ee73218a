"""The first message of a session, the capabilities of the client, and the messages that belong to no feature.

Those are progress, cancellation and empty results.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.lifecycle import Implementation
from mcp_actors.types.records import Vocabulary, record

__all__ = [
    "CancelledParams",
    "ClientCapabilities",
    "ElicitationCapability",
    "EmptyResult",
    "InitializeParams",
    "NotificationParams",
    "PaginatedParams",
    "ProgressParams",
    "ProgressToken",
    "RequestParams",
    "RootsCapability",
    "SamplingCapability",
]


@record(eq=False, repr=False)
class RootsCapability(Vocabulary):
    """The client answers ``roots/list``; with ``list_changed`` it also notifies the server of changes."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class SamplingCapability(Vocabulary):
    """The client answers ``sampling/createMessage``. A member that is ``{}`` means that the feature is supported."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ElicitationCapability(Vocabulary):
    """The client answers ``elicitation/create``. Without any member it supports forms only."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ClientCapabilities(Vocabulary):
    """The capabilities of a client. A member that is present is declared, even if it is empty.

    ``extensions`` maps the identifier of an extension to its settings; ``tasks`` is passed on unchanged.
    """

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ProgressToken = int | str
"""What links reports of progress to the request that they are about; it is chosen by who sends that request."""


@record(eq=False, repr=False)
class RequestParams(Vocabulary):
    """Params of a request without members of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class NotificationParams(Vocabulary):
    """Params of a notification without members of its own."""

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class PaginatedParams(Vocabulary):
    """Params of a request for one page of a list; ``cursor`` is opaque and comes from the previous page."""

    cursor: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class EmptyResult(Vocabulary):
    """A result without members of its own."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class InitializeParams(Vocabulary):
    """Params of ``initialize``, which opens a session (MCP 2025-11-25, Lifecycle)."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ProgressParams(Vocabulary):
    """Params of ``notifications/progress``. ``progress`` only increases; ``total`` is absent if it is not known."""

    progress_token: ProgressToken
    progress: float
    total: float | None = None
    message: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CancelledParams(Vocabulary):
    """Params of ``notifications/cancelled``. Without ``request_id`` it is ignored."""

    request_id: int | str | None = None
    reason: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
