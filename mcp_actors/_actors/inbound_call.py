"""An inbound call: a request of the peer in flight. It has at most one task, one cancel scope and one answer.

How a call ends, by the first row that fits:

===============================================  ==============================================================
the peer cancelled it                            nothing is sent, whatever the handler returned or raised
the handler asked for input                      the input-required result that it left (`InboundCall.replace`)
an operator ended it                             the error that was given (`InboundCall.end_with`)
the handler returned                             the result, in the form of the request's revision
`RpcError`                                       that error
any other exception, `BaseException` included,   the answer that the responder makes of it (`Responder.failure`)
and an unexplained `trio.Cancelled`
the session ends                                 nothing is sent
===============================================  ==============================================================

A handler is called in the turn of the reader. It returns its result, which is sent at once (`InboundCall.answer_now`),
or the rest of its work as a `Continuation`, which runs in a task (`mcp_actors._actors.task_pool`). A `Deferred` needs
no task while it waits for one answer, which is read in the turn of another task (`InboundCall.begin_without_task`):

A worker of the pool makes the first step of a continuation by hand (`InboundCall.begin`). Most calls end with it: then
the answer is sent, and no other task has seen the call, so that it needed no scope, no coroutine of its own and no
context but a fresh copy. What makes a call be born, which is to go on as an actor in `InboundCall.run`:

==========================================  ===================================================================
before its first step                       it was cancelled, it waits for a place, or telemetry observes it
in its first step                           its function waits, as it does to report progress
its function raises                         the errors of calls are decided in one place, which is `run`
its answer finds no room                    it waits for the peer, and keeps its place
==========================================  ===================================================================

=====================================  ========================================================================
what happens to a call without a task  how it goes on
=====================================  ========================================================================
the outcome arrives                    it is sent in the turn of its reader, or the rest of the call gets a task
progress arrives that is passed on     the rest of the call gets a task
the peer cancels it                    it is abandoned, and nothing is sent
an operator ends it                    it is abandoned, and the error is sent
its session ends                       the session waits for it as for a task, and abandons it when tasks are cancelled
=====================================  ========================================================================

A function may go on after its request was answered, or run without one: then it is a `DetachedCall`, whose answer is
returned and not sent, and whose client is reached through a `Voice`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import CoroutineType, FrameType
from typing import Any, ClassVar, NoReturn, Protocol, Self, runtime_checkable

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.beats import Beats
from mcp_actors._actors.deadlines import in_time
from mcp_actors._actors.limits import Admission, Limiters
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.responses import InvalidResult, failure_frame, post_answer, too_long, too_long_frame
from mcp_actors._eras.era import Invocation, shown_target
from mcp_actors._wire.codec import RequestId, decode_value, encode_notification, encode_reply
from mcp_actors.abc import Frame, HttpRequest, Outlet, Telemetry
from mcp_actors.errors import INTERNAL_ERROR, DeadlineExceeded, LocalProtocolError, McpError, RpcError
from mcp_actors.supervision.containment import Containment, cancellation_in, crash_in, sole_cause
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CALL_WORKER
from mcp_actors.supervision.tracebacks import with_users_frames
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "CallOwner",
    "CallStatistics",
    "Continuation",
    "Deferred",
    "DetachedCall",
    "DispatchRules",
    "InboundCall",
    "Responder",
    "SupportsInbox",
    "SupportsKept",
    "SupportsWaitUntilRead",
    "Voice",
    "finished",
    "statistics_of",
    "title_of",
]


class DispatchRules(msgspec.Struct, frozen=True):
    """The differences between dispatchers of different sides and carriers."""

    answers_malformed: bool
    """Whether broken frames are answered: servers answer, clients count."""
    repeated_ids: bool = False
    """Whether requests in flight may have the same id, since each has an outlet of its own."""
    session: bool = True
    """Whether there is a session: without one nothing is remembered, and the client cannot be sent requests."""


class Continuation(partial[Any]):
    """The rest of a handler's work: called without arguments, in the call's own task, it returns an awaitable result.

    A continuation that is never called has done nothing.
    """

    begun = False
    """Whether it was begun without a task, and waits for an answer that another task reads."""


async def finished(result: Any) -> Any:
    """Returns the result of a handler, which may be a `Continuation`, in the task of its call."""
    return await result() if isinstance(result, Continuation) else result


class Deferred(Continuation):
    """A continuation that may need no task: it waits for one answer only, and another task reads that.

    It is either called, as any continuation, or begun. Once begun, it ends by `outcome` or by `abandon`, or it is
    called after all, and waits for the rest.
    """

    def begin(self, done: Callable[[], None]) -> bool:
        """Begins without waiting; returns false, having done nothing, where that is not possible.

        Args:
            done: Is called once, when the outcome is there. A peer in this process may send it before this returns.

        Raises:
            RpcError: The call fails; it was not begun.
        """
        raise NotImplementedError

    def outcome(self) -> Any:
        """Returns the result, or a `Continuation` that waits for something else; raises the reason why the call failed.

        It is called once, after ``done``. It may return this object, which then waits for the rest when it is called:
        a report of progress has come, for example, which a task has to pass on.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Ends it without an outcome, which is not needed any more. Never waits."""
        raise NotImplementedError


class Responder(Protocol):
    """The side that a dispatcher belongs to: it knows what the methods do."""

    @property
    def stamp(self) -> Mapping[str, Any]:
        """The members that the modern era adds to results."""

    @property
    def beats(self) -> Beats | None:
        """The sender of beats for calls; ``None`` on a side that reports no progress."""

    @property
    def telemetry(self) -> Telemetry | None:
        """The observer of each call, in both directions."""

    @property
    def call_class(self) -> type[InboundCall]:
        """The class of the calls: the observed one where there is telemetry."""

    def is_registered(self, method: str, target: str) -> bool:
        """Whether ``target`` is a name that is registered at this side, and not only a text of the peer."""

    def runs_in_place(self, method: str, target: str | None) -> bool:
        """Whether `respond` may run a function of the user's; if not, that runs in the task of the call."""

    def respond(self, call: InboundCall) -> Any:
        """Returns the result, or a `Continuation` when the call needs a task. Never waits."""

    def failure(self, call: InboundCall, error: BaseException) -> Any:
        """Returns what answers a call whose handler raised ``error``, which is not an `RpcError`.

        It is a result, an `RpcError`, or another exception: it is logged, and answered with -32603 without its text.
        """


class CallOwner(Protocol):
    """The dispatcher that a call belongs to, seen from the call."""

    name: str
    responder: Responder
    rules: DispatchRules
    limiters: Limiters

    @property
    def peer(self) -> str: ...

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: InboundCall | None = None
    ) -> dict[str, Any]: ...

    def forget(self, call: InboundCall) -> None:
        """Takes the call out of the table, so that its id may be used again. Idempotent."""


# The official TypeScript clients handle answers at once but notifications a step later, and forget the callback for the
# reports of a call when its answer comes. What one read brings them is handled in one step, so a report that is read
# together with the answer is lost. Therefore the answer to a call that reported is sent only when the peer has read the
# report, or is likely to have. Only that call waits: the others on its connection, and calls without reports, do not.

# Seconds that an answer waits at most. Over a network that is slower than this the two arrive apart anyway.
READING_LIMIT = 0.1
# Seconds between the two where neither the binding nor a ping can show that the peer has read.
READING_TIME = 0.005

# Names and versions of clients that handle what they read strictly in order: ours, and the official Python SDK's if
# the program that uses it gives no other. `None` is any version. A wrong name costs the peer that gives it a report.
_HANDLE_IN_ORDER: frozenset[tuple[str, str | None]] = frozenset((("mcp-actors", None), ("mcp", "0.1.0")))


@runtime_checkable
class SupportsWaitUntilRead(Protocol):
    """An outlet on which messages of one call may be read together, unlike those with a stream for each call."""

    async def wait_until_read(self) -> bool:
        """Waits until the peer has read what was sent before, and returns true; false if that cannot be known."""


def _handles_in_order(info: Any) -> bool:
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else (None, None)
    return isinstance(name, str) and (
        (name, None) in _HANDLE_IN_ORDER or (isinstance(version, str) and (name, version) in _HANDLE_IN_ORDER)
    )


class InboundCall(msgspec.Struct, eq=False):
    """One request of the peer in flight.

    Its ``state`` is ``"running"`` from the start, ``"waiting"`` while it has no place, ``"cancelled"`` or
    ``"replaced"`` once its scope is cancelled, and ``"answered"`` when nothing may be sent any more.
    """

    # A struct, since one is made for each call: msgspec fills it without a function of ours.
    invocation: Invocation
    owner: CallOwner
    outlet: Outlet
    started: float
    """The time at which it was read."""
    key: Any = None
    """The key in the owner's table: the id, unless another call in flight has the same."""
    reports: Any = None
    """The `ProgressReports` of a call that runs and was made with a progress token."""
    scope: trio.CancelScope | None = None
    admission: Admission | None = None
    continuation: Continuation | None = None
    state: str = "running"
    replacement: Any = None
    """What is sent in place of the function's result: questions, or the error with which an operator ended the call."""
    _on_drain: Callable[[], None] | None = None
    effects: Any = None
    """What its function does once, which its server keeps."""
    approval: Any = None
    """What is known of the approval of a person, for the state of its next round."""
    withdrawn: bool = False
    """Whether the peer has said that it does not want the answer (MCP, Cancellation), and did not just go away."""
    refused: bool = False
    """Whether its arguments did not fit, so that its function was not begun."""
    raised: bool = False
    """Whether its function was begun, and has raised its error."""
    link: Any = None
    """What its client reads of its parts and sends to its function, for those that asked for that."""

    def __repr__(self) -> str:
        return f"<InboundCall {self.id!r} {self.invocation.method.name} {self.state}>"

    # -- from outside ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> RequestId:
        """The request's id, with its JSON type."""
        return self.invocation.id

    @property
    def client_link(self) -> Voice | None:
        """The way to the client of a detached call; ``None`` for a call that sends its own messages."""
        return None

    @property
    def was_answered(self) -> bool:
        """Whether its client has an answer already, while its function goes on."""
        return False

    @property
    def cancelled(self) -> bool:
        """Whether the peer no longer wants the answer."""
        return self.state == "cancelled"

    @property
    def cut_short(self) -> bool:
        """Whether its scope was cancelled, by `cancel`, `replace` or `end_with`. Asking the scope takes longer."""
        return self.state == "cancelled" or self.state == "replaced"

    @property
    def has_no_task(self) -> bool:
        """Whether it was begun without a task."""
        return self.continuation is not None and self.continuation.begun

    @property
    def waits(self) -> bool:
        """Whether its first step was made, and its function waits for something."""
        return self.continuation is not None and self.continuation.func is _rest_of

    @property
    def is_open_ended(self) -> bool:
        """Whether the call runs until the session ends, as a subscription does."""
        return self._on_drain is not None

    def cancel(self, reason: str | None = None) -> None:
        """The peer no longer wants the answer: the handler sees `trio.Cancelled` and nothing is sent."""
        if self.state != "answered":
            self.state = "cancelled"
            self._unwind(f"cancelled by the peer: {reason or 'no reason given'}")

    def end_with(self, error: RpcError) -> None:
        """An operator ends the call: the handler sees `trio.Cancelled`, and the peer is sent ``error``."""
        if self.state == "running" or self.state == "waiting":
            self.state = "replaced"
            self.replacement = error
            self._unwind(error.message)

    def answer_with(self, error: RpcError) -> None:
        """Sends the peer ``error`` now, whatever the handler still does, if nothing was sent. Never waits."""
        if self.state != "answered":
            self.end_now(failure_frame(self.invocation, error))

    def _unwind(self, reason: str) -> None:
        if self.scope is not None:
            self.scope.cancel(reason=reason)
        elif self.has_no_task:
            assert isinstance(self.continuation, Deferred)
            self.continuation.abandon()
            self.end_now(self.replacement and failure_frame(self.invocation, self.replacement))

    def end_now(self, frame: Frame | None) -> None:
        """Ends a call that has no task, with an answer if there is one. Never waits."""
        self.state = "answered"
        self.owner.forget(self)
        if frame is None:
            self.outlet.settle()
        else:
            post_answer(frame, self.outlet)
        self.close()

    def drain(self) -> None:
        """Ends a call that would run until the session ends, because the connection is about to end."""
        if self._on_drain is not None:
            self._on_drain()

    # -- for the handler's context ---------------------------------------------------------------------------------

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Registers how a call that runs until the session ends (a subscription) is ended gracefully."""
        self._on_drain = callback
        # It has no progress and is not expected to end, so it needs no beats.
        if self.reports is not None:
            self.reports.stop()

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification that belongs to this call; after its end or a cancellation nothing is sent.

        Raises:
            trio.BrokenResourceError: The peer cannot be reached.
            LocalProtocolError: The message is longer than the outlet takes.
        """
        if self.state == "running":
            if method == "notifications/progress":
                self.invocation.reported = True
            try:
                await self.outlet.send(Frame(encode_notification(method, params), self.id, method=method))
            except trio.BrokenResourceError:
                # A client may leave at any time, which is not a failure of the handler.
                self.cancel("the client left")
                raise

    async def ask(self, method: str, params: dict[str, Any], *, idle: float, cap: float) -> dict[str, Any]:
        """Sends a request to the client on this call's stream; cancelling the call cancels it at the other side."""
        # A client that has sent a deadline knows what it means in a question.
        options = CallOptions(idle=idle, cap=cap, sends_deadline=self.invocation.deadline is not None)
        return await self.owner.request(method, params, options, call=self)

    def close_stream(self) -> None:
        """Closes the stream on which the answer is awaited, if the client comes back by itself for the rest."""
        if self.state == "running":
            self.outlet.close_stream()

    async def replace(self, result: Any) -> None:
        """Ends the call with ``result`` instead of what the handler would return. Never returns.

        The handler is unwound like any cancelled code, so that an ``except Exception`` in it cannot stop this.
        """
        assert self.scope is not None
        if self.state == "running":
            self.state = "replaced"
            self.replacement = result
            self.scope.cancel(reason="the client is asked for input; its retry runs this handler again")
        await trio.sleep_forever()

    # -- the actor -------------------------------------------------------------------------------------------------

    born_at_once: ClassVar[bool] = False
    """Whether every call of the class is born before its first step."""

    def answer_now(self) -> Frame | None:
        """Returns the answer if it can be given at once, and ``None`` when the call needs a task of its own."""
        try:
            result = self.owner.responder.respond(self)
            if not isinstance(result, Continuation):
                return self._result_frame(result)
            self.continuation = result
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.failure(error)
        return None

    def run_in_time(self) -> None:
        """Lets the continuation end at the deadline of the request; no such call goes without a task."""
        deadline = self.invocation.deadline
        assert deadline is not None
        self.continuation = Continuation(in_time, self.continuation, deadline, title_of(self.invocation))

    def begin_without_task(self, start: Callable[[InboundCall], None]) -> bool:
        """Begins a call whose continuation needs no task now; returns false, having done nothing, if it needs one.

        Args:
            start: Starts the task that the rest of it may need.
        """
        deferred = self.continuation
        assert self.admission is not None
        # Calls begin in the order of their requests.
        if not isinstance(deferred, Deferred) or self.admission.ahead:
            return False
        self._watch_progress()
        deferred.begun = True
        try:
            deferred.begun = deferred.begin(partial(self._deferred_done, deferred, start))
        except Exception as error:
            self.end_now(self.failure(error))
            return True
        return deferred.begun

    def _deferred_done(self, deferred: Deferred, start: Callable[[InboundCall], None]) -> None:
        # The task that reads the answer serves other calls too, for which this one must not fail.
        with Containment(CALL_WORKER, self.fail):
            try:
                # An answer waits until the client has read the reports before it, which takes a task. The deferred
                # continuation can still be abandoned, until that has begun.
                result = deferred if self.invocation.reported else deferred.outcome()
                self.continuation = result if isinstance(result, Continuation) else None
                if self.continuation is not None:
                    start(self)
                    return
                frame = self._result_frame(result)
            except Exception as error:
                self.continuation = None
                frame = self.failure(error)
            self.end_now(frame)

    def begin(self, context: Context, scope: trio.CancelScope) -> Coroutine[Any, Any, bool] | None:
        """Makes the first step of the continuation in ``context``, unless the call has to be born before that.

        Returns `run`, in which the rest of the call is, or ``None`` if the call has ended. If the call `waits`, nothing
        is left that has to begin in ``context``.

        Args:
            context: The context variables of the call.
            scope: The cancel scope of the task that calls this, and that runs the rest.
        """
        admission, continuation = self.admission, self.continuation
        if self.state == "answered":
            # It was abandoned before its turn came.
            return None
        assert admission is not None
        assert continuation is not None
        if self.born_at_once or self.state != "running" or admission.ahead:
            return self.run(scope)
        # The function may be asked to end, or ask for input, before it waits.
        self.scope = scope
        try:
            begun = context.run(_first_step, continuation)
            if begun.__class__ is BegunCoroutine:
                self.continuation = Continuation(_rest_of, begun)
                return self.run(scope)
            frame = self._result_frame(begun)
        except BaseException as error:
            self.continuation = Continuation(_failing, [error])
            return self.run(scope)
        if self.state != "running":
            return self.run(scope)
        self.continuation = None
        self.state = "answered"
        self.owner.forget(self)
        if not self._is_sent(frame):
            return self._answer_later(frame)
        self.scope = self.admission = None
        admission.release()
        return None

    async def run(self, scope: trio.CancelScope) -> bool:
        """Runs the continuation inside ``scope`` and sends what comes of it.

        Returns whether it was `cut_short`: then call `finish` and `close` outside of the scope; else it is closed.
        """
        self.scope = scope
        self._watch_progress()
        if self.state != "running":
            scope.cancel(reason="the call was cancelled before it began")
        try:
            frame = await self._outcome()
            if self.invocation.reported:
                await self._wait_for_last_report()
            if self.state == "running":
                await self._send(frame)
        finally:
            # Compared here, since asking `cut_short` for each call is measurable.
            state = self.state
            if state != "cancelled" and state != "replaced":
                self.close()
        return state != "answered"

    def _watch_progress(self) -> None:
        """Makes the reports of a call whose client wants progress, and that is expected to end."""
        token, beats = self.invocation.progress_token, self.owner.responder.beats
        if token is not None and beats is not None and self.reports is None and self._on_drain is None:
            self.reports = beats.watch(self, token)

    async def finish(self) -> None:
        """Sends what replaces the answer, outside of the scope that was cancelled."""
        frame = None
        if self.state == "replaced":
            if self.invocation.reported:
                await self._wait_for_last_report()
            try:
                frame = self._frame_of(self.replacement)
            except Exception as error:
                frame = self.failure(error)
        await self._send(frame)

    def refuse(self, error: RpcError) -> None:
        """Closes a call that gets no place, and whose request is answered with ``error``."""
        self.state = "answered"
        self.close()

    def fail(self, error: BaseException) -> None:
        """Answers a call that a defect of the engine has ended, unless the call itself was cancelled."""
        if self.state != "answered" and crash_in(error) is not None:
            self.end_now(failure_frame(self.invocation, error))
        self.close()

    def close(self) -> None:
        """Ends the call: its id may be used again, and its place and its scope are free. Idempotent."""
        # The scope, the continuation and what it leads to refer to each other and to what the peer sent.
        self.scope = self.continuation = self._on_drain = self.replacement = None
        if self.reports is not None:
            self.reports.stop()
            self.reports = None
        if self.state != "answered":
            self.owner.forget(self)
        admission, self.admission = self.admission, None
        if admission is not None:
            admission.release()

    async def _send(self, frame: Frame | None) -> None:
        # From here on a cancellation comes too late, as the protocol allows (MCP, Cancellation, Timing Considerations).
        self.state = "answered"
        self.owner.forget(self)
        if frame is None:
            self.outlet.settle()
        elif not self._is_sent(frame):
            await self._send_when_there_is_room(frame)

    def _is_sent(self, frame: Frame) -> bool:
        """Sends the answer if that needs no waiting, and says whether there is nothing more to send."""
        try:
            return self.outlet.send_nowait(frame)
        except trio.BrokenResourceError:
            log.debug("answer not sent: the connection is gone", id=self.id)
        except LocalProtocolError:
            self._post_too_long(frame)
        return True

    async def _send_when_there_is_room(self, frame: Frame) -> None:
        # The call keeps its place meanwhile: a peer that does not read its answers gets no further calls.
        try:
            await self.outlet.send(frame)
        except trio.BrokenResourceError:
            log.debug("answer not sent: the connection is gone", id=self.id)

    async def _answer_later(self, frame: Frame) -> bool:
        """Sends the answer of a call that has ended with its first step; returns what `run` does."""
        try:
            await self._send_when_there_is_room(frame)
        finally:
            self.close()
        return False

    def _post_too_long(self, frame: Frame) -> None:
        post_answer(too_long_frame(self.id, len(frame.data), self.outlet.longest), self.outlet)

    async def _outcome(self) -> Frame | None:
        continuation, self.continuation = self.continuation, None
        assert continuation is not None
        try:
            if self.admission is not None and self.admission.ahead:
                await self._wait_for_admission(self.admission)
            if self.state != "running" and continuation.func not in _BEGUN:
                await trio.lowlevel.checkpoint()
            result = await continuation()
            return self._result_frame(result)
        except (Exception, GeneratorExit) as error:
            return self._failed(with_users_frames(sole_cause(error), error))
        except BaseException as error:
            # What was raised is not given a name: this frame is in its traceback.
            if crash_in(error) is error:
                return self._failed(with_users_frames(sole_cause(error), error))
            if crash_in(error) is None:
                raise
            log.warning("a handler raised while it was cancelled", id=self.id, exc_info=error)
            raise cancellation_in(error) from None

    async def _wait_for_admission(self, admission: Admission) -> None:
        if self.state == "running":
            self.state = "waiting"
        deadline = self.invocation.deadline
        try:
            with trio.move_on_at(math.inf if deadline is None else deadline) as scope:
                await admission.wait()
        finally:
            if self.state == "waiting":
                self.state = "running"
        if scope.cancelled_caught:
            raise DeadlineExceeded(title_of(self.invocation), begun=False)

    def _failed(self, error: BaseException) -> Frame | None:
        if self.cut_short:
            log.debug("a cancelled handler raised while it cleaned up", id=self.id, exc_info=error)
            return None
        return self.failure(error)

    def failure(self, error: BaseException) -> Frame:
        if isinstance(error, RpcError):
            return failure_frame(self.invocation, error)
        try:
            return self._frame_of(self.owner.responder.failure(self, error))
        except Exception as defect:
            return failure_frame(self.invocation, defect)

    def _frame_of(self, answer: Any) -> Frame:
        if isinstance(answer, BaseException):
            return failure_frame(self.invocation, answer)
        return self._result_frame(answer)

    def _result_frame(self, result: Any) -> Frame:
        """Returns the successful response, in the form of the request's revision.

        Raises:
            RpcError: It is longer than the outlet takes.
            InvalidResult: JSON cannot hold the result.
        """
        invocation, longest = self.invocation, self.outlet.longest
        try:
            sealed = invocation.era.seal(result, invocation.method, self.owner.responder.stamp)
            data = encode_reply(invocation.id, sealed)
        except (TypeError, ValueError) as error:
            raise InvalidResult(str(error)) from error
        if len(data) > longest:
            raise RpcError(INTERNAL_ERROR, too_long(len(data), longest))
        return Frame(data, invocation.id, True)

    async def _wait_for_last_report(self) -> None:
        """Waits as long as the answer to a call that reported progress has to, for at most `READING_LIMIT`.

        Where the binding cannot tell what the peer has read, a ``ping`` does, which every peer of the legacy era
        answers (MCP 2025-11-25, Ping). Cancelled, it has changed nothing.
        """
        outlet, peer = self.outlet, self.invocation.peer
        if not isinstance(outlet, SupportsWaitUntilRead) or _handles_in_order(peer.raw_info):
            return
        with trio.move_on_after(READING_LIMIT), suppress(McpError):
            if not await outlet.wait_until_read():
                if "ping" in self.invocation.era.client_methods:
                    options = CallOptions(idle=math.inf, cap=math.inf, cancellable=False)
                    await self.owner.request("ping", {}, options)
                else:
                    await trio.sleep(READING_TIME)

    def statistics(self) -> CallStatistics:
        """Returns a snapshot of the call."""
        session = self.owner.name if self.owner.rules.session else None
        return statistics_of(self.invocation, trio.current_time() - self.started, self.state, session)


class BegunCoroutine:
    """Awaits the rest of a coroutine whose first step was made by hand, and shows its frames to Trio.

    Args:
        waits_for: What the coroutine yielded in its first step.
    """

    __slots__ = ("_coroutine", "_is_awaited", "_waits_for", "close", "send", "throw")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: object) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._is_awaited = False
        # The coroutine's own methods, without a frame of ours between: Trio sends an exception as a value, and a
        # frame that has it as a local would be in its traceback.
        self.send = coroutine.send
        self.throw = coroutine.throw
        self.close = coroutine.close

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._is_awaited:
            return self._coroutine.send(None)
        # A coroutine of another library may yield anything, ``None`` too, of which Trio says what is wrong with it.
        self._is_awaited = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    @property
    def cr_frame(self) -> FrameType:
        """The frame of the coroutine, as that itself would have it."""
        frame: FrameType = self._coroutine.cr_frame  # type: ignore[attr-defined]
        return frame

    @property
    def cr_await(self) -> Any:
        """The awaitable that the coroutine awaits: in the end, the user's function."""
        return self._coroutine.cr_await  # type: ignore[attr-defined]


def _first_step(continuation: Continuation) -> Any:
    """Makes the first step of a continuation. Returns its result, or the rest of it as a `BegunCoroutine`."""
    coroutine = continuation()
    if coroutine.__class__ is not CoroutineType:
        coroutine = _awaiting(coroutine)
    try:
        return BegunCoroutine(coroutine, coroutine.send(None))
    except StopIteration as done:
        return done.value


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _rest_of(begun: BegunCoroutine) -> BegunCoroutine:
    return begun


async def _failing(errors: list[BaseException]) -> NoReturn:
    # The list is emptied, so that the frames of the traceback have nothing that leads to the error.
    raise errors.pop()


# What continues a call whose function has begun: it has to be awaited even if the call was cancelled meanwhile.
_BEGUN = (_rest_of, _failing)


# -- calls whose function goes on without its request --------------------------------------------------------------


class Voice(Protocol):
    """Takes what a detached function sends and asks its client; an extension gives it (`mcp_actors.extensions`)."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Takes a report of progress: `Context.progress`."""

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification: `Context.log` and `Context.notify`."""

    async def ask(self, questions: Mapping[str, t.InputRequest]) -> Mapping[str, t.InputResponse]:
        """Returns the client's answers by the same keys: `Context.ask`. The client has declared that it can answer."""

    def stop(self) -> None:
        """Is called by the engine when a call gets no more beats, of which a voice sends none."""


@runtime_checkable
class SupportsKept(Protocol):
    """A `Voice` of a call that another process may run again."""

    @property
    def kept(self) -> tuple[str, float] | None:
        """The unguessable id of the call, and the time in seconds since the epoch until which it may be run again.

        ``None`` if it is not run again.
        """


@runtime_checkable
class SupportsInbox(Protocol):
    """A `Voice` that brings messages of the client to the function."""

    @property
    def inbox(self) -> Any:
        """The `mcp_actors.extensions.Inbox` that the function reads."""


class DetachedCall(InboundCall):
    """A call without an outlet and without a place among the calls in flight; its answer is what `outcome` returns."""

    _voice: Any = None
    _was_answered: bool = True

    @classmethod
    def of(
        cls,
        invocation: Invocation,
        owner: CallOwner,
        http_request: HttpRequest | None,
        longest: int,
        voice: Voice,
        was_answered: bool = True,
    ) -> Self:
        """Returns the call, which is not begun.

        Args:
            invocation: The request; it is kept for as long as the function runs.
            owner: Its rules for failures apply: the session of the request, or the server.
            http_request: The request over HTTP that began it, ``None`` with other bindings.
            longest: Bytes of the longest outcome.
            voice: Takes what the function sends and asks the client.
            was_answered: Whether the client waits no longer for its outcome.
        """
        outlet = _NoOutlet(http_request, longest)
        now = trio.current_time()
        return cls(invocation, owner, outlet, now, reports=voice, _voice=voice, _was_answered=was_answered)

    def __repr__(self) -> str:
        return f"<DetachedCall {self.invocation.method.name}>"

    @property
    def client_link(self) -> Voice:
        voice: Voice = self._voice
        return voice

    @property
    def was_answered(self) -> bool:
        return self._was_answered

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._voice.notify(method, params)

    async def outcome(self, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Runs ``function`` and returns what the client of a plain call is sent: either ``result`` or ``error``.

        What ``function`` raises is logged and masked as it is for any call.
        """
        self.continuation = Continuation(function)
        deadline = self.invocation.deadline
        if deadline is not None:
            what = title_of(self.invocation)
            self.continuation = Continuation(in_time, function, deadline, what, began_before=True)
        frame = await self._outcome()
        assert frame is not None
        if len(frame.data) > self.outlet.longest:
            frame = too_long_frame(self.id, len(frame.data), self.outlet.longest)
        answer = decode_value(frame.data)
        return {name: answer[name] for name in ("result", "error") if name in answer}


class _NoOutlet:
    """The outlet of a detached call: it drops everything."""

    def __init__(self, http_request: HttpRequest | None, longest: int) -> None:
        self.http_request = http_request
        self.longest = longest

    def post(self, frame: Frame) -> None:
        """Does nothing."""

    def send_nowait(self, frame: Frame) -> bool:
        return True

    async def send(self, frame: Frame) -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing."""

    def close_stream(self) -> None:
        """Does nothing."""


# -- the snapshot of a call ----------------------------------------------------------------------------------------


@frozen_record(eq=False, repr=False)
class CallStatistics(ValueRecord):
    """A snapshot of an inbound call."""

    id: RequestId
    method: str
    target: str | None
    """The tool, prompt or resource that is called."""
    age: float
    """Seconds since it arrived."""
    state: str
    """``waiting`` for a place, ``running``, ``cancelled`` (its handler cleans up) or ``replaced`` (likewise, and the
    client is asked for input, or is sent the error with which an operator has ended the call)."""
    principal: str | None = None
    """The caller's name, if the transport has authenticated it."""
    session: str | None = None
    """The name of its session; ``None`` for a call that came by itself."""
    key: str | None = None
    """Names the call in an action of the live view, as long as it is in flight; ``None`` elsewhere."""


def title_of(invocation: Invocation) -> str:
    """Returns the method, with the name of what is called, for a text that the caller reads."""
    target = shown_target(invocation)
    return invocation.method.name if target is None else f"{invocation.method.name} {target:.80}"


def statistics_of(
    invocation: Invocation, age: float, state: str, session: str | None = None
) -> CallStatistics:
    """Returns the snapshot of a call in flight, by its request."""
    method, principal = invocation.method, invocation.principal
    name = shown_target(invocation)
    user = None if principal is None else principal.subject
    return CallStatistics(invocation.id, method.name, name, age, state, user, session)
