"""The user's end of a task: it is looked at, waited for, answered and cancelled, by any program that has its id."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions, Progress, ProgressCallback
from mcp_actors._client.requests import call_options
from mcp_actors._client.task_requests import Answering, TaskChanges, TaskLook, TaskRequests, pause_before_look
from mcp_actors.errors import (
    CallEnded,
    CallTimeout,
    InputRequired,
    McpError,
    RemoteProtocolError,
    RpcError,
    TaskCancelled,
    TaskNotFound,
)
from mcp_actors.supervision.logging import log
from mcp_actors.types import CallToolResult, InputResponse
from mcp_actors.types.tasks import TaskStatus

__all__ = ["TaskHandle"]

# Seconds for cancelling a task at the server after the call that waited for it was cancelled.
CANCEL_TIMEOUT = 2.0


class TaskHandle:
    """A call of a tool that goes on at the server, whatever becomes of this program and its connection.

    Made by `Client.start_tool` and `Client.task`. Dropping it changes nothing: the task goes on, and its ``id`` is good
    for another handle, in another process too, as long as the caller is the same to the server. The id is a secret:
    without authorization, any program that has it may read and cancel the task.
    """

    def __init__(
        self,
        requests: TaskRequests,
        id: str | None,
        read: Callable[[dict[str, Any]], CallToolResult],
        *,
        first: TaskLook | None = None,
        result: CallToolResult | None = None,
    ) -> None:
        self.id = id
        """The task's id; ``None`` if the server answered at once, without a task."""
        self._requests = requests
        self._read = read
        self._first = self._last = first
        self._result = result
        self._sending = trio.Lock()

    def __repr__(self) -> str:
        status = "completed" if self._result is not None else self._last.status.status if self._last else "?"
        return f"<TaskHandle {'without a task' if self.id is None else f'{self.id[:6]}…'} {status}>"

    async def status(self, *, timeout: float | None = None) -> TaskStatus:
        """Asks the server for the state of the task. MCP 2025-11-25, Tasks, Getting Tasks; SEP-2663.

        Args:
            timeout: Seconds without an answer, also over a lost connection; by default the client's.

        Raises:
            TaskNotFound: The server knows no such task, or no longer.
            RpcError: The server answered with another error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended, and did not come back in time.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session, and did not begin another one in time.
        """
        if self.id is None:
            await trio.lowlevel.checkpoint()
            return TaskStatus(id="", status="completed")
        return (await self.look(self._options(timeout, None))).status

    def updates(self, *, timeout: float | None = None) -> AsyncIterator[TaskStatus]:
        """Iterates over the task's states and messages as they change; the terminal state is the last one.

        It looks as often as the server asks for, within 0.1 s and 60 s, and at once when the server tells of a change.
        Changes that follow each other faster may be left out. Raises as `status` does; a task that is forgotten while
        it is iterated over raises `TaskNotFound`. A program that stops before the end has nothing to close.

        Args:
            timeout: Seconds that one look at the task may take; by default the client's.
        """
        return _Updates(self, self._requests, self._options(timeout, None))

    async def result(
        self,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> CallToolResult:
        """Waits until the task has ended and returns what the call of the tool would have returned.

        What the task asks is answered by the client's handlers. Cancelled, or out of time, it leaves the task running:
        `cancel` ends it.

        Args:
            timeout: Seconds that one look at the task may take, also over a lost connection; by default the client's.
                The pauses between looks do not count: while the server answers looks, it is not silent.
            cap: Seconds in all; by default without an end, for a task may take days.
            on_progress: A function, sync or async, that is called with each change of the task's state or message, as
                a `Progress` whose ``progress`` counts them.

        Raises:
            TaskCancelled: The task was cancelled.
            TaskNotFound: The server knows no such task, or no longer.
            RpcError: The call failed, or the server answered with another error.
            RemoteProtocolError: The answer cannot be understood, or the task asks without an end.
            CallTimeout: A clock ran out.
            ConnectionLost: The connection ended, and did not come back in time.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session, and did not begin another one in time.
            InputRequired: The task asks for input, and the client has ``answer_input=False``: `answer` it.
        """
        if self._result is None:
            # A task's own time has no end unless the program sets one.
            options = self._options(timeout, math.inf if cap is None else cap, on_progress)
            return self.read(await self.wait(options, options.cap))
        await trio.lowlevel.checkpoint()
        return self._result

    async def answer(self, answers: Mapping[str, InputResponse], *, timeout: float | None = None) -> None:
        """Answers questions of the task, in place of the client's handlers. SEP-2663, ``tasks/update``.

        Some of the questions may be left for later. A question that was answered elsewhere is passed over.

        Args:
            answers: The answers by the keys of `InputRequired`.
            timeout: Seconds without an answer; by default the client's.

        Raises:
            RemoteProtocolError: In a session the server asks by requests of its own, which handlers answer.
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """
        era, method = self._requests.era, self._requests.dialect.update_method
        if method is None or self.id is None:
            raise RemoteProtocolError(
                "this task takes no answers: the server asks by requests, or not at all"
            )
        plain = {key: era.unstructure(each) for key, each in answers.items()}
        await self._requests.ask(method, self.id, {"inputResponses": plain}, self._options(timeout, None))

    async def send(self, message: Any, *, timeout: float | None = None) -> None:
        """Sends a message to the function while it runs, which takes it from ``ctx.inbox``; at whatever node that is.

        Messages arrive in the order of these calls. The function may read them at any time, or never: that the message
        is there is all that this says. Those that it has not taken are kept with the task, also for a node that runs it
        again. Cancelled, or after a loss of the connection, the message may be there or not.

        Args:
            message: Any JSON value.
            timeout: Seconds in all; by default the client's.

        Raises:
            CallEnded: The task has ended.
            InboxUnavailable: The server takes no messages for tasks: it is not one of this engine.
            Overloaded: Too many messages wait for the function, for the whole time.
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """
        if self.id is None:
            await trio.lowlevel.checkpoint()
            raise CallEnded()
        # In the order of the calls of this.
        async with self._sending:
            await self._requests.send(self.id, message, self._options(timeout, None))

    async def cancel(self, *, timeout: float | None = None) -> None:
        """Cancels the task; one that has ended stays as it is. MCP 2025-11-25, Tasks, Cancelling Tasks; SEP-2663.

        A stateless server may take note of it only, and end the task later, or never: `status` tells.

        Args:
            timeout: Seconds without an answer; by default the client's.

        Raises:
            TaskNotFound: The server knows no such task, or no longer.
            McpError: What else `status` raises.
        """
        if self.id is None:
            await trio.lowlevel.checkpoint()
            return
        options = self._options(timeout, None)
        try:
            await self._requests.ask("tasks/cancel", self.id, {}, options)
        except TaskNotFound:
            # In sessions one that has ended is refused with the same code as one that is unknown.
            await self.look(options)

    # -- for the client ----------------------------------------------------------------------------------------------

    def read(self, raw: dict[str, Any]) -> CallToolResult:
        """Returns a raw result as what it is, and keeps it; raises `RemoteProtocolError` if it is malformed."""
        self._result = self._read(raw)
        return self._result

    async def wait(
        self, options: CallOptions, left: float, answering: Answering | None = None
    ) -> dict[str, Any]:
        """Waits for the raw result, as ``left`` of the cap allows; raises as `result` does.

        Questions are answered by ``answering``, if that is given, in place of the client's handlers.
        """
        with trio.move_on_after(left):
            return await self._until_ended(options, answering)
        raise CallTimeout("tools/call", "cap", options.cap)

    async def wait_or_cancel(
        self, options: CallOptions, began: float, answering: Answering | None = None
    ) -> dict[str, Any]:
        """As `wait`, for a call that ``began`` before; the task is cancelled, in at most two seconds, if it fails."""
        left = max(0.0, options.cap - (trio.current_time() - began))
        try:
            return await self.wait(options, left, answering)
        except BaseException:
            if self._last is None or not self._last.status.is_terminal:
                with trio.move_on_after(CANCEL_TIMEOUT, shield=True):
                    await self._give_up()
            raise

    async def _give_up(self) -> None:
        assert self.id is not None
        options = CallOptions(idle=CANCEL_TIMEOUT, cap=CANCEL_TIMEOUT)
        try:
            await self._requests.ask("tasks/cancel", self.id, {}, options, patiently=False)
        except McpError as error:
            log.debug("a task could not be cancelled", task=self.id[:6], error=str(error))

    async def _until_ended(self, options: CallOptions, answering: Answering | None) -> dict[str, Any]:
        id = self.id
        assert id is not None
        asking = CallOptions(idle=options.idle, cap=options.cap)
        questions = _Questions(self._requests, id, asking, answering)
        reports = _Reports(options.on_progress)
        watched = self._requests.watching(id)
        looks = 0
        # What created the task is the first look, after which the server wants a pause as after any other.
        look, self._first = self._first, None
        try:
            while True:
                if look is None:
                    watched.looking()
                    look = await self.look(asking)
                await reports.take(look.status)
                if look.status.is_terminal:
                    return await self._outcome(id, look, asking)
                if look.status.status == "input_required":
                    result = await questions.answer(look)
                    if result is not None:
                        return result
                looks += 1
                await watched.pause(pause_before_look(look.status.poll_interval, looks))
                look = None
        finally:
            self._requests.leave(id, watched)

    async def look(self, options: CallOptions) -> TaskLook:
        """Asks for the task, and keeps the answer as the newest; raises as `status` does."""
        assert self.id is not None
        self._first, self._last = None, await self._requests.look(self.id, options)
        return self._last

    async def _outcome(self, id: str, look: TaskLook, options: CallOptions) -> dict[str, Any]:
        if look.status.status == "cancelled":
            raise TaskCancelled(id, look.status.message)
        if look.error is not None:
            raise look.error
        if look.result is not None:
            return look.result
        method = self._requests.dialect.result_method
        if method is None:
            raise RemoteProtocolError("the server says that a task has ended, without its result")
        return await self._requests.ask(method, id, {}, options)

    def _options(
        self, timeout: float | None, cap: float | None, on_progress: ProgressCallback | None = None
    ) -> CallOptions:
        return call_options(self._requests.requests.options, timeout, cap, on_progress)


class _Updates:
    """The changes of a task, for one who iterates over them.

    It is not a generator, because a generator that is left before its end would have to be closed.
    """

    def __init__(self, handle: TaskHandle, requests: TaskRequests, options: CallOptions) -> None:
        self._handle = handle
        self._requests = requests
        self._options = options
        self._watched: TaskChanges | None = None
        self._leave: Callable[[], object] = lambda: None
        self._shown: tuple[str, str | None] | None = None
        self._looks = 0
        self._pause = 0.0
        self._ended = False

    def __aiter__(self) -> _Updates:
        return self

    async def __anext__(self) -> TaskStatus:
        if self._ended:
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException:
            self._end()
            raise

    async def _next(self) -> TaskStatus:
        id = self._handle.id
        if id is None:
            self._end()
            return await self._handle.status()
        if self._watched is None:
            self._watched = self._requests.watching(id)
            # Once this iterator is dropped, its watch ends.
            leave = weakref.finalize(self, self._requests.leave, id, self._watched)
            leave.atexit = False
            self._leave = leave
        while True:
            if self._looks:
                await self._watched.pause(self._pause)
            self._watched.looking()
            status = (await self._handle.look(self._options)).status
            self._looks += 1
            self._pause = pause_before_look(status.poll_interval, self._looks)
            if status.is_terminal:
                self._end()
            if (status.status, status.message) != self._shown:
                self._shown = (status.status, status.message)
                return status
            if status.is_terminal:
                raise StopAsyncIteration

    def _end(self) -> None:
        self._ended = True
        self._leave()


@attrs.define
class _Reports:
    """The changes of a task as reports of progress."""

    on_progress: ProgressCallback | None
    _count: int = 0
    _shown: tuple[str, str | None] | None = None

    async def take(self, status: TaskStatus) -> None:
        seen = (status.status, status.message)
        if self.on_progress is None or seen == self._shown:
            return
        self._shown = seen
        if status.message is None and self._count == 0:
            # A first state without a message is not worth a report.
            return
        self._count += 1
        outcome = self.on_progress(Progress(self._count, None, status.message or status.status))
        if inspect.isawaitable(outcome):
            await outcome


class _Questions:
    """Answers what a task asks, each question once."""

    def __init__(
        self, requests: TaskRequests, id: str, options: CallOptions, answering: Answering | None = None
    ) -> None:
        self._requests = requests
        self._answering = answering
        self._id = id
        self._options = options
        self._answered: set[str] = set()
        self._rounds = 0

    def __repr__(self) -> str:
        return f"<_Questions {len(self._answered)} answered>"

    async def answer(self, look: TaskLook) -> dict[str, Any] | None:
        """Answers what is new, or lets the server ask in a session; returns the raw result if that came of it."""
        dialect = self._requests.dialect
        if dialect.result_method is not None:
            return await self._be_asked(dialect.result_method, look)
        assert dialect.update_method is not None
        new = {key: each for key, each in look.questions.items() if key not in self._answered}
        if not new:
            return None
        requests, era = self._requests.requests, self._requests.era
        questions = {} if self._answering else requests.handlers.read_requests(new, era)
        if questions and not requests.client_options.answer_input:
            raise InputRequired(dict(questions), None)
        if self._rounds >= requests.client_options.max_rounds:
            raise RemoteProtocolError(f"the task still asks for input after {self._rounds} rounds")
        self._rounds += 1
        answers = await (
            self._answering(new) if self._answering else requests.handlers.fulfil_all(questions, era)
        )
        self._answered.update(answers)
        await self._requests.ask(dialect.update_method, self._id, {"inputResponses": answers}, self._options)
        return None

    async def _be_asked(self, method: str, look: TaskLook) -> dict[str, Any] | None:
        """Waits for the result in a request through which the server asks, MCP 2025-11-25, Tasks, Input Required."""
        # It is answered when the task has ended, so only the whole time bounds it.
        options = CallOptions(idle=math.inf, cap=self._options.cap)
        try:
            return await self._requests.ask(method, self._id, {}, options)
        except RpcError as error:
            now = await self._requests.look(self._id, self._options)
            if now.status.status == "cancelled":
                raise TaskCancelled(self._id, now.status.message) from error
            raise
