"""Tasks as the extension of a client that they are, with their core of MCP 2025-11-25 (SEP-2663, SEP-2133)."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from mcp_actors._client.client_extension import ClientExtension
from mcp_actors._client.extended import AnsweredCall, AskedRequest
from mcp_actors._client.hosted_tasks import HostedTasks
from mcp_actors._client.task_dialects import EXTENSION
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import TaskRequests
from mcp_actors._eras.era import read_result
from mcp_actors.types import CallToolResult

__all__ = ["ClientTasks"]

_TARGETS = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def _core(methods: Collection[str]) -> dict[str, Any] | None:
    """Returns what sessions are told: MCP 2025-11-25, Tasks, Client Capabilities."""
    requests: dict[str, dict[str, Any]] = {}
    for method in methods:
        group, _, name = method.partition("/")
        requests.setdefault(group, {})[name] = {}
    return {"tasks": {"list": {}, "cancel": {}, "requests": requests}} if requests else None


def _wants_task(params: Mapping[str, Any]) -> bool:
    return "task" in params


class ClientTasks(ClientExtension):
    """Finishes the calls that a server turns into tasks, and wakes who waits for a task.

    Args:
        takes: Whether calls may be turned into tasks.
        hosts: The requests of servers that this client may answer later, as tasks of its own.
    """

    def __init__(self, *, takes: bool, hosts: Collection[str]) -> None:
        super().__init__(EXTENSION, targets=_TARGETS, core=_core(hosts) if takes else None)
        # The functions are those of another object, and that one knows its client by a weak reference: then nothing of
        # a client that has left waits for the collector.
        self._functions = functions = TaskFunctions()
        if takes:
            self.result("task")(functions.finish)
        for method in ("notifications/tasks", "notifications/tasks/status"):
            self.notification(method)(functions.changed)
        if self.core:
            for method in hosts:
                self.around(method, when=_wants_task)(functions.create)
            for name in ("get", "result", "list", "cancel"):
                self.method(f"tasks/{name}")(partial(functions.answer, name))
            self.lifespan(functions.serving)

    def bind(self, requests: TaskRequests) -> None:
        """Names the requests about tasks of the client that has this."""
        self._functions.requests = weakref.ref(requests)


class TaskFunctions:
    """The functions of `ClientTasks`, and what they share."""

    def __init__(self) -> None:
        self.requests: Callable[[], TaskRequests | None] = lambda: None
        self._hosted: HostedTasks | None = None

    @asynccontextmanager
    async def serving(self, client: Any) -> AsyncIterator[None]:
        requests = self.requests()
        assert requests is not None
        async with trio.open_nursery() as nursery:
            self._hosted = HostedTasks(nursery, client.notify, requests.session)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel(reason="the client is closed")

    async def create(
        self, request: AskedRequest, call_next: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        assert self._hosted is not None
        return await self._hosted.create(request, call_next)

    async def answer(self, name: str, request: AskedRequest) -> dict[str, Any]:
        assert self._hosted is not None
        answer: dict[str, Any] = await getattr(self._hosted, name)(request)
        return answer

    async def finish(self, call: AnsweredCall, raw: dict[str, Any]) -> dict[str, Any]:
        """Waits for the result of a call that became a task."""
        tasks = self.requests()
        assert tasks is not None
        look = tasks.dialect.created(tasks.era, raw)
        read = partial(read_result, tasks.era, cls=CallToolResult)
        handle = TaskHandle(tasks, look.status.id, read, first=look)
        return await handle.wait_or_cancel(call.options, call.began)

    def changed(self, params: dict[str, Any]) -> None:
        tasks = self.requests()
        if tasks is not None:
            tasks.notified(params)
