"""Tasks as the extension of a client that they are, with their core of MCP 2025-11-25 (SEP-2663, SEP-2133)."""

from __future__ import annotations

from functools import partial
from typing import Any

from mcp_actors._client.client_extension import ClientExtension
from mcp_actors._client.extended import AnsweredCall
from mcp_actors._client.task_dialects import EXTENSION
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import TaskRequests
from mcp_actors._eras.era import read_result
from mcp_actors.types import CallToolResult

__all__ = ["ClientTasks"]

_TARGETS = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


class ClientTasks(ClientExtension):
    """Finishes the calls that a server turns into tasks, and wakes who waits for a task.

    Args:
        takes: Whether calls may be turned into tasks.
    """

    def __init__(self, *, takes: bool) -> None:
        super().__init__(EXTENSION, targets=_TARGETS)
        self.bound: TaskRequests | None = None
        """The requests about tasks of the client that has this."""
        if takes:
            self.result("task")(self._finish)
        for method in ("notifications/tasks", "notifications/tasks/status"):
            self.notification(method)(self._changed)

    async def _finish(self, call: AnsweredCall, raw: dict[str, Any]) -> dict[str, Any]:
        """Waits for the result of a call that became a task."""
        tasks = self.bound
        assert tasks is not None
        look = tasks.dialect.created(tasks.era, raw)
        read = partial(read_result, tasks.era, cls=CallToolResult)
        handle = TaskHandle(tasks, look.status.id, read, first=look)
        return await handle.wait_or_cancel(call.options, call.began)

    def _changed(self, params: dict[str, Any]) -> None:
        if self.bound is not None:
            self.bound.notified(params)
