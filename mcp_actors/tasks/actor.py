"""One task that runs: its function, its scope, and the way by which the function reaches and asks its client."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mcp_actors.abc import TaskRecord
from mcp_actors.errors import INTERNAL_ERROR, RpcError, SharedStateUnavailable
from mcp_actors.extensions import Inbox, read_answer
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import TASK_STATUS
from mcp_actors.tasks.changes import Changes, Step
from mcp_actors.tasks.dialects import outcome_of_error
from mcp_actors.tasks.states import (
    answers_of,
    asked,
    described,
    failed,
    messages_of,
    seconds_left,
    taken,
    took_messages,
    withdrawn,
)
from mcp_actors.types import InputRequest, InputResponse

__all__ = ["TaskActor"]

# Seconds between two status messages of a task that are kept: a person reads no faster, and each is one write.
MESSAGE_EVERY = 1.0
# Seconds for which questions may take to be withdrawn when the function that asked them no longer waits.
WITHDRAW_BOUND = 2.0
# Seconds for which the effects of a task without an end are kept.
LONGEST_TASK = 7 * 86400.0
# Seconds between two attempts to keep the outcome of a task, at first and at last.
RETRY_FIRST, RETRY_LAST = 0.1, 5.0


class TaskActor:
    """A task that runs at this node; fulfils `mcp_actors.extensions.Voice` for its function.

    Args:
        record: Its newest value.
        changes: Keeps every change.
        token: The progress token of the request, ``None`` without one: it is valid until the task has ended.
    """

    def __init__(self, record: TaskRecord, changes: Changes, token: int | str | None = None) -> None:
        self.record = record
        # The end of the server gives tasks as much time as calls, and then cancels this scope.
        self.scope = trio.CancelScope(shield=True)
        self.ctx: Context | None = None
        """The context of the function: it has the revision in whose forms the client is asked."""
        self.ended = trio.Event()
        self.inbox = TaskInbox(record, self._message_taken)
        """See `mcp_actors.extensions.SupportsInbox`."""
        self._changes = changes
        self._token = token
        self._asked: set[str] = set()
        self._progress = -math.inf
        self._changed = trio.Event()
        self._message: str | None = None
        self._has_message: trio.Event | None = None
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<TaskActor {self.record.id[:6]}… {self.record.tool} {self.record.state}>"

    @property
    def kept(self) -> tuple[str, float] | None:
        """See `mcp_actors.extensions.SupportsKept`."""
        record = self.record
        if not record.restartable:
            return None
        return record.id, record.created + (LONGEST_TASK if record.ttl is None else record.ttl)

    # -- the actor ---------------------------------------------------------------------------------------------------

    async def run(self, function: Callable[[], Awaitable[Step]]) -> None:
        """Runs the function and keeps its outcome; returns early once the task has ended otherwise, or its time is up.

        Args:
            function: Runs the function, whatever that raises, and returns the step that ends the task.
        """
        try:
            with self._changes.watch.interest(self.record.id, self._take):
                with self.scope:
                    left = seconds_left(self.record, self._changes.clock())
                    with trio.move_on_after(left) as within_its_time:
                        async with trio.open_nursery() as nursery:
                            self._nursery = nursery
                            step = await function()
                            nursery.cancel_scope.cancel(reason="the function has ended")
                        await self.end(step)
                    if within_its_time.cancelled_caught:
                        await self._expire()
        finally:
            self.ended.set()

    async def _expire(self) -> None:
        """Ends a task whose time is up and which its store still has, as its clock was set back meanwhile."""
        message = "the task has failed: its time was up"
        outcome = outcome_of_error(RpcError(INTERNAL_ERROR, message))
        try:
            await self._changes.apply(self.record, lambda record, now: failed(record, outcome, message, now))
        except SharedStateUnavailable as error:
            log.warning("a task whose time is up is not ended", task=self.record.id[:6], cause=error.cause)

    async def end(self, step: Step) -> None:
        """Keeps the outcome; while the store cannot be reached, it tries again until the task's time is up."""
        pause = RETRY_FIRST
        while True:
            try:
                await self._changes.apply(self.record, step)
                return
            except SharedStateUnavailable as error:
                log.warning(
                    "the outcome of a task is not kept yet: the store cannot be reached",
                    task=self.record.id[:6],
                    tool=self.record.tool,
                    cause=error.cause,
                )
            await trio.sleep(pause)
            pause = min(pause * 2, RETRY_LAST)

    def _take(self, record: TaskRecord | None) -> None:
        if record is None or record.is_terminal or record.node != self.record.node:
            # It was cancelled, its time is up, or another node took it over.
            if record is not None:
                self.record = record
            self.scope.cancel(reason="the task has ended")
        elif record.revision > self.record.revision:
            self._advance(record)
            self._changed.set()
            self._changed = trio.Event()

    def _advance(self, record: TaskRecord) -> None:
        self.record = record
        self.inbox.receive(record)

    # -- what the client sends the function --------------------------------------------------------------------------

    def _message_taken(self) -> None:
        if self._nursery is not None and self.inbox.begin_to_keep():
            start(self._nursery, TASK_STATUS, self._keep_taken, about="of messages")

    async def _keep_taken(self) -> None:
        """Makes room in the task for further messages, once for all that the function has taken meanwhile."""
        inbox, pause = self.inbox, RETRY_FIRST
        while inbox.kept < (taken := inbox.taken):
            try:
                await self._change(lambda record, now: took_messages(record, taken, now))
            except SharedStateUnavailable as error:
                log.debug("it is not kept what a task has taken of its messages", cause=error.cause)
                await trio.sleep(pause)
                pause = min(pause * 2, RETRY_LAST)
            else:
                inbox.kept, pause = taken, RETRY_FIRST
        inbox.is_kept = True

    # -- what the function sends its client --------------------------------------------------------------------------

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Takes a report of progress: it becomes the status message, and goes to the session that began the task."""
        if progress <= self._progress:
            return
        self._progress = progress
        self._message = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        if self._has_message is None:
            assert self._nursery is not None
            self._has_message = trio.Event()
            start(self._nursery, TASK_STATUS, self._keep_messages)
        self._has_message.set()
        if self._token is not None:
            params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
            if total is not None:
                params["total"] = total
            if message is not None:
                params["message"] = message
            self.notify_session("notifications/progress", params)

    async def _keep_messages(self) -> None:
        """Keeps the newest status message, at most one in `MESSAGE_EVERY` seconds."""
        while True:
            assert self._has_message is not None
            await self._has_message.wait()
            self._has_message = trio.Event()
            try:
                await self._changes.apply(
                    self.record, lambda record, now: described(record, self._message, now)
                )
            except SharedStateUnavailable as error:
                log.debug("a status message of a task is not kept", cause=error.cause)
            await trio.sleep(MESSAGE_EVERY)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification of the function: it goes to the session that began the task, if that is there."""
        self.notify_session(method, params)

    def notify_session(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification to the session that began the task, if it is there and has room. Never waits.

        A stateless revision has no way to a client but the answers to its requests.
        """
        ctx = self.ctx
        if ctx is not None and not ctx.era.declares_in_requests and (session := ctx.session) is not None:
            session.notify(method, params)

    def stop(self) -> None:
        """Is called where a plain call gets no more beats; a task has none."""

    # -- what the function asks its client ---------------------------------------------------------------------------

    async def ask(self, questions: Mapping[str, InputRequest]) -> dict[str, InputResponse]:
        """Puts the task into ``input_required`` and returns the answers, however long they take to come.

        Cancelled, it withdraws what is not answered.

        Raises:
            RpcError: The client answered with an error.
            RemoteProtocolError: An answer is malformed, or does not fit the form.
            SharedStateUnavailable: The questions cannot be kept, so that no client would find them.
        """
        if not questions:
            return {}
        ctx = self.ctx
        assert ctx is not None
        names = {self._unique(key): key for key in questions}
        wire = {
            name: {"method": questions[key].method, "params": ctx.era.unstructure(questions[key])}
            for name, key in names.items()
        }
        try:
            await self._change(lambda record, now: asked(record, wire, now))
            while not names.keys() <= (found := answers_of(self.record)).keys():
                await self._changed.wait()
            await self._change(lambda record, now: taken(record, names, now))
        except BaseException:
            await self._withdraw(names)
            raise
        return {key: _read(ctx, questions[key], found[name]) for name, key in names.items()}

    def _unique(self, key: str) -> str:
        """A key that this task has never asked by: clients take a known one for a question that they have answered."""
        name, runs = key, self.record.runs
        if runs > 1 or key in self._asked:
            name = f"{key}.{runs}.{len(self._asked)}"
        self._asked.add(name)
        return name

    async def _change(self, step: Step) -> None:
        after = await self._changes.apply(self.record, step)
        if after is None or after.is_terminal:
            # The task has ended meanwhile, which `_take` has learned, or is about to.
            self.scope.cancel(reason="the task has ended")
            await trio.sleep_forever()
        assert after is not None
        if after.revision > self.record.revision:
            self._advance(after)

    async def _withdraw(self, names: Mapping[str, str]) -> None:
        if self.record.is_terminal or self.scope.cancel_called:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + WITHDRAW_BOUND):
            try:
                await self._changes.apply(self.record, lambda record, now: withdrawn(record, names, now))
            except SharedStateUnavailable as error:
                log.debug("questions of a task are not withdrawn", cause=error.cause)


class TaskInbox(Inbox):
    """The messages to a task, which come with its record from whatever node they have reached.

    Those that the function has not taken stay in the record, which bounds them, and are there for the node that runs
    the task again.

    Args:
        record: The task.
        on_taken: Is called for each message that the function takes.
    """

    def __init__(self, record: TaskRecord, on_taken: Callable[[], None]) -> None:
        super().__init__(on_taken=self._has_taken)
        self._begin_keeping = on_taken
        # Messages are counted over all runs: so many have come, were taken, and are known to the record as taken.
        self._came = self.taken = self.kept = record.messages_taken
        self.is_kept = True
        """Whether nothing makes the record know of it."""
        self.receive(record)

    def receive(self, record: TaskRecord) -> None:
        """Takes the messages of a newer value of the task that have not come yet."""
        for message in messages_of(record)[self._came - record.messages_taken :]:
            self.put(message)
            self._came += 1

    def begin_to_keep(self) -> bool:
        """Whether the caller has to make the record know what was taken."""
        begins, self.is_kept = self.is_kept, False
        return begins

    def _has_taken(self) -> None:
        self.taken += 1
        self._begin_keeping()


def _read(ctx: Context, question: InputRequest, answer: Mapping[str, Any]) -> InputResponse:
    error = answer.get("error")
    if error is not None:
        raise RpcError.from_wire(error["code"], error["message"], error.get("data"))
    return read_answer(ctx, question, answer["result"])
