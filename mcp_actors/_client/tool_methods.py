"""The part of a client that lists and calls the server's tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, TypeVar, overload

import attrs

from mcp_actors._actors.outbound_call import ProgressCallback
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import call_options
from mcp_actors._client.returned import returned_value
from mcp_actors._client.task_methods import TaskMethods, tool_params
from mcp_actors._client.task_requests import TaskRequests
from mcp_actors._schema.returned import conversion
from mcp_actors.errors import MethodNotFound
from mcp_actors.types import CallToolResult, InputResponse, ListToolsResult, Tool

__all__ = ["ToolMethods"]

T = TypeVar("T")


class ToolMethods(TaskMethods):
    """The part of `Client` that lists and calls the server's tools."""

    def __init__(self, tasks: TaskRequests) -> None:
        super().__init__(tasks)
        self._requests = tasks.requests
        # The calls during which servers may ask or report.
        self._long_call = attrs.evolve(tasks.requests.options, wants_progress=True)

    async def list_tools(self, cursor: str | None = None, *, refresh: bool = False) -> ListToolsResult:
        """Returns one page of the tools; `tools` iterates over all of them. MCP 2026-07-28, Tools, Listing Tools.

        Over HTTP a stateless server's tool is left out, with a warning, if its parameters are to be sent in headers
        that cannot be; calling it raises `LocalProtocolError`.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.

        Raises:
            LocalProtocolError: The server did not declare tools, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        page = await self._requests.list_tools(cursor, refresh=refresh)
        self._requests.outputs.learn(page.tools)
        self._learn_tools(page.tools)
        return page

    def tools(self, *, refresh: bool = False) -> AsyncIterator[Tool]:
        """Iterates over all tools; each page is requested when it is needed. Raises as `list_tools` does."""
        list_page = partial(self.list_tools, refresh=refresh)
        return AllPages(list_page, lambda page: page.tools)

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: None = None,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> CallToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: type[T],
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> T: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: UnionType,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> Any: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> Any:
        """Calls a tool; a failure inside the tool is a result with ``is_error``, not an exception.

        MCP 2026-07-28, Tools, Calling Tools. Structured content is checked against the tool's output schema if the
        tool was listed before.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            returns: The class of what the tool returns: ``returns=Forecast`` makes this return a ``Forecast``, and
                raise `ToolFailed` for a failure inside the tool. A dataclass, an attrs class, a `TypedDict`, a pydantic
                model, ``int``, ``list[Forecast]``: whatever the parameters of tools may be. The value is the structured
                content, or what servers put into it under ``result``; where there is none, as in old revisions, it is
                the text, or the JSON in it. By default the whole `CallToolResult` is returned.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            on_progress: A function, sync or async, that is called with each report (`Progress`) in the order of
                arrival, and with all of them before this returns. An exception of it ends the call and is raised here.
            meta: Further members of the request's ``_meta``.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            TypeError: ``arguments`` is no mapping, or a value in it is none of JSON, or ``returns`` is no such class.
            ToolFailed: With ``returns``: the tool failed.
            UnexpectedResult: With ``returns``: what the tool returned does not fit.
            LocalProtocolError: The server did not declare tools, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """
        if returns is not None:
            made = conversion(returns)
            whole = await self.call_tool(
                name,
                arguments,
                timeout=timeout,
                cap=cap,
                on_progress=on_progress,
                meta=meta,
                answers=answers,
                state=state,
            )
            return returned_value(name, whole, made)
        params = tool_params(name, arguments)
        requests = self._requests
        options = call_options(self._long_call, timeout, cap, on_progress, meta)
        if self._task_support.get(name) == "required" and self._may_augment():
            return await self._call_as_task(name, params, options)
        try:
            result: CallToolResult = await requests.call("tools/call", params, options, answers, state)
        except MethodNotFound:
            # So a session's server refuses to call a tool plainly that it runs as a task only; it was not run.
            if not await self._runs_as_task_only(name, options):
                raise
            return await self._call_as_task(name, params, options)
        if result.is_error and await self._runs_as_task_only(name, options):
            # The official servers refuse it with an error of the tool.
            return await self._call_as_task(name, params, options)
        if name in requests.outputs:
            requests.outputs.check(name, result)
        return result
