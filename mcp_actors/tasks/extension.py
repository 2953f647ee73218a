"""`Tasks`: the extension of a server that makes tasks of calls, in both dialects."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import TaskRecord
from mcp_actors.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    CallEnded,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    RpcError,
    SharedStateUnavailable,
    invalid_params,
)
from mcp_actors.extensions import (
    Inbox,
    ServerExtension,
    Serving,
    check_answer,
    detached,
    holder_of,
    progress_token_of,
    remembered,
)
from mcp_actors.server import CallNext, Context, TaskRules
from mcp_actors.tasks.actor import TaskActor
from mcp_actors.tasks.dialects import (
    IMMEDIATE_RESPONSE,
    core_created,
    core_result,
    core_task,
    detailed_task,
    extension_created,
)
from mcp_actors.tasks.node import TaskNode, TaskSettings
from mcp_actors.tasks.states import answered, cancelled, messages_of, questions_of, sent

__all__ = ["TASKS", "CoreMethods", "ExtensionMethods", "Tasks", "may_see"]


TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the extension that makes tasks of calls (SEP-2663)."""
_SEND = "mcp-actors/tasks/send"
_MEMBER, _NOTIFICATION = "taskIds", "notifications/tasks"
_MIB = 1024 * 1024
# Bytes of a task's id, which alone protects a task of an unauthenticated caller. It is written in
# hexadecimal digits, since an id that begins with a hyphen would be an option on a command line.
_ID_BYTES = 24


class Tasks(ServerExtension):
    """Makes tasks of the calls of tools that are registered with ``task=``; see `mcp_actors.tasks`.

    A server with such a tool has one with these defaults; ``Server(extensions=[Tasks(ttl=60)])`` has another one.

    Args:
        ttl: Seconds for which a task is kept, from its creation, where the client asks for no other time: an hour, in
            which a person comes back from lunch, and a client from a restart. A function that runs longer is cancelled.
        max_ttl: The most seconds that a client (MCP 2025-11-25) is granted: a day. ``None`` for no limit: then results
            may be kept for ever.
        poll_interval: Seconds that clients are asked to wait between two looks: 1, which a person hardly notices, and
            for which a thousand waiting clients make a thousand small requests a second.
        running: Tasks that run at once at one node, 1000; one principal or, without one, one address, may run half of
            them. The function of each holds what a call holds.
        per_principal: Tasks that are kept for one principal or, without one, that one address may have created at one
            node: 1000.
        in_all: Tasks that are kept in all, of all nodes: 100,000.
        bytes_per_principal: Bytes of these tasks, 64 MiB, for one principal or, without one, one address. It is looked
            at before a task is created: results may exceed it.
        bytes_in_all: The same for all principals: 512 MiB.
        clock: Returns seconds since the epoch, which all nodes must agree on.

    Raises:
        ValueError: A time is not greater than 0, a number less than 1, or ``ttl`` greater than ``max_ttl``.
    """

    def __init__(
        self,
        *,
        ttl: float = 3600.0,
        max_ttl: float | None = 86400.0,
        poll_interval: float = 1.0,
        running: int = 1000,
        per_principal: int = 1000,
        in_all: int = 100_000,
        bytes_per_principal: int = 64 * _MIB,
        bytes_in_all: int = 512 * _MIB,
        clock: Callable[[], float] = time.time,
    ) -> None:
        core: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
        super().__init__(TASKS, core=core)
        self.task_settings = TaskSettings(
            ttl,
            max_ttl,
            poll_interval,
            running,
            per_principal,
            in_all,
            bytes_per_principal,
            bytes_in_all,
        )
        self._clock = clock
        self._nodes: list[TaskNode] = []
        self.serving(self._serve)
        self.around("tools/call", when=self._concerns)(self._call)
        self.listen(_MEMBER, _NOTIFICATION)(self._notification_params)
        for name, function in ExtensionMethods(self._node).table().items():
            self.method(name, target="taskId")(function)
        for name, function in CoreMethods(self._node).table().items():
            # Stateless revisions do not have them, so that nothing of them is mirrored in headers.
            self.method(name, core=True)(function)

    # -- while the server serves -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _serve(self, serving: Serving) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            node = TaskNode(
                serving,
                self.task_settings,
                lambda id: self.publish(_MEMBER, id),
                lambda: self.subscribed(_MEMBER),
                f"{TASKS}/{_MEMBER}",
                nursery,
                self._clock,
            )
            async with node.open():
                self._nodes.append(node)
                try:
                    yield
                finally:
                    self._nodes.remove(node)

    def goes_on_from(self, former: object) -> bool:
        """Whether ``former`` made tasks, too: then those that run, and those that are kept, are the same."""
        if isinstance(former, Tasks):
            self._nodes = former._nodes
            return True
        return False

    def is_negotiated(self, ctx: Context) -> bool:
        """Whether a caller may use a method: where tasks are in the core, our own one is for all who have tasks."""
        in_core = ctx.method == _SEND and "tasks/get" in ctx.era.server_methods
        return in_core or super().is_negotiated(ctx)

    def _node(self) -> TaskNode:
        if not self._nodes:
            raise RpcError(
                INTERNAL_ERROR, "the server is stopping: its tasks cannot be reached here any more"
            )
        return self._nodes[0]

    async def _notification_params(
        self, keys: Sequence[str], ctx: Context
    ) -> Mapping[str, Mapping[str, Any]]:
        """Returns in full those of the tasks that the caller may see."""
        found = await self._node().store.get(keys)
        return {id: detailed_task(record) for id, record in found.items() if may_see(record, ctx)}

    # -- calls of tools ----------------------------------------------------------------------------------------------

    def _concerns(self, params: Mapping[str, Any]) -> bool:
        return "task" in params or self._rules(params) is not None

    def _rules(self, params: Mapping[str, Any]) -> TaskRules | None:
        rules: TaskRules | None = self._node().serving.server.tools.task_rules(params.get("name"))
        return rules

    async def _call(self, ctx: Context, call_next: CallNext) -> Any:
        rules = self._rules(ctx.params)
        wanted = self._wanted(ctx, rules)
        if rules is not None and rules.before is not None:
            arguments = ctx.params.get("arguments")
            ctx.params["arguments"] = dict(
                await rules.before(arguments if isinstance(arguments, dict) else {}, ctx)
            )
        if rules is None or not wanted:
            return await call_next()
        return await self._begin(ctx, call_next, rules, wanted[0])

    def _wanted(self, ctx: Context, rules: TaskRules | None) -> tuple[float | None] | tuple[()]:
        """Returns the time to live of the task that a call becomes, and an empty tuple for a plain call.

        Raises:
            RpcError: The client and the tool do not agree on whether it has to.
        """
        if ctx.era.declares_in_requests:
            if rules is None:
                return ()
            if TASKS in ctx.extensions:
                return (self.task_settings.ttl,)
            if rules.support == "required":
                raise MissingCapability({"extensions": {TASKS: {}}})
            return ()
        if "tasks/get" not in ctx.era.server_methods or "task" not in ctx.params:
            if rules is not None and rules.support == "required":
                raise RpcError(METHOD_NOT_FOUND, f"the tool {ctx.params['name']} must be called as a task")
            return ()
        if rules is None:
            raise RpcError(METHOD_NOT_FOUND, "this tool cannot be called as a task: leave 'task' out")
        return (self._asked_ttl(ctx.params["task"]),)

    def _asked_ttl(self, task: Any) -> float | None:
        if not isinstance(task, dict):
            raise invalid_params("'task' must be an object")
        settings = self.task_settings
        if "ttl" not in task:
            return settings.ttl
        ttl = task["ttl"]
        if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0):
            raise invalid_params("'task.ttl' must be a number of milliseconds greater than 0, or null")
        return settings.granted_ttl(ttl)

    async def go_on(self, ctx: Context, function: Callable[[Context], Awaitable[Any]]) -> dict[str, Any]:
        """Makes a task of a call that was begun as a plain one, for a stateless client; returns the answer to it.

        Args:
            ctx: The call, whose client has declared the extension.
            function: Goes on with the call and returns its result, with the context that it is given.

        Raises:
            RpcError: There are too many tasks, or they cannot be kept.
        """
        return await self._begin(ctx, function, TaskRules("optional", False, None), self.task_settings.ttl)

    async def _begin(
        self,
        ctx: Context,
        call_next: CallNext | Callable[[Context], Awaitable[Any]],
        rules: TaskRules,
        ttl: float | None,
    ) -> dict[str, Any]:
        """Keeps a new task, starts it and returns the answer to the call."""
        node, core = self._node(), not ctx.era.declares_in_requests
        ctx.params.pop("task", None)
        token = progress_token_of(ctx) if core else None
        now, principal = self._clock(), ctx.principal
        holder = holder_of(ctx)
        record = TaskRecord(
            id=secrets.token_hex(_ID_BYTES),
            owner="" if principal is None else principal.key,
            tool=ctx.params["name"],
            version=ctx.era.version,
            request=remembered(ctx),
            created=now,
            updated=now,
            ttl=ttl,
            poll_interval=self.task_settings.poll_interval,
            node=node.serving.shared.node,
            restartable=rules.restartable,
        )
        if principal is None and holder is not None:
            node.creations.count(holder, record)
        leave = None
        try:
            leave = node.reserve(holder)
            await self._keep(record, node)
        except BaseException:
            node.creations.forget(record.id)
            if leave is not None:
                leave()
            raise
        actor = TaskActor(record, node.changes, token)
        ctx2 = detached(ctx, actor)
        node.run(actor, ctx2, lambda: call_next(ctx2), leave)
        if not core:
            return extension_created(record)
        if (session := ctx.session) is not None:
            # The oldest are left out of the list; they can still be looked at by their ids.
            session.tasks = (*session.tasks, record.id)[-MOST_OF_SESSION:]
        tool = ctx.server.tools.get(record.tool)
        immediate = None if tool is None else (tool.meta or {}).get(IMMEDIATE_RESPONSE)
        return core_created(record, immediate if isinstance(immediate, str) else None)

    async def _keep(self, record: TaskRecord, node: TaskNode) -> None:
        """Keeps a new task, so that every node can read it before its creation is answered (SEP-2663)."""
        settings = self.task_settings
        bounds = settings.bounds
        if not record.owner:
            # All unauthenticated callers have this owner: they are counted by address.
            bounds = bounds._replace(of_owner=bounds.of_all, bytes_of_owner=bounds.bytes_of_all)
        try:
            over = await node.store.create(record, bounds)
        except (trio.Cancelled, SharedStateUnavailable):
            # The store may have it all the same; without its function it would be `working` until its time is up.
            node.give_up(record)
            raise
        if over == "owner" and record.owner:
            raise Overloaded.for_tasks("tasks, or bytes in tasks,", "holder", settings.per_principal)
        if over is not None:
            raise Overloaded.for_tasks("tasks, or bytes in tasks,", "all", settings.in_all)


# -- The methods by which clients look at tasks, answer their questions and cancel them ---

_Function = Callable[[dict[str, Any], Context], Awaitable[dict[str, Any]]]

# Characters of the longest id that is looked up; those of this engine have 32.
LONGEST_ID = 256
# Bytes of a task from which on no more answers are taken until its function has taken those that wait: two of the
# longest messages, each of which may answer one question of many.
HEAVIEST_ANSWERED = 32 * 1024 * 1024
# Tasks on one page of ``tasks/list``.
PAGE = 100
# Tasks of a session that ``tasks/list`` shows to a caller without a principal.
MOST_OF_SESSION = 1000


def may_see(record: TaskRecord, ctx: Context) -> bool:
    """Whether a caller may see a task: it must be the caller's own, and of the revision that the caller speaks.

    The tasks of unauthenticated callers are protected by their ids alone (MCP 2025-11-25, Tasks, Task
    Isolation and Access Control).
    """
    principal = ctx.principal
    return record.owner == ("" if principal is None else principal.key) and record.version == ctx.era.version


async def find(node: TaskNode, params: Mapping[str, Any], ctx: Context) -> TaskRecord:
    """Returns the task that a request means.

    Raises:
        RpcError: -32602: the task is unknown, or belongs to another caller.
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
    """Returns the error for a task that does not exist, has expired, or belongs to another caller."""
    return invalid_params("unknown task: there is none with this id, or its time is up")


class CoreMethods:
    """The methods of MCP 2025-11-25 that SEP-2663 lacks."""

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
            found, ids = [], _after(session.tasks, cursor)
            # Some of them are gone, perhaps more than fit on a page.
            while ids and len(found) <= PAGE:
                known = await store.get(ids[: PAGE + 1])
                found += [known[id] for id in ids[: PAGE + 1] if id in known]
                del ids[: PAGE + 1]
        else:
            # MCP 2025-11-25, Tasks: without an authorization context the owners of tasks cannot be distinguished.
            raise MethodNotFound(ctx.method)
        shown = found[:PAGE]
        listed: dict[str, Any] = {"tasks": [core_task(each) for each in shown if may_see(each, ctx)]}
        if len(found) > PAGE:
            listed["nextCursor"] = shown[-1].id
        return listed


class ExtensionMethods:
    """The methods of SEP-2663, in the form of the caller's revision where MCP 2025-11-25 has them, and one of ours."""

    def __init__(self, node: Callable[[], TaskNode]) -> None:
        self._node = node

    def table(self) -> Mapping[str, _Function]:
        """Returns the functions by the names of their methods."""
        return {
            "tasks/get": self._get,
            "tasks/update": self._update,
            "tasks/cancel": self._cancel,
            _SEND: self._send,
        }

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

    async def _send(self, params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """``mcp-actors/tasks/send``: a message to the function, for ``ctx.inbox``, at whatever node it runs."""
        node = self._node()
        record = await find(node, params, ctx)
        if "message" not in params:
            raise invalid_params("'message' is missing")
        message = params["message"]

        def step(found: TaskRecord, now: float) -> TaskRecord | None:
            after = sent(found, message, now)
            if after is None:
                raise CallEnded()
            Inbox.check_room(len(messages_of(found)), len(found.messages), message)
            return after

        if await node.changes.apply(record, step) is None:
            raise unknown_task()
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


def _after(ids: Sequence[str], id: str | None) -> list[str]:
    """Returns the tasks of a session that follow one of them, or all of them.

    Raises:
        RpcError: It is none of them (-32602).
    """
    if id is None:
        return list(ids)
    if id not in ids:
        raise invalid_params("invalid cursor")
    return list(ids[ids.index(id) + 1 :])
