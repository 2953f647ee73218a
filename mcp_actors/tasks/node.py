"""The tasks that one process runs while it serves: their nursery, their store, and the search for abandoned ones."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import attrs
import trio

from mcp_actors.abc import TaskBounds, TaskRecord
from mcp_actors.errors import INTERNAL_ERROR, CallTimeout, Overloaded, RpcError, SharedStateUnavailable
from mcp_actors.extensions import OperatedTasks, Serving, TaskStatistics, ask_client, outcome
from mcp_actors.server import Context
from mcp_actors.supervision.budget import Budget
from mcp_actors.supervision.containment import start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import TASK, TASK_END, TASK_SWEEP, TASK_WATCH
from mcp_actors.tasks.actor import TaskActor
from mcp_actors.tasks.changes import LOOK_EVERY, Changes, Step, TaskWatch
from mcp_actors.tasks.dialects import RELATED_TASK, core_task, is_error, outcome_of, outcome_of_error
from mcp_actors.tasks.states import (
    answered,
    cancelled,
    completed,
    failed,
    questions_of,
    restarted,
    seconds_left,
)

__all__ = ["Creations", "ResultStreams", "TaskNode", "TaskSettings"]


# Seconds between two searches for tasks whose node is gone: half of the lease after which a node counts as gone.
SWEEP_EVERY = 5.0
# Tasks that one search looks at beyond those that this node cannot look after, and the most of those: a store brings
# them again each time.
SWEEP_LIMIT, MOST_PASSED_OVER = 100, 1000
# Runs after which a task is not run again: a function that ends its process would end one node after the other.
MAX_RUNS = 3
# Seconds in which functions may clean up, and then their tasks be written, when the server has stopped.
CLEANUP_BOUND, LAST_WORDS_BOUND = 1.0, 2.0
# Seconds after which a creation that was interrupted has been kept, or never will be.
LATE_CREATION = 10.0


class TaskNode:
    """The tasks of one `Server.serve`.

    Args:
        serving: The server, and what it shares with other nodes.
        settings: The bounds.
        publish: Is given the id of each task that has changed, for those who listen.
        listened: Returns the ids of the tasks that clients listen for here.
        topic: The topic under which other nodes publish ids of tasks.
        nursery: Owns the tasks.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        serving: Serving,
        settings: TaskSettings,
        publish: Callable[[str], None],
        listened: Callable[[], Iterable[str]],
        topic: str,
        nursery: trio.Nursery,
        clock: Callable[[], float],
    ) -> None:
        self.serving = serving
        self.store = store = serving.shared.tasks
        bus = serving.shared.bus
        hears = bus.spans_processes or not store.spans_processes
        self._watch = TaskWatch(store, None if hears else LOOK_EVERY, listened, publish)
        self.creations = Creations(settings.per_principal, settings.bytes_per_principal)
        self.changes = Changes(store, self._watch, self._announce, clock)
        self.results = ResultStreams(self.changes, serving.server.limits.ask_timeout)
        self._publish = publish
        self._topic = topic
        self._nursery = nursery
        self._running: dict[str, TaskActor] = {}
        self._places = Budget(settings.running)

    def __repr__(self) -> str:
        return f"<TaskNode with {len(self._running)} tasks running>"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Runs what all tasks need; where the block ends, the tasks that still run are ended too."""
        shared = self.serving.shared
        unsubscribe = shared.bus.subscribe(self._arrived, self._watch.missed)
        start_again(self._nursery, TASK_WATCH, self._watch.run)
        if self.store.spans_processes or self.store.survives:
            start_again(self._nursery, TASK_SWEEP, self._sweep)
        try:
            with self.serving.operated(OperatedTasks(self._statistics, self._cancel)):
                yield
        finally:
            try:
                await self._stop()
            finally:
                unsubscribe()
                self._nursery.cancel_scope.cancel(reason="the server has stopped")

    # -- running -----------------------------------------------------------------------------------------------------

    def reserve(self, holder: str | None) -> Callable[[], None]:
        """Takes a place for a task that is to run, and returns the function that gives it back.

        Raises:
            Overloaded: Too many run, of this client or of all.
        """
        over = self._places.charge(holder, 1)
        if over is not None:
            raise Overloaded.for_tasks("running tasks", over, self._places.limit_of(over))
        return partial(self._places.release, holder, 1)

    def run(
        self,
        actor: TaskActor,
        ctx: Context,
        function: Callable[[], Awaitable[Any]],
        leave: Callable[[], None],
    ) -> None:
        """Starts a task. Never waits.

        Args:
            actor: The task.
            ctx: The context of its function.
            function: What runs the function.
            leave: Gives its place back.
        """
        actor.ctx = ctx
        self._running[actor.record.id] = actor
        start(
            self._nursery,
            TASK,
            self._run,
            actor,
            partial(_end_of, ctx, function),
            leave,
            about=actor.record.tool,
            on_crash=lambda error: self._crashed(actor.record),
        )

    async def _run(
        self, actor: TaskActor, function: Callable[[], Awaitable[Step]], leave: Callable[[], None]
    ) -> None:
        try:
            await actor.run(function)
        finally:
            leave()
            # After the crash of an actor, `_crashed` ends its task.
            self._running.pop(actor.record.id, None)

    def _crashed(self, record: TaskRecord) -> None:
        start(self._nursery, TASK_END, self._fail, record, "internal error", about=record.tool)

    def give_up(self, record: TaskRecord) -> None:
        """Ends a task that may have been kept, whose creation was never answered. Never waits."""
        start(self._nursery, TASK_END, self._give_up, record, about=record.tool)

    async def _give_up(self, record: TaskRecord) -> None:
        await self._fail(record, "its creation was interrupted")
        # Where the connection to the store was cut off, an earlier write may arrive after a later one.
        await trio.sleep(LATE_CREATION)
        await self._fail(record, "its creation was interrupted")

    async def _fail(self, record: TaskRecord, reason: str) -> None:
        await TaskActor(record, self.changes).end(_failure(reason, record.node))

    # -- operators ---------------------------------------------------------------------------------------------------

    def _statistics(self) -> list[TaskStatistics]:
        now = self.changes.clock()
        return [_statistics_of(actor, now) for actor in list(self._running.values())]

    async def _cancel(self, key: str, message: str) -> bool:
        found = [each.record for each in self._running.values() if _key_of(each.record) == key]
        if not found:
            return False
        after = await self.changes.apply(found[0], lambda record, now: cancelled(record, message, now))
        return after is not None and after.state == "cancelled"

    # -- changes -----------------------------------------------------------------------------------------------------

    def _announce(self, record: TaskRecord) -> None:
        self.creations.changed(record)
        self._publish(record.id)
        actor = self._running.get(record.id)
        if actor is not None:
            actor.notify_session("notifications/tasks/status", core_task(record))

    def _arrived(self, topic: str, key: str) -> None:
        if topic == self._topic:
            self._watch.changed_elsewhere(key)

    # -- tasks whose node is gone ------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        passed_over = 0
        while True:
            more = False
            try:
                limit = SWEEP_LIMIT + passed_over
                found = await self.store.abandoned(limit)
                left = [record for record in found if not await self._look_after(record)]
                # They must not hide the others.
                passed_over = min(len(left), MOST_PASSED_OVER)
                more = len(found) == limit and passed_over == len(left)
            except SharedStateUnavailable as error:
                log.debug("abandoned tasks cannot be looked for", cause=error.cause)
            if not more:
                await trio.sleep(SWEEP_EVERY)

    async def _look_after(self, record: TaskRecord) -> bool:
        """Ends or runs a task whose node is gone. False for one that this node has no tool or no room for."""
        about = {"task": record.id[:6], "tool": record.tool, "runs": record.runs}
        if not record.restartable:
            await self.changes.apply(record, _failure("the process that ran it has ended", record.node))
            log.warning("a task has failed, since the process that ran it has ended", **about)
        elif record.runs >= MAX_RUNS:
            reason = f"the processes that ran it have ended, {record.runs} times"
            await self.changes.apply(record, _failure(reason, record.node))
            log.error("a task is not run again: it may be what ends the processes that run it", **about)
        elif self.serving.server.tools.task_rules(record.tool) is not None:
            return await self._run_again(record, about)
        else:
            return False
        return True

    async def _run_again(self, record: TaskRecord, about: dict[str, Any]) -> bool:
        try:
            leave = self.reserve(None)
        except Overloaded:
            # Another node may have room, or this one later.
            return False
        begun = False
        try:
            node = self.serving.shared.node
            after = await self.changes.apply(
                record, lambda found, now: restarted(found, node, now) if found.node == record.node else None
            )
            if after is None or after.node != node or after.runs == record.runs or after.is_terminal:
                return True
            actor = TaskActor(after, self.changes)
            try:
                ctx, function = self.serving.begin_again(record.request, actor)
            except ValueError as error:
                await self._fail(after, f"it cannot be run again: {error}")
                return True
            log.warning("a task is run again, since the process that ran it has ended", **about)
            self.run(actor, ctx, function, leave)
            begun = True
            return True
        finally:
            if not begun:
                leave()

    # -- the end of the server ---------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Gives tasks as much time as calls, then cancels them; what can be found again later is left, or failed."""
        server = self.serving.server
        grace = server.limits.drain_grace if server.stopping else 0.0
        with trio.CancelScope(shield=True):
            await self._wait_until_ended(grace)
            left = list(self._running.values())
            for actor in left:
                actor.scope.cancel(reason="the server has stopped")
            await self._wait_until_ended(CLEANUP_BOUND)
            if self.store.spans_processes or self.store.survives:
                with trio.move_on_after(LAST_WORDS_BOUND):
                    for actor in left:
                        if not actor.record.restartable:
                            await self._fail(actor.record, "the server that ran it was stopped")

    async def _wait_until_ended(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while self._running:
                await next(iter(self._running.values())).ended.wait()


def _statistics_of(actor: TaskActor, now: float) -> TaskStatistics:
    record = actor.record
    principal = None if actor.ctx is None else actor.ctx.principal
    return TaskStatistics(
        key=_key_of(record),
        tool=record.tool,
        principal=None if principal is None else principal.subject,
        state=record.state,
        message=record.message,
        age=now - record.created,
        left=None if record.ttl is None else seconds_left(record, now),
        runs=record.runs,
    )


def _key_of(record: TaskRecord) -> str:
    """Returns what names a task to operators, who must not learn its id."""
    return hashlib.blake2b(record.id.encode(), digest_size=8).hexdigest()


async def _end_of(ctx: Context, function: Callable[[], Awaitable[Any]]) -> Step:
    """Runs the function of a task and returns the step that ends the task."""
    body = await outcome(ctx, function)
    encoded = outcome_of(body)
    if "error" in body:
        return lambda record, now: failed(record, encoded, body["error"]["message"], now)
    if is_error(body["result"]) and not ctx.era.declares_in_requests:
        # MCP 2025-11-25, Tasks, Tool errors: for the extension the same is a task that has completed.
        return lambda record, now: failed(record, encoded, "the tool has reported an error", now)
    return lambda record, now: completed(record, encoded, now)


def _failure(reason: str, node: str) -> Step:
    """The step that ends a task of a node that cannot end it."""
    encoded = outcome_of_error(RpcError(INTERNAL_ERROR, f"the task has failed: {reason}"))

    def step(record: TaskRecord, now: float) -> TaskRecord | None:
        return failed(record, encoded, reason, now) if record.node == node else None

    return step


# -- The bounds of tasks, with their reasons ---

# Seconds, a thousand years: a longer time counts as without end. The numbers of stores and of JSON have room for it.
LONGEST_TTL = 31_557_600_000.0


@attrs.frozen
class TaskSettings:
    """The times and bounds of the tasks of one server; see `mcp_actors.tasks.Tasks` for each of them.

    Raises:
        ValueError: A time is not greater than 0, a number less than 1, or ``ttl`` greater than ``max_ttl``.
    """

    ttl: float
    max_ttl: float | None
    poll_interval: float
    running: int
    per_principal: int
    in_all: int
    bytes_per_principal: int
    bytes_in_all: int

    def __attrs_post_init__(self) -> None:
        """Checks every setting.

        Raises:
            ValueError: See the class.
        """
        for name in ("ttl", "poll_interval"):
            _check_number(name, getattr(self, name))
        if self.max_ttl is not None:
            _check_number("max_ttl", self.max_ttl)
            if self.ttl > self.max_ttl:
                raise ValueError(f"ttl={self.ttl!r} is greater than max_ttl={self.max_ttl!r}: raise max_ttl")
        for name in ("running", "per_principal", "in_all", "bytes_per_principal", "bytes_in_all"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: write a whole number that is at least 1")

    @property
    def bounds(self) -> TaskBounds:
        """The bounds that the store applies."""
        return TaskBounds(self.per_principal, self.in_all, self.bytes_per_principal, self.bytes_in_all)

    def granted_ttl(self, asked: float | None) -> float | None:
        """Returns the seconds for which a task is kept whose client asked for milliseconds, ``None`` for no end."""
        if asked is None or asked > LONGEST_TTL * 1000:
            # Before any arithmetic: an integer of JSON has as many digits as a client likes.
            return self.max_ttl
        return asked / 1000 if self.max_ttl is None else min(asked / 1000, self.max_ttl)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_TTL:
        raise ValueError(
            f"{name}={value!r}: write a number of seconds greater than 0, a thousand years at most"
        )


# -- The number of tasks of unauthenticated callers, by their addresses ---


@attrs.define
class _TasksOfHolder:
    tasks: int = 0
    weight: int = 0


class _CountedTask(NamedTuple):
    holder: str
    weight: int


class Creations:
    """The tasks that unauthenticated callers have created at this node and that are still kept, and their bytes.

    The store counts by owner, and has one for all of these callers: without this a single one could take all places.

    Args:
        tasks: How many tasks one caller may have.
        weight: How many bytes of them. It is looked at before a task is created: results may exceed it.
    """

    def __init__(self, tasks: int, weight: int) -> None:
        self._tasks = tasks
        self._weight = weight
        self._by_holder: dict[str, _TasksOfHolder] = {}
        self._counted: dict[str, _CountedTask] = {}
        self._until: list[tuple[float, str]] = []

    def __repr__(self) -> str:
        return f"<Creations {len(self._counted)} tasks of {len(self._by_holder)} callers>"

    def count(self, holder: str, record: TaskRecord) -> None:
        """Counts a new task until its time is over.

        Raises:
            Overloaded: The caller has as many as it may have.
        """
        while self._until and self._until[0][0] <= record.created:
            self.forget(heapq.heappop(self._until)[1])
        held = self._by_holder.get(holder) or _TasksOfHolder()
        if held.tasks >= self._tasks or held.weight + record.weight > self._weight:
            raise Overloaded.for_tasks("tasks, or bytes in tasks,", "holder", self._tasks)
        self._by_holder[holder] = held
        self._counted[record.id] = _CountedTask(holder, record.weight)
        held.tasks += 1
        held.weight += record.weight
        heapq.heappush(
            self._until, (math.inf if record.ttl is None else record.created + record.ttl, record.id)
        )

    def changed(self, record: TaskRecord) -> None:
        """Notes how many bytes a task has now, if it is counted."""
        counted = self._counted.get(record.id)
        if counted is not None:
            self._by_holder[counted.holder].weight += record.weight - counted.weight
            self._counted[record.id] = counted._replace(weight=record.weight)

    def forget(self, id: str) -> None:
        """Counts a task no more, if it is counted."""
        counted = self._counted.pop(id, None)
        if counted is None:
            return
        held = self._by_holder[counted.holder]
        held.tasks -= 1
        held.weight -= counted.weight
        if not held.tasks:
            del self._by_holder[counted.holder]


# -- ``tasks/result`` waits for the end of a task, and asks the client on its stream (MCP 2025-11-25, Tasks) ---


class ResultStreams:
    """The calls of ``tasks/result`` that wait at this node.

    Args:
        changes: Keeps the answers.
        seconds: Seconds for which a client may take to answer one question before it is asked again.
    """

    def __init__(self, changes: Changes, seconds: float) -> None:
        self._changes = changes
        self._seconds = seconds
        # Several calls may wait for one task: each question is asked on the stream of one of them.
        self._being_asked: set[tuple[str, str]] = set()

    async def end_of(self, id: str, ctx: Context) -> TaskRecord | None:
        """Returns a task's last value, ``None`` once the task is gone; asks the client of this call meanwhile.

        Raises:
            SharedStateUnavailable: The task cannot be looked at, or an answer cannot be kept.
            ConnectionLost, SessionExpired: The client has gone.
        """
        while True:
            record = await self._changes.watch.until(
                id, lambda record: record.is_terminal or self._open(record) is not None, self._changes.clock
            )
            if record is None or record.is_terminal:
                return record
            key = self._open(record)
            if key is not None:
                await self._ask(record, key, ctx)

    def _open(self, record: TaskRecord) -> str | None:
        """The key of a question that is not being asked at this node."""
        if record.state == "input_required":
            for key in questions_of(record):
                if (record.id, key) not in self._being_asked:
                    return key
        return None

    async def _ask(self, record: TaskRecord, key: str, ctx: Context) -> None:
        place = (record.id, key)
        answer: dict[str, Any] | None = None

        def take(newest: TaskRecord | None) -> None:
            if newest is None or newest.is_terminal or key not in questions_of(newest):
                # It was answered elsewhere, or the answer is not needed any more.
                scope.cancel(reason="the question was withdrawn")

        question = questions_of(record)[key]
        meta = {**question["params"].get("_meta", {}), RELATED_TASK: {"taskId": record.id}}
        self._being_asked.add(place)
        try:
            with self._changes.watch.interest(record.id, take), trio.CancelScope() as scope:
                try:
                    params = {**question["params"], "_meta": meta}
                    result = await ask_client(ctx, question["method"], params, seconds=self._seconds)
                    answer = {"result": result}
                except CallTimeout:
                    # A person may be away: the task waits, and the client is asked again.
                    pass
                except RpcError as error:
                    answer = {"error": {"code": error.code, "message": error.message, "data": error.data}}
            if answer is not None:
                given = {key: answer}
                await self._changes.apply(record, lambda newest, now: answered(newest, given, now))
        finally:
            self._being_asked.discard(place)
            # Another call may ask what this one could not.
            self._changes.watch.changed_elsewhere(record.id)
