"""The requests and notifications of the stateless revisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import cast

from mcp_actors import types as t
from mcp_actors._eras.era import Method

__all__ = ["CLIENT_METHODS", "CLIENT_NOTIFICATIONS", "SERVER_METHODS", "SERVER_NOTIFICATIONS"]


def _table(methods: Iterable[Method]) -> Mapping[str, Method]:
    return MappingProxyType({method.name: method for method in methods})


SERVER_METHODS = _table(
    (
        Method("server/discover", t.RequestParams, t.DiscoverResult, cacheable=True),
        Method("tools/list", t.PaginatedParams, t.ListToolsResult, requires="tools", cacheable=True),
        Method(
            "tools/call", t.CallToolParams, t.CallToolResult, requires="tools", target="name", may_ask=True
        ),
        Method(
            "resources/list", t.PaginatedParams, t.ListResourcesResult, requires="resources", cacheable=True
        ),
        Method(
            "resources/templates/list",
            t.PaginatedParams,
            t.ListResourceTemplatesResult,
            requires="resources",
            cacheable=True,
        ),
        Method(
            "resources/read",
            t.ReadResourceParams,
            t.ReadResourceResult,
            requires="resources",
            target="uri",
            cacheable=True,
            may_ask=True,
        ),
        Method("prompts/list", t.PaginatedParams, t.ListPromptsResult, requires="prompts", cacheable=True),
        Method(
            "prompts/get",
            t.GetPromptParams,
            t.GetPromptResult,
            requires="prompts",
            target="name",
            may_ask=True,
        ),
        Method("completion/complete", t.CompleteParams, t.CompleteResult, requires="completions"),
        Method("subscriptions/listen", t.SubscriptionsListenParams, t.SubscriptionsListenResult),
    )
)
"""The requests that a server answers."""

CLIENT_METHODS = _table(
    (
        Method("roots/list", t.ListRootsParams, t.ListRootsResult, requires="roots"),
        Method("sampling/createMessage", t.CreateMessageParams, t.CreateMessageResult, requires="sampling"),
        # Both forms of elicitation: `Method.params` is anything that the converter can structure, also a union.
        Method("elicitation/create", cast(type, t.ElicitParams), t.ElicitResult, requires="elicitation"),
    )
)
"""The requests that a client answers. They are never sent as requests, but inside input-required results (SEP-2322)."""

CLIENT_NOTIFICATIONS = frozenset({"notifications/cancelled"})

SERVER_NOTIFICATIONS = frozenset(
    {
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
        "notifications/resources/updated",
        "notifications/resources/list_changed",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)
