"""The rules by which calls of a tool become tasks that outlive their caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

from mcp_actors._server.invoke import check_async

__all__ = ["BeforeTask", "TaskRules", "TaskSupport"]

TaskSupport = Literal["optional", "required"]
"""MCP 2025-11-25, Tasks, Tool-Level Negotiation; a tool without any is ``forbidden`` there."""

BeforeTask = Callable[[dict[str, Any], Any], Awaitable[Mapping[str, Any]]]
"""Is given the arguments and the `Context` of a call before it becomes a task, and returns the arguments to use."""


class TaskRules(msgspec.Struct, frozen=True):
    """The rules of one tool: ``support``, whether it is ``restartable``, and what runs ``before`` the task exists."""

    support: TaskSupport
    restartable: bool
    before: BeforeTask | None

    @classmethod
    def of(
        cls, task: TaskSupport | None, restartable: bool, before: BeforeTask | None, inline: bool
    ) -> TaskRules | None:
        """Returns the rules that a tool is registered with, ``None`` for a tool whose calls never become tasks.

        Raises:
            TypeError: ``before`` is not of its form.
            ValueError: The options contradict each other.
        """
        if task is None:
            if restartable or before is not None:
                raise ValueError(
                    'restartable= and before_task= are for tasks: add task="optional", or "required"'
                )
            return None
        if task not in get_args(TaskSupport):
            raise ValueError(f'task={task!r}: write "optional" or "required", or leave it out')
        if inline:
            raise ValueError(
                f"task={task!r}: a task may take long, and blocks everything; remove inline=True"
            )
        if before is not None:
            check_async(before, "arguments, ctx")
        return cls(task, restartable, before)
