"""Subscriptions of the stateless revisions: one request whose stream carries the changes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

__all__ = [
    "SubscriptionFilter",
    "SubscriptionsAcknowledgedParams",
    "SubscriptionsListenParams",
    "SubscriptionsListenResult",
]


@attrs.define
class SubscriptionFilter:
    """Which changes are wanted, or (in the acknowledgement) which of them will be told."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class SubscriptionsListenParams:
    """Opens a subscription."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class SubscriptionsAcknowledgedParams:
    """The first message of a subscription; ``meta`` carries its id."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class SubscriptionsListenResult:
    """The server ended the subscription in order; ``meta`` carries its id."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
