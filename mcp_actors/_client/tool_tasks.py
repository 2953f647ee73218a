"""Tools that run as tasks: which ones the server has, and the calls of them.

MCP 2025-11-25, Tasks, lets a session's server say of each tool whether it runs as a task, never, at will, or always. A
tool whose list was not read is looked up once; until then a plain call is tried first, which a server refuses without
running the tool. A stateless server (SEP-2663) answers any call with a task as it likes, so nothing is known before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.pages import FEW_PAGES, AllPages
from mcp_actors._client.requests import Requests
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import TaskLook, TaskRequests
from mcp_actors._eras.era import read_result
from mcp_actors.errors import LocalProtocolError, McpError
from mcp_actors.supervision.logging import log
from mcp_actors.types import CallToolResult, InputResponse, Tool
from mcp_actors.types.tasks import ListTasksResult

__all__ = ["ToolTasks"]


class ToolTasks:
    """The tools of one server that run as tasks.

    Args:
        requests: Make the calls.
        tasks: Makes the requests about their tasks.
    """

    def __init__(self, requests: Requests, tasks: TaskRequests) -> None:
        self._requests = requests
        self._tasks = tasks
        self.support: dict[str, str] = {}
        """How each tool that is known runs as a task: ``"forbidden"``, ``"optional"`` or ``"required"``."""

    def __repr__(self) -> str:
        return f"<ToolTasks {len(self.support)} tools>"

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of which listed tools run as tasks."""
        for tool in tools:
            support = None if tool.execution is None else tool.execution.task_support
            self.support[tool.name] = support or "forbidden"

    def may_augment(self) -> bool:
        """Whether calls of tools may ask for a task, MCP 2025-11-25, Tasks, Capabilities."""
        requests = (self._tasks.declared or {}).get("requests")
        tools = requests.get("tools") if isinstance(requests, dict) else None
        return self._tasks.dialect.result_method is not None and isinstance(tools, dict) and "call" in tools

    async def turns_out_required(self, name: str, options: CallOptions) -> bool:
        """Whether a tool that was not known before is one that only runs as a task."""
        if name in self.support:
            return False
        try:
            support = await self._support_of(name, options)
        except McpError as error:
            log.debug("it is not known whether a tool runs as a task only", tool=name, error=str(error))
            return False
        if self.may_augment():
            # A tool that is in no list is not looked up again.
            self.support.setdefault(name, "forbidden")
        return support == "required"

    async def begin(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions,
        ttl: float | None,
        answers: Mapping[str, InputResponse] | None,
        state: str | None,
    ) -> TaskHandle:
        """Calls a tool as a task where that is possible; raises as `Client.start_tool` does."""
        if await self._support_of(name, options) in ("optional", "required"):
            return await self.begin_as_task(name, params, options, ttl)
        # Where tasks are switched off, an answer of that kind is an error as any other unknown kind.
        raw = {"task"} & self._requests.extensions.results.keys()
        result = await self._requests.call("tools/call", params, options, answers, state, raw=raw)
        return self._handle(name, result)

    async def begin_as_task(
        self, name: str, params: dict[str, Any], options: CallOptions, ttl: float | None = None
    ) -> TaskHandle:
        """Asks a session's server for a task that calls a tool; ``ttl`` is for how many seconds it shall be kept."""
        task = {} if ttl is None else {"ttl": round(ttl * 1000)}
        raw = await self._requests.request("tools/call", {**params, "task": task}, options)
        # A receiver without tasks passes over what it does not know, and answers the call.
        if isinstance(raw.get("task"), dict) and "content" not in raw:
            return self._handle(name, raw)
        return self._handle(name, self._read_result(name, raw))

    async def call(self, name: str, params: dict[str, Any], options: CallOptions) -> CallToolResult:
        """Calls a tool that a session's server runs as a task only; cancelled, it cancels the task."""
        began = trio.current_time()
        handle = await self.begin_as_task(name, params, options)
        if handle.id is None:
            return await handle.result()
        return handle.read(await handle.wait_or_cancel(options, began))

    def handle_of(self, id: str) -> TaskHandle:
        """Returns a handle of a task that was begun elsewhere, so the name of its tool is unknown."""
        return TaskHandle(self._tasks, id, partial(self._read_result, None))

    async def list_page(self, cursor: str | None) -> ListTasksResult:
        """Returns one page of the caller's tasks; raises `LocalProtocolError` if the server does not list them."""
        if "list" not in (self._tasks.declared or {}):
            raise LocalProtocolError("this server has no list of tasks: keep the ids of those that you start")
        params = {} if cursor is None else {"cursor": cursor}
        raw = await self._requests.request("tasks/list", params, self._requests.options)
        page: ListTasksResult = read_result(self._tasks.era, raw, ListTasksResult)
        return page

    def _handle(self, name: str, result: CallToolResult | dict[str, Any]) -> TaskHandle:
        read = partial(self._read_result, name)
        if not isinstance(result, dict):
            return TaskHandle(self._tasks, None, read, result=result)
        look: TaskLook = self._tasks.dialect.created(self._tasks.era, result)
        return TaskHandle(self._tasks, look.status.id, read, first=look)

    def _read_result(self, name: str | None, raw: dict[str, Any]) -> CallToolResult:
        result: CallToolResult = read_result(self._tasks.era, raw, CallToolResult)
        schemas = self._requests.schemas
        if name is not None and name in schemas:
            schemas.check(name, result)
        return result

    async def _support_of(self, name: str, options: CallOptions) -> str | None:
        """Returns how a tool runs as a task, ``None`` if no tool does; the tools are listed if that is unknown."""
        if not self.may_augment():
            return None
        if name in self.support:
            return self.support[name]
        asking = CallOptions(idle=options.idle, cap=options.cap)
        listed = AllPages(
            lambda cursor: self._requests.list_tools(cursor, asking),
            lambda page: page.tools,
            most_pages=FEW_PAGES,
            most_seconds=options.cap,
            is_cut=True,
        )
        with suppress(StopAsyncIteration):
            while name not in self.support:
                self.learn(await listed.next_many())
        return self.support.get(name)
