"""An inbound call: a request of the peer in flight. It has one task, one cancel scope and at most one answer.

How a call ends, by the first row that fits:

===============================================  ==============================================================
the peer cancelled it                            nothing is sent, whatever the handler returned or raised
the handler asked for input                      the input-required result that it left (`InboundCall.replace`)
the handler returned                             the result, in the form of the request's revision
`RpcError`                                       that error
any other exception, `BaseException` included,   what the responder makes of it (`Responder.failure`)
and a `trio.Cancelled` that nothing accounts for
the session ends                                 nothing is sent
===============================================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable

import attrs
import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.beats import Beats, ProgressReports
from mcp_actors._actors.limits import Admission, Limiters
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.responses import failure_frame, post_answer, result_frame, too_long_frame
from mcp_actors._eras.era import Invocation
from mcp_actors._wire.codec import RequestId, decode_value, encode_notification
from mcp_actors.abc import Frame, HttpRequest, Outlet, Telemetry
from mcp_actors.errors import LocalProtocolError, McpError, RpcError
from mcp_actors.supervision.containment import cancellation_in, crash_in, sole_cause
from mcp_actors.supervision.logging import log
from mcp_actors.types.records import ValueRecord

__all__ = [
    "Batch",
    "CallOwner",
    "CallStatistics",
    "Continuation",
    "Deferred",
    "DetachedCall",
    "DispatchRules",
    "InboundCall",
    "Responder",
    "SupportsWaitUntilRead",
    "Voice",
    "statistics_of",
    "wait_for_last_report",
]


# -- The differences between dispatchers, as a value -----------------------------------------------------


class DispatchRules(msgspec.Struct, frozen=True):
    """The differences between dispatchers of different sides and carriers."""

    answers_malformed: bool
    """Whether broken frames are answered: servers answer, clients count."""
    repeated_ids: bool = False
    """Whether requests in flight may have the same id, since each has an outlet of its own."""
    session: bool = True
    """Whether there is a session: without one nothing is remembered, and the client cannot be sent requests."""


# -- The values that a handler returns when its answer has to wait for something -------------------------


class Continuation(partial[Any]):
    """The rest of a handler's work: called without arguments, in the call's own task, it returns an awaitable result.

    A handler is called once, in the turn of whoever read the request. It returns its result if it has it, and a
    continuation if the call needs a task. A continuation that is never called has done nothing.
    """

    begun = False
    """Whether it was begun without a task, and waits for what somebody else reads."""


class Deferred(Continuation):
    """A continuation that may do without a task: all it waits for is one answer, and somebody else reads that.

    It is either called, as any continuation, or begun. What was begun ends by `outcome` or by `abandon`.
    """

    def begin(self, done: Callable[[], None]) -> bool:
        """Begins without waiting; returns false, having done nothing, where that is not possible.

        Args:
            done: Is called once, when there is an outcome. A peer in this process may have sent it before this returns.

        Raises:
            RpcError: The call fails; it was not begun.
        """
        raise NotImplementedError

    def outcome(self) -> Any:
        """Returns the result, or a `Continuation` where something else has to be waited for; raises why there is none.

        It is called once, after ``done``.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Ends it without an outcome: nobody waits for that any more. Never waits."""
        raise NotImplementedError


# -- The way by which a function that no call waits for any more tells and asks its client ---------------


class Voice(Protocol):
    """Takes what a detached function tells and asks its client; an extension gives it (`mcp_actors.extensions`)."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Takes a report of progress: `Context.progress`."""

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification: `Context.log` and `Context.notify`."""

    async def ask(self, questions: Mapping[str, t.InputRequest]) -> Mapping[str, t.InputResponse]:
        """Returns the client's answers by the same keys: `Context.ask`. The client has declared that it can answer."""

    def stop(self) -> None:
        """Is called by the engine when a call gets no more beats; a voice has none."""


# -- The distance between the last report of progress of a call and its answer ---------------------------
#
# The official TypeScript clients handle answers at once but notifications a step later, and forget the callback for the
# reports of a call when its answer comes. What one read brings them is handled in one step, so a report that is read
# together with the answer is lost. Therefore the answer to a call that reported is sent only when the peer has read the
# report, or is likely to have. Only that call waits: the others on its connection, and calls without reports, do not.

# Seconds that an answer waits at most. Over a network that is slower than this the two arrive apart anyway.
READING_LIMIT = 0.1
# Seconds between the two where nothing tells whether the peer has read.
READING_TIME = 0.005
_PING = CallOptions(idle=math.inf, cap=math.inf, cancellable=False)

# Names and versions of clients that handle what they read strictly in order: ours, and the official Python SDK's if
# the program that uses it gives no other. `None` is any version. A wrong name costs the peer that gives it a report.
_HANDLE_IN_ORDER: frozenset[tuple[str, str | None]] = frozenset((("mcp-actors", None), ("mcp", "0.1.0")))


@runtime_checkable
class SupportsWaitUntilRead(Protocol):
    """An outlet on which messages of one call may be read together. Those with a stream for each call are none."""

    async def wait_until_read(self) -> bool:
        """Waits until the peer has read what was sent before, and returns true; false if that cannot be known."""


class Asker(Protocol):
    """The dispatcher of a call, by which the peer can be sent a request."""

    async def request(self, method: str, params: dict[str, Any], options: CallOptions) -> dict[str, Any]: ...


async def wait_for_last_report(invocation: Invocation, outlet: Outlet, owner: Asker) -> None:
    """Waits as long as the answer to a call that reported progress has to, for at most `READING_LIMIT`.

    Where the binding cannot tell what the peer has read, a ``ping`` does, which every peer of the legacy era answers
    (MCP 2025-11-25, Ping). Cancelled, it has changed nothing.
    """
    if not isinstance(outlet, SupportsWaitUntilRead) or _handles_in_order(invocation.peer.raw_info):
        return
    with trio.move_on_after(READING_LIMIT), suppress(McpError):
        if not await outlet.wait_until_read():
            if "ping" in invocation.era.client_methods:
                await owner.request("ping", {}, _PING)
            else:
                await trio.sleep(READING_TIME)


def _handles_in_order(info: Any) -> bool:
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else (None, None)
    return isinstance(name, str) and (
        (name, None) in _HANDLE_IN_ORDER or (isinstance(version, str) and (name, version) in _HANDLE_IN_ORDER)
    )


# -- The snapshot of an inbound call ---------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
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


def statistics_of(
    invocation: Invocation, age: float, state: str, session: str | None = None
) -> CallStatistics:
    """Returns the snapshot of a call in flight, by its request."""
    method, principal = invocation.method, invocation.principal
    target = invocation.params.get(method.target) if method.target and method.shown else None
    name = target if isinstance(target, str) else None
    user = None if principal is None else principal.subject
    return CallStatistics(invocation.id, method.name, name, age, state, user, session)


# ----------------------------------------------------------------------------------------------------


class Responder(Protocol):
    """The floor above: it knows what the methods do."""

    @property
    def stamp(self) -> Mapping[str, Any]:
        """The members that the modern era adds to results."""

    @property
    def beats(self) -> Beats | None:
        """The sender of beats for calls; ``None`` on a side that reports no progress."""

    @property
    def telemetry(self) -> Telemetry | None:
        """The receiver of each call, in both directions."""

    @property
    def call_class(self) -> type[InboundCall]:
        """The class of the calls: that of observed ones where there is telemetry."""

    def is_registered(self, method: str, target: str) -> bool:
        """Whether ``target`` is the name of something that this side has, and not only a text of the peer."""

    def runs_in_place(self, method: str, target: str | None) -> bool:
        """Whether `respond` may run a function of the user's; if not, none runs before the call has a task."""

    def respond(self, call: InboundCall) -> Any:
        """Returns the result, or a `Continuation` when the call needs a task. Never waits."""

    def failure(self, call: InboundCall, error: BaseException) -> Any:
        """Returns what answers a call whose handler raised ``error``, which is no `RpcError`.

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
        """Takes the call out of the table, so that its id may be used again. Legal any number of times."""


class InboundCall:
    """One request of the peer in flight.

    Its ``state`` is ``"running"`` from the start, ``"waiting"`` while it has no place, ``"cancelled"`` or
    ``"replaced"`` once its scope is cancelled, and ``"answered"`` when nothing may be sent any more.
    """

    __slots__ = (
        "_on_drain",
        "admission",
        "continuation",
        "invocation",
        "key",
        "outlet",
        "owner",
        "replacement",
        "reports",
        "scope",
        "started",
        "state",
    )

    def __init__(self, invocation: Invocation, owner: CallOwner, outlet: Outlet) -> None:
        # The key in the owner's table: the id, unless another call in flight has the same.
        self.key: Any = invocation.id
        self.invocation = invocation
        self.owner = owner
        self.outlet = outlet
        # The progress reports of a call that runs and was made with a progress token.
        self.reports: ProgressReports | None = None
        self.scope: trio.CancelScope | None = None
        self.started = trio.current_time()
        self.admission: Admission | None = None
        self.continuation: Continuation | None = None
        self.state = "running"
        # What is sent in place of the function's result: questions, or the error of whoever runs the server.
        self.replacement: Any = None
        self._on_drain: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<InboundCall {self.id!r} {self.invocation.method.name} {self.state}>"

    # -- from outside ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> RequestId:
        """The request's id, with its JSON type."""
        return self.invocation.id

    @property
    def voice(self) -> Voice | None:
        """The way to the client of a call that is not waited for; ``None`` while the call speaks for itself."""
        return None

    @property
    def cancelled(self) -> bool:
        """Whether the peer no longer wants the answer."""
        return self.state == "cancelled"

    @property
    def cut_short(self) -> bool:
        """Whether its scope was cancelled, by `cancel` or `replace`. Asking the scope is dearer."""
        return self.state == "cancelled" or self.state == "replaced"

    @property
    def has_no_task(self) -> bool:
        """Whether it was begun, and no task waits for it (`mcp_actors._actors.dispatcher`)."""
        return self.continuation is not None and self.continuation.begun

    @property
    def stands(self) -> bool:
        """Whether it is not about to be answered: a subscription goes on until the session ends."""
        return self._on_drain is not None

    def cancel(self, reason: str | None = None) -> None:
        """The peer no longer wants the answer: the handler sees `trio.Cancelled` and nothing is sent."""
        if self.state != "answered":
            self.state = "cancelled"
            self._unwind(f"cancelled by the peer: {reason or 'no reason given'}")

    def end_with(self, error: RpcError) -> None:
        """Whoever runs the server ends the call: the handler sees `trio.Cancelled`, and the peer is sent ``error``."""
        if self.state == "running" or self.state == "waiting":
            self.state = "replaced"
            self.replacement = error
            self._unwind(error.message)

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
        """The connection is about to end: a call that would go on for ever ends now."""
        if self._on_drain is not None:
            self._on_drain()

    # -- for the handler's context ---------------------------------------------------------------------------------

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Registers how a call that would go on for ever (a subscription) is ended gracefully. It gets no beats."""
        self._on_drain = callback
        # It has no progress, and nobody waits for its end.
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
                # A client may leave at any time: what its handler makes of that is no failure of the handler.
                self.cancel("the client left")
                raise

    async def ask(self, method: str, params: dict[str, Any], *, idle: float, cap: float) -> dict[str, Any]:
        """Sends a request to the client on this call's stream; cancelling the call cancels it at the other side."""
        return await self.owner.request(method, params, CallOptions(idle=idle, cap=cap), call=self)

    def close_stream(self) -> None:
        """Closes the stream that waits for this call, if the client comes back by itself for the rest."""
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

    def answer_now(self) -> Frame | None:
        """Returns the answer if it can be given at once, and ``None`` when the call needs a task of its own."""
        try:
            result = self.owner.responder.respond(self)
            if not isinstance(result, Continuation):
                return result_frame(self.invocation, result, self.owner.responder.stamp, self.outlet.longest)
            self.continuation = result
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.failure(error)
        return None

    async def run(self, scope: trio.CancelScope) -> bool:
        """Runs the continuation inside ``scope`` and sends what comes of it.

        Returns whether it was `cut_short`: then `finish` and `close` are to be called outside of it; else it is closed.
        """
        self.scope = scope
        token = self.invocation.progress_token
        if token is not None and (beats := self.owner.responder.beats) is not None:
            self.reports = beats.watch(self, token)
        if self.state != "running":
            scope.cancel(reason="the call was cancelled before it began")
        try:
            frame = await self._outcome()
            if self.invocation.reported:
                await wait_for_last_report(self.invocation, self.outlet, self.owner)
            if self.state == "running":
                await self._send(frame)
        finally:
            # Compared here, since asking `cut_short` for each call is measurable.
            state = self.state
            if state != "cancelled" and state != "replaced":
                self.close()
        return state != "answered"

    async def finish(self) -> None:
        """Sends what is left to be sent outside of the scope that was cancelled."""
        frame = None
        if self.state == "replaced":
            if self.invocation.reported:
                await wait_for_last_report(self.invocation, self.outlet, self.owner)
            try:
                frame = self._frame_of(self.replacement)
            except Exception as error:
                frame = failure_frame(self.invocation, error)
        await self._send(frame)

    def refuse(self, error: RpcError) -> None:
        """The call gets no place, and its request is answered with ``error``: it is closed without having run."""
        self.state = "answered"
        self.close()

    def fail(self, error: BaseException) -> None:
        """Answers with an error what a defect of the engine has ended, unless the call itself was cancelled."""
        if self.state != "answered" and crash_in(error) is not None:
            self.end_now(failure_frame(self.invocation, error))
        self.close()

    def close(self) -> None:
        """The call is over: its id may be used again, its place and its scope are free. Legal any number of times."""
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
        try:
            if frame is None:
                self.outlet.settle()
            elif not self.outlet.send_nowait(frame):
                # The call keeps its place meanwhile: a peer that does not read its answers gets no further calls.
                await self.outlet.send(frame)
        except trio.BrokenResourceError:
            log.debug("answer not sent: the connection is gone", id=self.id)
        except LocalProtocolError:
            assert frame is not None
            self._post_too_long(frame)

    def _post_too_long(self, frame: Frame) -> None:
        post_answer(too_long_frame(self.id, len(frame.data), self.outlet.longest), self.outlet)

    async def _outcome(self) -> Frame | None:
        continuation, self.continuation = self.continuation, None
        assert continuation is not None
        try:
            if self.admission is not None and self.admission.ahead:
                await self._wait_for_admission(self.admission)
            if self.state != "running":
                await trio.lowlevel.checkpoint()
            result = await continuation()
            return result_frame(self.invocation, result, self.owner.responder.stamp, self.outlet.longest)
        except (Exception, GeneratorExit) as error:
            return self._failed(sole_cause(error))
        except BaseException as error:
            # No name may be given to what was raised: this frame stands in its traceback.
            if crash_in(error) is error:
                return self._failed(sole_cause(error))
            if crash_in(error) is None:
                raise
            log.warning("a handler raised while it was cancelled", id=self.id, exc_info=error)
            raise cancellation_in(error) from None

    async def _wait_for_admission(self, admission: Admission) -> None:
        if self.state == "running":
            self.state = "waiting"
        try:
            await admission.wait()
        finally:
            if self.state == "waiting":
                self.state = "running"

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
        return result_frame(self.invocation, answer, self.owner.responder.stamp, self.outlet.longest)

    def statistics(self) -> CallStatistics:
        """Returns where the call stands."""
        session = self.owner.name if self.owner.rules.session else None
        return statistics_of(self.invocation, trio.current_time() - self.started, self.state, session)


# -- A JSON-RPC batch: the answers to its requests go back together, as one array, in any order ----------

# Bytes that are kept free for each answer to come: the error that says that an answer is too long, without its id.
_SHORTEST_ANSWER = 256


class Batch:
    """An outlet that holds the answers back until every request of the batch has ended, with or without one.

    An answer with which the array would be too long to be sent is replaced by an error that says so.
    """

    def __init__(self, outlet: Outlet, expected: int) -> None:
        self._outlet = outlet
        self.longest = outlet.longest
        self.http_request: HttpRequest | None = getattr(outlet, "http_request", None)
        self._expected = expected
        self._answers: list[bytes] = []
        self._size = len(b"[]")

    def post(self, frame: Frame) -> None:
        if not frame.last:
            self._outlet.post(frame)
        elif (whole := self._collect(frame)) is not None:
            self._outlet.post(whole)

    async def send(self, frame: Frame) -> None:
        if not frame.last:
            await self._outlet.send(frame)
        elif (whole := self._collect(frame)) is not None:
            await self._outlet.send(whole)

    def send_nowait(self, frame: Frame) -> bool:
        if not frame.last:
            return self._outlet.send_nowait(frame)
        self.post(frame)
        return True

    async def wait_until_read(self) -> bool:
        """See `SupportsWaitUntilRead`."""
        return not isinstance(self._outlet, SupportsWaitUntilRead) or await self._outlet.wait_until_read()

    def settle(self) -> None:
        """One request of the batch ended without an answer: it was cancelled."""
        if (whole := self._collect(None)) is not None:
            self._outlet.post(whole)
        elif not self._expected:
            self._outlet.settle()

    def close_stream(self) -> None:
        self._outlet.close_stream()

    def _collect(self, answer: Frame | None) -> Frame | None:
        self._expected -= 1
        if answer is not None:
            room = self.longest - self._size - self._expected * _SHORTEST_ANSWER
            if len(answer.data) > room:
                answer = too_long_frame(answer.about, len(answer.data), max(room, 0))
            self._answers.append(answer.data)
            self._size += len(answer.data) + len(b",")
        if self._expected or not self._answers:
            return None
        return Frame(b"[" + b",".join(self._answers) + b"]", last=True)


# -- A call whose function goes on after its request was answered, or without one: it reaches its client by a voice ---


class DetachedCall(InboundCall):
    """A call that has no outlet, no place among the calls in flight, and no answer but what `outcome` returns.

    Args:
        invocation: The request; it is kept for as long as the function runs.
        owner: Whose rules for failures apply: the session of the request, or the server.
        http_request: The request over HTTP that began it, ``None`` with other bindings.
        longest: Bytes of the longest outcome.
        voice: Takes what the function tells and asks the client.
    """

    __slots__ = ("_voice",)

    def __init__(
        self,
        invocation: Invocation,
        owner: CallOwner,
        http_request: HttpRequest | None,
        longest: int,
        voice: Voice,
    ) -> None:
        super().__init__(invocation, owner, _NoOutlet(http_request, longest))
        self._voice = voice
        self.reports: Any = voice

    def __repr__(self) -> str:
        return f"<DetachedCall {self.invocation.method.name}>"

    @property
    def voice(self) -> Voice:
        return self._voice

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._voice.notify(method, params)

    async def outcome(self, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Returns what the client of a plain call is sent: an object with either ``result`` or ``error``.

        What ``function`` raises is logged, masked and told as it is for any call.
        """
        self.continuation = Continuation(function)
        frame = await self._outcome()
        assert frame is not None
        if len(frame.data) > self.outlet.longest:
            frame = too_long_frame(self.id, len(frame.data), self.outlet.longest)
        answer = decode_value(frame.data)
        return {name: answer[name] for name in ("result", "error") if name in answer}


class _NoOutlet:
    """The outlet of a call that nobody waits for."""

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
