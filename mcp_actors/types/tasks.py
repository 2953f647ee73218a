"""Tasks: calls that outlive their caller, in the words of both dialects (MCP 2025-11-25, Tasks; SEP-2663)."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from mcp_actors.types.records import Vocabulary, not_negative, record

__all__ = [
    "CreateTaskResult",
    "DetailedTask",
    "GetTaskParams",
    "ListTasksResult",
    "Task",
    "TaskStatus",
    "TaskStatusName",
    "UpdateTaskParams",
]

TaskStatusName = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""MCP 2025-11-25, Tasks, Task Status Lifecycle; the last three are terminal."""

_TERMINAL: frozenset[TaskStatusName] = frozenset({"completed", "failed", "cancelled"})


@record(eq=False, repr=False)
class Task(Vocabulary):
    """A task in MCP 2025-11-25. The times are in milliseconds; a ``ttl`` of ``None`` means without an end."""

    task_id: str
    status: TaskStatusName
    status_message: str | None = None
    created_at: str | None = None
    last_updated_at: str | None = None
    ttl: float | None = None
    poll_interval: float | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CreateTaskResult(Vocabulary):
    """Result of a request with ``params.task`` (MCP 2025-11-25)."""

    task: Task
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListTasksResult(Vocabulary):
    """Result of ``tasks/list`` (MCP 2025-11-25). It is the last page if ``next_cursor`` is absent."""

    tasks: list[Task]
    next_cursor: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class DetailedTask(Vocabulary):
    """A task of the extension ``io.modelcontextprotocol/tasks``. The times are in milliseconds.

    A task that asks has ``input_requests``, a completed one has ``result``, and a failed one has ``error``. The answer
    that creates a task is the same without these three.
    """

    task_id: str
    status: TaskStatusName
    status_message: str | None = None
    created_at: str | None = None
    last_updated_at: str | None = None
    ttl_ms: int | None = attrs.field(default=None, validator=not_negative)
    poll_interval_ms: int | None = attrs.field(default=None, validator=not_negative)
    input_requests: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class GetTaskParams(Vocabulary):
    """Params of ``tasks/get``, ``tasks/result`` and ``tasks/cancel``."""

    task_id: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class UpdateTaskParams(Vocabulary):
    """Params of ``tasks/update``: answers to the questions of a task, by their keys (SEP-2663)."""

    task_id: str
    input_responses: dict[str, Any]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.frozen(kw_only=True)
class TaskStatus:
    """A look at a task: its state and its times, the same for both dialects."""

    id: str = attrs.field(repr=lambda id: repr(f"{id[:6]}…"))
    status: TaskStatusName
    message: str | None = None
    """A sentence for people on its progress."""
    created_at: str | None = None
    """ISO 8601."""
    updated_at: str | None = None
    """ISO 8601."""
    ttl: float | None = None
    """Seconds since its creation for which the server keeps it at least; ``None`` without an end."""
    poll_interval: float | None = None
    """Seconds that the server wants between two looks."""

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended: it never changes any more."""
        return self.status in _TERMINAL
