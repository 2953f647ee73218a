"""`Tasks`: the extension of a server that makes tasks of calls, in both dialects."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import TaskRecord
from mcp_actors.context import Context
from mcp_actors.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    MissingCapability,
    Overloaded,
    RpcError,
    SharedStateUnavailable,
    invalid_params,
)
from mcp_actors.extensions import (
    ServerExtension,
    Serving,
    detached,
    holder_of,
    progress_token_of,
    remembered,
)
from mcp_actors.server import CallNext, TaskRules
from mcp_actors.tasks.actor import TaskActor
from mcp_actors.tasks.dialects import IMMEDIATE_RESPONSE, core_created, detailed_task, extension_created
from mcp_actors.tasks.methods import CoreMethods, ExtensionMethods, may_see
from mcp_actors.tasks.node import TaskNode
from mcp_actors.tasks.session_tasks import SessionTasks
from mcp_actors.tasks.settings import TaskSettings

__all__ = ["TASKS", "Tasks"]

TASKS = "io.modelcontextprotocol/tasks"
_MEMBER, _NOTIFICATION = "taskIds", "notifications/tasks"
_MIB = 1024 * 1024
# Bytes of a task's id, which alone protects a task of a caller that nobody has authenticated. It is written in
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
        poll_interval: Seconds that clients are told to wait between two looks: 1, which a person hardly notices, and
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

    def _node(self) -> TaskNode:
        if not self._nodes:
            raise RpcError(
                INTERNAL_ERROR, "the server is stopping: its tasks cannot be reached here any more"
            )
        return self._nodes[0]

    async def _notification_params(
        self, keys: Sequence[str], ctx: Context
    ) -> Mapping[str, Mapping[str, Any]]:
        """Those of some tasks that a caller may hear of, in full."""
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
        """Returns the time to live of the task that a call becomes, and an empty tuple for one that becomes none.

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
            session.get(SessionTasks).add(record.id)
        tool = ctx.server.tools.get(record.tool)
        immediate = None if tool is None else (tool.meta or {}).get(IMMEDIATE_RESPONSE)
        return core_created(record, immediate if isinstance(immediate, str) else None)

    async def _keep(self, record: TaskRecord, node: TaskNode) -> None:
        """Keeps a new task, so that every node can read it before its creation is answered (SEP-2663)."""
        settings = self.task_settings
        bounds = settings.bounds
        if not record.owner:
            # All callers that nobody has authenticated have this owner: they are counted by address.
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
