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


class ClientTasks:
    """The part of one client that finishes the calls which a server turns into tasks, and answers for its own tasks.

    It does not have the extension whose functions are its methods, and the client's requests have it only weakly, so
    that a client which has ended is freed at once.
    """

    def __init__(self) -> None:
        self._hosted: HostedTasks | None = None
        self._requests: weakref.ref[TaskRequests] | None = None

    def extension(self, *, takes: bool, hosts: Collection[str]) -> ClientExtension:
        """Returns the extension that leads to this.

        Args:
            takes: Whether calls may be turned into tasks.
            hosts: The requests of servers that this client may answer later, as tasks of its own.
        """
        made = ClientExtension(EXTENSION, targets=_TARGETS, core=_core(hosts) if takes else None)
        if takes:
            made.result("task")(self._finish)
        for method in ("notifications/tasks", "notifications/tasks/status"):
            made.notification(method)(self._changed)
        if made.core:
            for method in hosts:
                made.around(method, when=_wants_task)(self._create)
            for name in ("get", "result", "list", "cancel"):
                made.method(f"tasks/{name}")(partial(self._answer, name))
            made.lifespan(self._serving)
        return made

    def bind(self, requests: TaskRequests) -> None:
        """Takes what makes the requests of the client; it lives as long as the client."""
        self._requests = weakref.ref(requests)

    @property
    def _bound(self) -> TaskRequests:
        requests = None if self._requests is None else self._requests()
        assert requests is not None
        return requests

    @asynccontextmanager
    async def _serving(self, client: Any) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self._hosted = HostedTasks(nursery, client.notify, self._bound.session)
            try:
                yield
            finally:
                self._hosted = None
                nursery.cancel_scope.cancel(reason="the client is closed")

    async def _create(
        self, request: AskedRequest, call_next: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        assert self._hosted is not None
        return await self._hosted.create(request, call_next)

    async def _answer(self, name: str, request: AskedRequest) -> dict[str, Any]:
        assert self._hosted is not None
        answer: dict[str, Any] = await getattr(self._hosted, name)(request)
        return answer

    async def _finish(self, call: AnsweredCall, raw: dict[str, Any]) -> dict[str, Any]:
        """Waits for the result of a call that became a task."""
        tasks = self._bound
        look = tasks.dialect.created(tasks.era, raw)
        read = partial(read_result, tasks.era, cls=CallToolResult)
        handle = TaskHandle(tasks, look.status.id, read, first=look)
        return await handle.wait_or_cancel(call.options, call.began)

    def _changed(self, params: dict[str, Any]) -> None:
        self._bound.notified(params)
