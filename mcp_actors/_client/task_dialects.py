"""The two dialects of tasks as a client speaks them, as a table: the same looks at a task come out of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from mcp_actors._eras.era import Era, read_result
from mcp_actors.errors import RemoteProtocolError, RpcError
from mcp_actors.types.tasks import CreateTaskResult, DetailedTask, Task, TaskStatus

__all__ = ["EXTENSION", "TaskDialect", "TaskLook", "dialect_of", "task_status"]

EXTENSION = "io.modelcontextprotocol/tasks"
"""SEP-2663."""

# Milliseconds, a thousand years: longer times of a server are read as this one.
_LONGEST = 31_557_600_000_000


@attrs.frozen
class TaskLook:
    """One look at a task: its status, and what came with it."""

    status: TaskStatus
    questions: Mapping[str, Any] = MappingProxyType({})
    """The questions as JSON by key, where they are values."""
    result: dict[str, Any] | None = None
    error: RpcError | None = None


@attrs.frozen(kw_only=True)
class TaskDialect:
    """The differences between the dialects for a client."""

    created: Callable[[Era, dict[str, Any]], TaskLook]
    """Reads the answer that creates a task."""
    look: Callable[[Era, dict[str, Any]], TaskLook]
    """Reads the answer to ``tasks/get``."""
    result_method: str | None
    """The request that waits for a result, and through which the server asks; ``None`` where looks have all that."""
    update_method: str | None
    """The request that answers questions; ``None`` where they are requests of the server."""
    listens: bool
    """Whether changes are told to who listens for a task's id; if not, a session is told unasked."""


def _seconds(milliseconds: float | None) -> float | None:
    # Compared before any arithmetic: an integer of JSON has as many digits as a server likes.
    return None if milliseconds is None else min(max(0, milliseconds), _LONGEST) / 1000


def task_status(task: Task) -> TaskStatus:
    """Returns a task of MCP 2025-11-25 as both dialects have it."""
    return _status_of(task, task.ttl, task.poll_interval)


def _status_of(task: Task | DetailedTask, ttl: float | None, poll_interval: float | None) -> TaskStatus:
    return TaskStatus(
        id=task.task_id,
        status=task.status,
        message=task.status_message,
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        ttl=_seconds(ttl),
        poll_interval=_seconds(poll_interval),
    )


def _core_created(era: Era, raw: dict[str, Any]) -> TaskLook:
    created: CreateTaskResult = read_result(era, raw, CreateTaskResult)
    return TaskLook(task_status(created.task))


def _core_look(era: Era, raw: dict[str, Any]) -> TaskLook:
    return TaskLook(task_status(read_result(era, raw, Task)))


def _detailed_look(era: Era, raw: dict[str, Any]) -> TaskLook:
    task: DetailedTask = read_result(era, raw, DetailedTask)
    status = _status_of(task, task.ttl_ms, task.poll_interval_ms)
    # Members that do not belong to the state are not looked at: a server that mixes them is not believed.
    if task.status == "input_required":
        return TaskLook(status, questions=task.input_requests or {})
    if task.status == "completed":
        if task.result is None:
            raise RemoteProtocolError("the server says that a task is completed, without its result")
        return TaskLook(status, result=task.result)
    if task.status == "failed":
        return TaskLook(status, error=_error_of(task.error))
    return TaskLook(status)


def _detailed_created(era: Era, raw: dict[str, Any]) -> TaskLook:
    task: DetailedTask = read_result(era, raw, DetailedTask)
    # A task may be created in any state, but what that brings (questions, a result) is told by a look alone.
    return TaskLook(attrs.evolve(_status_of(task, task.ttl_ms, task.poll_interval_ms), status="working"))


def _error_of(error: dict[str, Any] | None) -> RpcError:
    code = None if error is None else error.get("code")
    message = None if error is None else error.get("message")
    if error is None or type(code) is not int or not isinstance(message, str):
        raise RemoteProtocolError("the server says that a task has failed, without a well-formed error")
    return RpcError.from_wire(code, message, error.get("data"))


_CORE = TaskDialect(
    created=_core_created,
    look=_core_look,
    result_method="tasks/result",
    update_method=None,
    listens=False,
)
_DETAILED = TaskDialect(
    created=_detailed_created,
    look=_detailed_look,
    result_method=None,
    update_method="tasks/update",
    listens=True,
)


def dialect_of(era: Era) -> TaskDialect:
    """Returns the dialect of a revision: where questions are values, tasks carry them."""
    return _DETAILED if era.asks_by_retry else _CORE
