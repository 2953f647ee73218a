"""The requests and notifications of the revisions with sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mcp_actors._eras.era import Method

__all__ = ["client_methods", "client_notifications", "server_methods", "server_notifications"]

_SERVER = (
    Method("initialize", "InitializeParams", "InitializeResult"),
    Method("ping", "RequestParams", "EmptyResult"),
    Method("tools/list", "PaginatedParams", "ListToolsResult", requires="tools"),
    Method("tools/call", "CallToolParams", "CallToolResult", requires="tools", target="name", may_ask=True),
    Method("resources/list", "PaginatedParams", "ListResourcesResult", requires="resources"),
    Method(
        "resources/templates/list", "PaginatedParams", "ListResourceTemplatesResult", requires="resources"
    ),
    Method(
        "resources/read",
        "ReadResourceParams",
        "ReadResourceResult",
        requires="resources",
        target="uri",
        may_ask=True,
    ),
    Method(
        "resources/subscribe", "SubscribeParams", "EmptyResult", requires="resources.subscribe", target="uri"
    ),
    Method(
        "resources/unsubscribe",
        "UnsubscribeParams",
        "EmptyResult",
        requires="resources.subscribe",
        target="uri",
    ),
    Method("prompts/list", "PaginatedParams", "ListPromptsResult", requires="prompts"),
    Method(
        "prompts/get", "GetPromptParams", "GetPromptResult", requires="prompts", target="name", may_ask=True
    ),
    Method("completion/complete", "CompleteParams", "CompleteResult", requires="completions"),
    Method("logging/setLevel", "SetLevelParams", "EmptyResult", requires="logging"),
)
# The first revision has completion but no capability for it.
_UNDECLARED_COMPLETION = Method("completion/complete", "CompleteParams", "CompleteResult")

_CLIENT = (
    Method("ping", "RequestParams", "EmptyResult"),
    Method("roots/list", "ListRootsParams", "ListRootsResult", requires="roots"),
    Method("sampling/createMessage", "CreateMessageParams", "CreateMessageResult", requires="sampling"),
)
_ELICITATION = Method("elicitation/create", "ElicitParams", "ElicitResult", requires="elicitation")
# The tasks of either side, which the other one looks at (MCP 2025-11-25, Tasks).
_TASKS = (
    Method("tasks/get", dict, dict, requires="tasks", target="taskId", shown=False),
    Method("tasks/result", dict, dict, requires="tasks", target="taskId", shown=False),
    Method("tasks/list", dict, dict, requires="tasks.list"),
    Method("tasks/cancel", dict, dict, requires="tasks.cancel", target="taskId", shown=False),
)
_TASK_STATUS = "notifications/tasks/status"

_FROM_CLIENT = frozenset(
    {
        "notifications/initialized",
        "notifications/cancelled",
        "notifications/progress",
        "notifications/roots/list_changed",
    }
)
_FROM_SERVER = frozenset(
    {
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
        "notifications/resources/updated",
        "notifications/resources/list_changed",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
    }
)


def server_methods(revision: str) -> Mapping[str, Method]:
    """Returns the requests that a server answers."""
    if revision == "2024-11-05":
        return _table((*_SERVER, _UNDECLARED_COMPLETION))
    return _table((*_SERVER, *_TASKS) if revision >= "2025-11-25" else _SERVER)


def client_methods(revision: str) -> Mapping[str, Method]:
    """Returns the requests that a client answers."""
    if revision >= "2025-11-25":
        return _table((*_CLIENT, _ELICITATION, *_TASKS))
    return _table((*_CLIENT, _ELICITATION) if revision >= "2025-06-18" else _CLIENT)


def client_notifications(revision: str) -> frozenset[str]:
    """Returns the notifications that a client may send."""
    return _FROM_CLIENT | {_TASK_STATUS} if revision >= "2025-11-25" else _FROM_CLIENT


def server_notifications(revision: str) -> frozenset[str]:
    """Returns the notifications that a server may send."""
    if revision >= "2025-11-25":
        return _FROM_SERVER | {"notifications/elicitation/complete", _TASK_STATUS}
    return _FROM_SERVER


def _table(methods: Iterable[Method]) -> Mapping[str, Any]:
    return MappingProxyType({method.name: method for method in methods})
