"""The description of a server for its clients, and the messages that it sends of its own accord.

A description has the server's name and capabilities. Log messages and changes follow: in revisions without sessions, a
client subscribes to changes with one request, and the stream of its response carries them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import attrs

from mcp_actors.types.content import Icon
from mcp_actors.types.records import CacheScope, Vocabulary, not_negative, record

__all__ = [
    "LOGGING_LEVELS",
    "DiscoverResult",
    "Implementation",
    "InitializeResult",
    "LoggingLevel",
    "LoggingMessageParams",
    "PromptsCapability",
    "ResourcesCapability",
    "ServerCapabilities",
    "SetLevelParams",
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedParams",
    "SubscriptionsListenParams",
    "SubscriptionsListenResult",
    "ToolsCapability",
]


@record(eq=False, repr=False)
class Implementation(Vocabulary):
    """The name and version of a program, for display and diagnosis only: no behaviour may depend on it."""

    name: str
    version: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    website_url: str | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class PromptsCapability(Vocabulary):
    """The server has prompts."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ResourcesCapability(Vocabulary):
    """The server has resources; with ``subscribe`` it also notifies clients of changes of a single one."""

    subscribe: bool | None = None
    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ToolsCapability(Vocabulary):
    """The server has tools."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ServerCapabilities(Vocabulary):
    """The capabilities of a server. A member that is present is declared, even if it is empty."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class InitializeResult(Vocabulary):
    """Result of ``initialize``; ``instructions`` are for the model."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
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


# -- log messages that a server sends to its client ----------------------------------------------------

LoggingLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""How severe a log message is: the levels of syslog (RFC 5424), the least severe first."""

LOGGING_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""The levels of RFC 5424 section 6.2.1, the least severe first."""


@record(eq=False, repr=False)
class SetLevelParams(Vocabulary):
    """Params of ``logging/setLevel``: the least severe level that is sent in this session (revisions with sessions)."""

    level: LoggingLevel
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class LoggingMessageParams(Vocabulary):
    """Params of ``notifications/message``; ``data`` is any JSON value, including null."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


# -- subscriptions of revisions without sessions -------------------------------------------------------


@record(eq=False, repr=False)
class SubscriptionFilter(Vocabulary):
    """The changes that a client asks for, or (in the acknowledgement) those that the server will send."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class SubscriptionsListenParams(Vocabulary):
    """Params of ``subscriptions/listen``, which opens a subscription (MCP 2026-07-28)."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class SubscriptionsAcknowledgedParams(Vocabulary):
    """Params of the first notification of a subscription; ``meta`` has its id."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class SubscriptionsListenResult(Vocabulary):
    """Result of ``subscriptions/listen``: the server ended the subscription regularly; ``meta`` has its id."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
