"""The methods by which clients look at tasks, answer their questions and cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp_actors.abc import TaskRecord
from mcp_actors.context import Context
from mcp_actors.errors import MethodNotFound, RpcError, invalid_params
from mcp_actors.extensions import check_answer
from mcp_actors.tasks.dialects import core_result, core_task, detailed_task
from mcp_actors.tasks.node import TaskNode
from mcp_actors.tasks.session_tasks import SessionTasks
from mcp_actors.tasks.states import answered, cancelled, questions_of

__all__ = ["CoreMethods", "ExtensionMethods", "may_see"]

_Function = Callable[[dict[str, Any], Context], Awaitable[dict[str, Any]]]

# Characters of the longest id that is looked up; those of this engine have 32.
LONGEST_ID = 256
# Bytes of a task from which on no more answers are taken until its function has taken those that wait: two of the
# longest messages, each of which may answer one question of many.
HEAVIEST_ANSWERED = 32 * 1024 * 1024
# Tasks on one page of ``tasks/list``.
PAGE = 100


def may_see(record: TaskRecord, ctx: Context) -> bool:
    """Whether a caller may see a task: it is its own, and of the revision that the caller speaks.

    The tasks of callers that nobody has authenticated are protected by their ids alone (MCP 2025-11-25, Tasks, Task
    Isolation and Access Control).
    """
    principal = ctx.principal
    return record.owner == ("" if principal is None else principal.key) and record.version == ctx.era.version


async def find(node: TaskNode, params: Mapping[str, Any], ctx: Context) -> TaskRecord:
    """Returns the task that a request means.

    Raises:
        RpcError: -32602: there is no such task, or it is somebody else's.
        SharedStateUnavailable: The store cannot be reached.
    """
    id = params.get("taskId")
    if not isinstance(id, str):
        raise invalid_params("'taskId' must be a string")
    record = (await node.store.get([id])).get(id) if len(id) <= LONGEST_ID else None
    if record is None or not may_see(record, ctx):
        raise unknown_task()
    return record


def unknown_task() -> RpcError:
    """Returns the error for a task that is not there, not any more, or not the caller's."""
    return invalid_params("unknown task: there is none with this id, or its time is up")


class CoreMethods:
    """The methods of MCP 2025-11-25 that SEP-2663 has not."""

    def __init__(self, node: Callable[[], TaskNode]) -> None:
        self._node = node

    def table(self) -> Mapping[str, _Function]:
        """Returns the functions by the names of their methods."""
        return {"tasks/result": self._result, "tasks/list": self._list}

    async def _result(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``tasks/result``: blocks until the task has ended."""
        node = self._node()
        record: TaskRecord | None = await find(node, params, ctx)
        assert record is not None
        if not record.is_terminal:
            record = await node.results.end_of(record.id, ctx)
        if record is None:
            raise unknown_task()
        return core_result(record)

    async def _list(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``tasks/list``: the tasks of the principal or, without one, those that this session has created."""
        cursor = params.get("cursor")
        if cursor is not None and (not isinstance(cursor, str) or len(cursor) > LONGEST_ID):
            raise invalid_params("invalid cursor")
        found: list[TaskRecord]
        store, principal = self._node().store, ctx.principal
        if principal is not None:
            found = list(await store.page(principal.key, cursor, PAGE + 1))
        elif (session := ctx.session) is not None:
            found, ids = [], session.get(SessionTasks).after(cursor)
            # Some of them are no more, perhaps more than fit on a page.
            while ids and len(found) <= PAGE:
                known = await store.get(ids[: PAGE + 1])
                found += [known[id] for id in ids[: PAGE + 1] if id in known]
                del ids[: PAGE + 1]
        else:
            # MCP 2025-11-25, Tasks: without an authorization context nobody's tasks can be told from another's.
            raise MethodNotFound(ctx.method)
        shown = found[:PAGE]
        listed: dict[str, Any] = {"tasks": [core_task(each) for each in shown if may_see(each, ctx)]}
        if len(found) > PAGE:
            listed["nextCursor"] = shown[-1].id
        return listed


class ExtensionMethods:
    """The methods of SEP-2663; those that MCP 2025-11-25 has as well answer in the form of the caller's revision."""

    def __init__(self, node: Callable[[], TaskNode]) -> None:
        self._node = node

    def table(self) -> Mapping[str, _Function]:
        """Returns the functions by the names of their methods."""
        return {"tasks/get": self._get, "tasks/update": self._update, "tasks/cancel": self._cancel}

    async def _get(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``tasks/get``."""
        record = await find(self._node(), params, ctx)
        return detailed_task(record) if ctx.era.declares_in_requests else core_task(record)

    async def _update(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``tasks/update``: answers some questions of a task; what it does not ask is ignored."""
        node = self._node()
        record = await find(node, params, ctx)
        responses = params.get("inputResponses")
        if not isinstance(responses, dict):
            raise invalid_params("'inputResponses' must be an object")
        questions = questions_of(record)
        answers = {key: {"result": each} for key, each in responses.items() if key in questions}
        for key in answers:
            check_answer(ctx, questions[key], key, responses)
        if answers and record.weight > HEAVIEST_ANSWERED:
            raise invalid_params(
                "too many bytes wait for the task already: it has to take these answers first"
            )
        await node.changes.apply(record, lambda found, now: answered(found, answers, now))
        return {}

    async def _cancel(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``tasks/cancel``: with SEP-2663 an acknowledgement, also for a task that has ended; else the task."""
        node = self._node()
        record: TaskRecord | None = await find(node, params, ctx)
        assert record is not None
        acknowledges = ctx.era.declares_in_requests
        if record.is_terminal and not acknowledges:
            raise invalid_params(f"the task has ended already: {record.state}")
        record = await node.changes.apply(
            record, lambda found, now: cancelled(found, "cancelled by the client", now)
        )
        if acknowledges:
            return {}
        if record is None:
            raise unknown_task()
        if record.state != "cancelled":
            raise invalid_params(f"the task has ended already: {record.state}")
        return core_task(record)
