"""Tasks as an extension that every client has, with their core of MCP 2025-11-25 (SEP-2663, SEP-2133).

`ClientTasks` finishes the calls of the program that a server turns into tasks. `HostedTasks` are the tasks of the
client itself: questions of a session's server that are answered later (MCP 2025-11-25, Tasks).
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors._actors.session import Session
from mcp_actors._client.client_extension import AnsweredCall, AskedRequest, ClientExtension
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.task_handle import TaskHandle
from mcp_actors._client.task_requests import EXTENSION, TaskRequests
from mcp_actors._eras.era import read_result
from mcp_actors.errors import INVALID_PARAMS, McpError, Overloaded, RpcError, TaskNotFound
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CLIENT_TASK
from mcp_actors.types import CallToolResult
from mcp_actors.types.tasks import TaskStatusName

__all__ = ["ClientTasks", "HostedTasks"]

# Seconds for which a task is kept whose server does not say, and for which one is kept at most: a person who is asked
# takes minutes, and an answer is not kept for longer than an hour.
DEFAULT_TTL = 600.0
LONGEST_TTL = 3600.0
# Tasks of one session, ended ones included: so many questions a server has for a person at once.
MAX_TASKS = 32
# Seconds that a server is asked to wait between two looks: people are slow.
POLL_INTERVAL = 1.0
RELATED = "io.modelcontextprotocol/related-task"
_TARGETS = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


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
            self._hosted = HostedTasks(nursery, client.notify, self._bound.connectivity)
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


def _core(methods: Collection[str]) -> dict[str, Any] | None:
    """Returns what is declared in sessions: MCP 2025-11-25, Tasks, Client Capabilities."""
    requests: dict[str, dict[str, Any]] = {}
    for method in methods:
        group, _, name = method.partition("/")
        requests.setdefault(group, {})[name] = {}
    return {"tasks": {"list": {}, "cancel": {}, "requests": requests}} if requests else None


def _wants_task(params: Mapping[str, Any]) -> bool:
    return "task" in params


class HostedTasks:
    """The tasks of one client's session; they end with it.

    Args:
        notify: Sends a notification to the server.
        connectivity: Has the session of the moment.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        notify: Callable[[str, dict[str, Any]], Awaitable[None]],
        connectivity: Connectivity,
    ) -> None:
        self._nursery = nursery
        self._notify = notify
        self._connectivity = connectivity
        self._session: Session | None = None
        self._tasks: dict[str, _Hosted] = {}

    def __repr__(self) -> str:
        return f"<HostedTasks {len(self._tasks)}/{MAX_TASKS}>"

    async def create(
        self, request: AskedRequest, call_next: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Begins to answer a question, and returns the task.

        Raises:
            RpcError: The wish for a task is malformed.
            Overloaded: There are too many.
        """
        tasks = self._current()
        if len(tasks) >= MAX_TASKS:
            raise Overloaded("session", MAX_TASKS, 0)
        ttl = _ttl_of(request.params.get("task"))
        now = _now()
        task = _Hosted(secrets.token_urlsafe(24), ttl, now, trio.current_time() + ttl, now)
        tasks[task.id] = task
        start(self._nursery, CLIENT_TASK, self._run, task, call_next, on_crash=lambda _: task.end("failed"))
        await trio.lowlevel.checkpoint()
        return {"task": task.described()}

    async def get(self, request: AskedRequest) -> dict[str, Any]:
        """Answers ``tasks/get``."""
        return self._find(request).described()

    async def list(self, request: AskedRequest) -> dict[str, Any]:
        """Answers ``tasks/list``: there are so few that one page holds all."""
        return {"tasks": [each.described() for each in self._current().values()]}

    async def cancel(self, request: AskedRequest) -> dict[str, Any]:
        """Answers ``tasks/cancel``; a task that has ended cannot be cancelled."""
        task = self._find(request)
        if not task.end("cancelled"):
            raise RpcError(INVALID_PARAMS, f"the task has ended: it is {task.status}")
        return task.described()

    async def result(self, request: AskedRequest) -> dict[str, Any]:
        """Answers ``tasks/result`` once the task has ended, with what the plain request would have been answered."""
        task = self._find(request)
        await task.ended.wait()
        if task.result is not None:
            meta = {**task.result.get("_meta", {}), RELATED: {"taskId": task.id}}
            return {**task.result, "_meta": meta}
        raise task.error or RpcError(INVALID_PARAMS, f"the task has no result: it is {task.status}")

    async def _run(self, task: _Hosted, call_next: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        with trio.move_on_after(task.ttl), task.scope:
            try:
                task.result = await call_next()
            except RpcError as error:
                task.error = error
            except Exception:
                # What a function of the program raises stays in the log; the server does not see it.
                task.error = RpcError(-32603, "the client could not answer")
        if task.end("completed" if task.result is not None else "failed"):
            await self._send_status(task)

    async def _send_status(self, task: _Hosted) -> None:
        try:
            await self._notify("notifications/tasks/status", task.described())
        except McpError as error:
            log.debug("a server was not notified of a task", task=task.id[:6], error=str(error))

    async def _end_with(self, session: Session) -> None:
        await session.ended.wait()
        if self._session is session:
            self._drop()

    def _drop(self) -> None:
        for task in self._tasks.values():
            task.end("cancelled")
        self._tasks = {}

    def _current(self) -> dict[str, _Hosted]:
        """The tasks of the present session whose time is not over."""
        session = self._connectivity.session
        if session is not self._session:
            self._drop()
            self._session = session
            start(self._nursery, CLIENT_TASK, self._end_with, session)
        now = trio.current_time()
        for id in [id for id, task in self._tasks.items() if task.expires <= now]:
            self._tasks.pop(id).end("failed")
        return self._tasks

    def _find(self, request: AskedRequest) -> _Hosted:
        id = request.params.get("taskId")
        task = self._current().get(id) if isinstance(id, str) else None
        if task is None:
            raise TaskNotFound(id if isinstance(id, str) else "")
        return task


@attrs.define(eq=False)
class _Hosted:
    """One task: a question that is being answered, or was."""

    id: str
    ttl: float
    created: str
    expires: float
    updated: str
    status: TaskStatusName = "working"
    result: dict[str, Any] | None = None
    error: RpcError | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)

    def __repr__(self) -> str:
        return f"<_Hosted {self.id[:6]}… {self.status}>"

    def end(self, status: TaskStatusName) -> bool:
        """Ends it, unless it has ended: the first terminal state stays."""
        if self.ended.is_set():
            return False
        self.status, self.updated = status, _now()
        self.ended.set()
        self.scope.cancel(reason=f"the task is {status}")
        return True

    def described(self) -> dict[str, Any]:
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttl": round(self.ttl * 1000),
            "pollInterval": round(POLL_INTERVAL * 1000),
        }


def _ttl_of(wish: Any) -> float:
    ttl = wish.get("ttl") if isinstance(wish, dict) else None
    if ttl is None and isinstance(wish, dict):
        return DEFAULT_TTL
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0:
        raise RpcError(INVALID_PARAMS, "task.ttl must be a number of milliseconds above 0")
    # Compared before any arithmetic: an integer of JSON has as many digits as a server likes.
    return min(ttl, LONGEST_TTL * 1000) / 1000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
