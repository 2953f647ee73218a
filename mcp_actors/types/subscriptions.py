"""Subscriptions of revisions without sessions: one request, whose response stream carries the changes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedParams",
    "SubscriptionsListenParams",
    "SubscriptionsListenResult",
]


@attrs.define(eq=False, repr=False)
class SubscriptionFilter(Vocabulary):
    """The changes that a client asks for, or (in the acknowledgement) those that the server will send."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class SubscriptionsListenParams(Vocabulary):
    """Params of ``subscriptions/listen``, which opens a subscription (MCP 2026-07-28)."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class SubscriptionsAcknowledgedParams(Vocabulary):
    """Params of the first notification of a subscription; ``meta`` has its id."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class SubscriptionsListenResult(Vocabulary):
    """Result of ``subscriptions/listen``: the server ended the subscription regularly; ``meta`` has its id."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
