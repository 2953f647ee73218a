"""The part of a client that starts tasks, comes back to them, and waits for those that a call turned into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import MAX_PAGES, call_options
from mcp_actors._client.task_dialects import TaskLook, task_status
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import TaskRequests
from mcp_actors._eras.era import read_result
from mcp_actors.errors import LocalProtocolError, McpError
from mcp_actors.logging import log
from mcp_actors.types import CallToolResult, InputResponse, Tool
from mcp_actors.types.tasks import ListTasksResult, TaskStatus

__all__ = ["TaskMethods", "tool_params"]


class TaskMethods:
    """The part of `Client` for tasks: calls of tools that outlive their caller."""

    def __init__(self, tasks: TaskRequests) -> None:
        self._tasks = tasks
        self._task_support: dict[str, str] = {}

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        cap: float | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> TaskHandle:
        """Calls a tool as a task and returns a handle of it at once: the tool goes on without its caller.

        MCP 2025-11-25, Tasks; SEP-2663. A tool or a server that has no tasks is waited for, and the handle has the
        result already. What a tool asks before its task begins is answered here. Cancelled, there may be a task all the
        same, which nobody knows and which ends with its time.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            ttl: Seconds for which a session's server shall keep the task; by default, and over a stateless revision
                always, as the server likes.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all until there is a task; by default the client's.
            meta: Further members of the request's ``_meta``.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            TypeError: ``arguments`` is no mapping, or a value in it is none of JSON.
            LocalProtocolError: The server did not declare tools, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """
        params = tool_params(name, arguments)
        requests = self._tasks.requests
        options = call_options(attrs.evolve(requests.options, wants_progress=True), timeout, cap, None, meta)
        if await self._support_of(name, options) in ("optional", "required"):
            return await self._augmented(name, params, options, ttl)
        # Where tasks are switched off, an answer of that kind is an error as any other unknown kind.
        raw = {"task"} & requests.extensions.results.keys()
        result = await requests.call("tools/call", params, options, answers, state, raw=raw)
        return self._handle(name, result)

    def task(self, id: str) -> TaskHandle:
        """Returns a handle of a task that was started before, by this program or another one.

        Nothing is asked: whether there is such a task, the handle's methods tell.

        Args:
            id: The `TaskHandle.id`.

        Raises:
            TypeError: It is no text, or empty.
        """
        if not isinstance(id, str) or not id:
            raise TypeError(f"the id of a task is the text of TaskHandle.id, not {id!r}")
        return TaskHandle(self._tasks, id, partial(self._read_result, None))

    def tasks(self) -> AsyncIterator[TaskStatus]:
        """Iterates over the caller's tasks; each page is requested when it is needed.

        MCP 2025-11-25, Tasks, Listing Tasks; a stateless revision has no list of tasks.

        Raises:
            LocalProtocolError: The server has no list of tasks, or the client is not connected.
            McpError: What `TaskHandle.status` raises.
        """
        return AllPages(self._list_tasks, lambda page: [task_status(each) for each in page.tasks])

    # -- for the client ----------------------------------------------------------------------------------------------

    async def _list_tasks(self, cursor: str | None) -> ListTasksResult:
        if "list" not in (self._declared() or {}):
            raise LocalProtocolError("this server has no list of tasks: keep the ids of those that you start")
        requests = self._tasks.requests
        raw = await requests.request(
            "tasks/list", {} if cursor is None else {"cursor": cursor}, requests.options
        )
        page: ListTasksResult = read_result(self._tasks.era, raw, ListTasksResult)
        return page

    def _learn_tools(self, tools: Iterable[Tool]) -> None:
        """Takes note of which tools run as tasks."""
        for tool in tools:
            support = None if tool.execution is None else tool.execution.task_support
            self._task_support[tool.name] = support or "forbidden"

    async def _call_as_task(self, name: str, params: dict[str, Any], options: CallOptions) -> CallToolResult:
        """Calls a tool that a session's server runs as a task only; cancelled, it cancels the task."""
        began = trio.current_time()
        handle = await self._augmented(name, params, options, None)
        if handle.id is None:
            return await handle.result()
        return handle.read(await handle.wait_or_cancel(options, began))

    async def _augmented(
        self, name: str, params: dict[str, Any], options: CallOptions, ttl: float | None
    ) -> TaskHandle:
        task = {} if ttl is None else {"ttl": round(ttl * 1000)}
        raw = await self._tasks.requests.request("tools/call", {**params, "task": task}, options)
        # A receiver without tasks passes over what it does not know, and answers the call.
        if isinstance(raw.get("task"), dict) and "content" not in raw:
            return self._handle(name, raw)
        return TaskHandle(
            self._tasks, None, partial(self._read_result, name), result=self._read_result(name, raw)
        )

    def _handle(self, name: str, result: CallToolResult | dict[str, Any]) -> TaskHandle:
        read = partial(self._read_result, name)
        if not isinstance(result, dict):
            return TaskHandle(self._tasks, None, read, result=result)
        look: TaskLook = self._tasks.dialect.created(self._tasks.era, result)
        return TaskHandle(self._tasks, look.status.id, read, first=look)

    def _read_result(self, name: str | None, raw: dict[str, Any]) -> CallToolResult:
        result: CallToolResult = read_result(self._tasks.era, raw, CallToolResult)
        outputs = self._tasks.requests.outputs
        if name is not None and name in outputs:
            outputs.check(name, result)
        return result

    def _declared(self) -> dict[str, Any] | None:
        return self._tasks.requests.negotiated.capabilities.tasks

    def _may_augment(self) -> bool:
        """Whether calls of tools may ask for a task, MCP 2025-11-25, Tasks, Capabilities."""
        requests = (self._declared() or {}).get("requests")
        tools = requests.get("tools") if isinstance(requests, dict) else None
        return self._tasks.dialect.result_method is not None and isinstance(tools, dict) and "call" in tools

    async def _runs_as_task_only(self, name: str, options: CallOptions) -> bool:
        """Whether a tool turns out to be one that cannot be called plainly. False for those that are known already."""
        if name in self._task_support:
            return False
        try:
            support = await self._support_of(name, options)
        except McpError as error:
            log.debug("it is not known whether a tool runs as a task only", tool=name, error=str(error))
            return False
        if self._may_augment():
            # One that is in no list is not looked for again.
            self._task_support.setdefault(name, "forbidden")
        return support == "required"

    async def _support_of(self, name: str, options: CallOptions) -> str | None:
        """Returns how a tool runs as a task, ``None`` if none does; the tools are listed if that is unknown."""
        if not self._may_augment():
            return None
        cursor: str | None = None
        asking = CallOptions(idle=options.idle, cap=options.cap)
        for _ in range(MAX_PAGES):
            if name in self._task_support:
                break
            page = await self._tasks.requests.list_tools(cursor, asking)
            self._learn_tools(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        return self._task_support.get(name)


def tool_params(name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the params of a call of a tool; raises `TypeError` for arguments that are no mapping."""
    params: dict[str, Any] = {"name": name}
    if arguments is not None:
        if not isinstance(arguments, Mapping):
            raise TypeError(
                f'the arguments of a tool are a dict of their names: call_tool({name!r}, {{"city": "Berlin"}}), '
                f"not a {type(arguments).__name__}"
            )
        params["arguments"] = dict(arguments)
    return params
