"""The requests and notifications of the stateless revisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mcp_actors._eras.era import Method

__all__ = ["CLIENT_METHODS", "CLIENT_NOTIFICATIONS", "SERVER_METHODS", "SERVER_NOTIFICATIONS"]


def _table(methods: Iterable[Method]) -> Mapping[str, Method]:
    return MappingProxyType({method.name: method for method in methods})


SERVER_METHODS = _table(
    (
        Method("server/discover", "RequestParams", "DiscoverResult", cacheable=True),
        Method("tools/list", "PaginatedParams", "ListToolsResult", requires="tools", cacheable=True),
        Method(
            "tools/call", "CallToolParams", "CallToolResult", requires="tools", target="name", may_ask=True
        ),
        Method(
            "resources/list", "PaginatedParams", "ListResourcesResult", requires="resources", cacheable=True
        ),
        Method(
            "resources/templates/list",
            "PaginatedParams",
            "ListResourceTemplatesResult",
            requires="resources",
            cacheable=True,
        ),
        Method(
            "resources/read",
            "ReadResourceParams",
            "ReadResourceResult",
            requires="resources",
            target="uri",
            cacheable=True,
            may_ask=True,
        ),
        Method("prompts/list", "PaginatedParams", "ListPromptsResult", requires="prompts", cacheable=True),
        Method(
            "prompts/get",
            "GetPromptParams",
            "GetPromptResult",
            requires="prompts",
            target="name",
            may_ask=True,
        ),
        Method("completion/complete", "CompleteParams", "CompleteResult", requires="completions"),
        Method("subscriptions/listen", "SubscriptionsListenParams", "SubscriptionsListenResult"),
    )
)
"""The requests that a server answers."""

CLIENT_METHODS = _table(
    (
        Method("roots/list", "ListRootsParams", "ListRootsResult", requires="roots"),
        Method("sampling/createMessage", "CreateMessageParams", "CreateMessageResult", requires="sampling"),
        Method("elicitation/create", "ElicitParams", "ElicitResult", requires="elicitation"),
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
