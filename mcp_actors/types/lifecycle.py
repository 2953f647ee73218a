"""A server describes itself to a client that begins to talk to it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.caching import CacheScope, not_negative
from mcp_actors.types.capabilities import Implementation, ServerCapabilities
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "DiscoverResult",
    "InitializeResult",
]


@attrs.define(eq=False, repr=False)
class InitializeResult(Vocabulary):
    """Result of ``initialize``; ``instructions`` are for the model."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class DiscoverResult(Vocabulary):
    """Result of ``server/discover`` (MCP 2026-07-28): the versions and capabilities of a server without sessions."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
