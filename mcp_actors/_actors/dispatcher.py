"""The switchboard: dispatches what one peer sends, whole batches without waiting for anything.

Everything that a batch brings is decided here and now: an answer wakes the task that waits for it, a cancellation
cancels a scope, a request becomes a call with a task of its own or is answered on the spot. No handler is ever
awaited in the read path, so a ping or a cancellation is never stuck behind slow work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import attrs
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.batch import Batch
from mcp_actors._actors.inbound_call import Call, CallStatistics, Responder, refusal_frame
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import LinkStatistics, Received
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import OutboundCallStatistics
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.era import Invocation
from mcp_actors._wire.codec import decode_value, encode_notification
from mcp_actors._wire.messages import (
    JsonRpcError,
    JsonRpcMessage,
    JsonRpcNotification,
    JsonRpcRequest,
    JsonRpcResult,
    RequestId,
)
from mcp_actors.abc import Frame, NoAnswer, Outlet
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ConnectionLost,
    LocalProtocolError,
    MalformedMessage,
    RpcError,
    SessionExpired,
)
from mcp_actors.logging import log

__all__ = ["Dispatcher", "Loss", "Negotiation", "SessionStatistics"]

Loss = ConnectionLost | SessionExpired


class Negotiation(Protocol):
    """What turns requests into invocations: knows the eras, keeps the lifecycle."""

    @property
    def batches(self) -> bool: ...

    def open(self, request: JsonRpcRequest) -> Invocation: ...

    def notified(self, name: str) -> None: ...


@attrs.define
class Counters:
    """What happened on a session since it began."""

    requests: int = 0
    """Requests that arrived."""
    cancelled: int = 0
    """Calls of the peer that it cancelled in flight."""
    late: int = 0
    """Cancellations of unknown or finished ids, answers nobody waits for, progress without a call."""
    malformed: int = 0
    """Frames that were no message."""
    refused: int = 0
    """Requests answered with an error before a handler saw them."""


@attrs.frozen
class SessionStatistics:
    """A snapshot of a session and of everything below it."""

    name: str
    peer: str
    state: str
    calls: tuple[CallStatistics, ...]
    """Requests of the peer in flight."""
    pending: tuple[OutboundCallStatistics, ...]
    """Requests of ours that wait for an answer."""
    link: LinkStatistics | None
    """``None`` for a session that no connection carries."""
    counters: Counters


class Dispatcher:
    """One peer's conversation, as far as it waits for nothing: its tables, and what happens to each message.

    ``outlet`` is where the peer is reached with what belongs to none of its requests. ``on_notification`` gets, in the
    read path and therefore without waiting, every notification that is not the session's own business.
    ``answers_malformed`` says whether broken frames are answered: servers do, clients count. Subclasses say what reads,
    and which tasks the calls run in.
    """

    # Whether requests that arrived by different outlets may have the same id.
    twins = False

    def __init__(
        self,
        name: str,
        outlet: Outlet,
        opening: Negotiation,
        responder: Responder,
        *,
        limits: Limits,
        server_limiter: ConcurrencyLimiter | None = None,
        on_notification: Callable[[str, dict[str, Any]], None],
        answers_malformed: bool,
        on_settled: Callable[[RequestId], None] = lambda id: None,
    ) -> None:
        self.name = name
        self.outlet = outlet
        self.opening = opening
        self.responder = responder
        self.limits = limits
        self.calls: dict[Any, Call] = {}
        self.counters = Counters()
        self._limiters: Sequence[ConcurrencyLimiter] = [
            ConcurrencyLimiter("connection", limits.max_in_flight, limits.max_waiting, limits.max_wait),
            *([server_limiter] if server_limiter else []),
        ]
        self._on_notification = on_notification
        self._answers_malformed = answers_malformed
        self.outbound = OutboundCalls(outlet, limits, self.start_soon, self._loss, on_settled)
        self.request = self.outbound.request
        self._ending: Loss | None = None
        self._pool: TaskPool | None = None

    @property
    def state(self) -> Literal["new", "open", "ended"]:
        if self._ending is not None:
            return "ended"
        return "new" if self._pool is None else "open"

    def start_soon(self, fn: Callable[[], Any], name: str) -> None:
        """Runs ``fn`` as a task of this session, which ends it when it ends."""
        raise NotImplementedError

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then closes. Legal from any task, any time."""
        raise NotImplementedError

    @property
    def peer(self) -> str:
        """Who is at the other end."""
        raise NotImplementedError

    def _loss(self, broken: BaseException | None) -> Loss:
        raise NotImplementedError

    # -- dispatch: no await below this line until the next heading -----------------------------------------------------

    def _dispatch(self, message: Received, outlet: Outlet) -> None:
        if type(message) is JsonRpcRequest:
            self._requested(message, outlet)
        elif type(message) is JsonRpcResult or type(message) is JsonRpcError:
            self._answered(message)
        elif type(message) is JsonRpcNotification:
            self._notified(message)
        elif type(message) is list:
            self._batch(message, outlet)
        elif type(message) is NoAnswer:
            self._unanswered(message)
        else:
            assert isinstance(message, MalformedMessage)
            self._malformed(message, outlet)

    def _malformed(self, error: MalformedMessage, outlet: Outlet) -> None:
        self.counters.malformed += 1
        log.debug("malformed message", session=self.name, error=str(error))
        if self._answers_malformed:
            self._post(refusal_frame(error.id, error.code, str(error)), outlet)

    def _batch(self, messages: list[JsonRpcMessage | MalformedMessage], outlet: Outlet) -> None:
        """JSON-RPC batches exist in one revision only; ``initialize`` is never part of one."""
        if not self.opening.batches or any(
            isinstance(m, JsonRpcRequest) and m.method == "initialize" for m in messages
        ):
            self._malformed(MalformedMessage("a batch is not allowed here", code=INVALID_REQUEST), outlet)
            return
        answered = JsonRpcRequest | MalformedMessage if self._answers_malformed else JsonRpcRequest
        answers = sum(isinstance(m, answered) for m in messages)
        if answers:
            outlet = Batch(outlet, answers)
        for message in messages:
            if isinstance(message, JsonRpcRequest):
                self._requested(message, outlet)
            elif isinstance(message, MalformedMessage):
                self._malformed(message, outlet)
            else:
                self._dispatch(message, outlet)

    def _requested(self, request: JsonRpcRequest, outlet: Outlet) -> None:
        self.counters.requests += 1
        try:
            taken = request.id in self.calls
            if taken and not self.twins:
                raise RpcError(INVALID_REQUEST, f"a request with the id {request.id!r} is in flight already")
            call = Call(self.opening.open(request), self, outlet, self.responder)
            if taken:
                call.key = object()
        except RpcError as error:
            self._refuse(request.id, error, outlet)
            return
        except MalformedMessage as error:
            self._malformed(MalformedMessage(str(error), code=error.code, id=request.id), outlet)
            return
        except Exception as error:  # a bug of ours must not end the session
            log.exception(
                "request could not be opened", session=self.name, method=request.method, exc_info=error
            )
            self._refuse(request.id, RpcError(INTERNAL_ERROR, "internal error"), outlet)
            return
        answer = call.attempt()
        if answer is None:
            self._start(call)
        else:
            self._post(answer, call.outlet)

    def _start(self, call: Call) -> None:
        call.limiters = self._limiters
        for number, limiter in enumerate(self._limiters):
            if limiter.try_enter():
                continue
            entered = self._limiters[:number]
            try:
                call.ticket = limiter.expect()
            except RpcError as error:
                for each in entered:
                    each.leave()
                self._refuse(call.id, error, call.outlet)
                return
            # The limiters behind this one are entered from the call's own task: who waits here takes no place there.
            call.limiters, call.limiters_ahead = entered, self._limiters[number:]
            break
        self.calls[call.key] = call
        assert self._pool is not None
        self._pool.start(call)

    def _refuse(self, id: RequestId | None, error: RpcError, outlet: Outlet) -> None:
        self.counters.refused += 1
        self._post(refusal_frame(id, error.code, error.message, error.data), outlet)

    def _post(self, frame: Frame, outlet: Outlet) -> None:
        try:
            outlet.post(frame)
        except LocalProtocolError as error:
            # It repeats what the peer sent, an endless id for example: that peer is owed no answer.
            log.warning("answer not sent", session=self.name, error=str(error))
        except trio.BrokenResourceError:
            log.debug("answer not sent: nobody is there", session=self.name, id=frame.about)

    def _unanswered(self, message: NoAnswer) -> None:
        if message.about is None or not self.outbound.unanswered(message.about, message.reason):
            self.counters.late += 1

    def _answered(self, answer: JsonRpcResult | JsonRpcError) -> None:
        if not self.outbound.answered(answer):
            self.counters.late += 1
            log.debug("an answer nobody waits for", session=self.name, id=answer.id)

    def _notified(self, notification: JsonRpcNotification) -> None:
        try:
            params = {} if notification.params is None else decode_value(notification.params)
        except MalformedMessage:
            params = None
        if not isinstance(params, dict):
            self.counters.malformed += 1
        elif notification.method == "notifications/cancelled":
            self._cancelled(params)
        elif notification.method == "notifications/progress":
            self.counters.late += not self.outbound.progressed(params)
        else:
            self.opening.notified(notification.method)
            self._on_notification(notification.method, params)

    def _cancelled(self, params: dict[str, Any]) -> None:
        id, reason = params.get("requestId"), params.get("reason")
        # 1 == True for a dict, but not for JSON.
        call = self.calls.get(id) if type(id) is int or isinstance(id, str) else None
        if call is None or (self.twins and self._is_ambiguous(call)):
            self.counters.late += 1
            self._on_notification("notifications/cancelled", params)
        elif not call.cancelled:
            self.counters.cancelled += 1
            call.cancel(reason if isinstance(reason, str) else None)

    def _is_ambiguous(self, call: Call) -> bool:
        """Of two calls with one id nobody can tell which is meant: better none ends than the wrong one."""
        return any(each.id == call.id and each is not call for each in self.calls.values())

    def forget(self, call: Call) -> None:
        """Takes a call that has ended out of the table, so that its id may be used again."""
        if self.calls.get(call.key) is call:
            del self.calls[call.key]

    # -- outgoing --------------------------------------------------------------------------------------------------

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Sends a notification; raises `ConnectionLost` when there is nobody to send it to."""
        try:
            await self.outlet.send(Frame(encode_notification(method, params), method=method))
        except trio.BrokenResourceError as error:
            raise self._ending or self._loss(error) from error

    def post(self, method: str, params: dict[str, Any] | None = None, about: RequestId | None = None) -> None:
        """Queues a notification without waiting."""
        self.outlet.post(Frame(encode_notification(method, params), about, method=method))

    def _link_statistics(self) -> LinkStatistics | None:
        return None

    def statistics(self) -> SessionStatistics:
        """Where the session, its calls and its link stand."""
        return SessionStatistics(
            name=self.name,
            peer=self.peer,
            state=self.state,
            calls=tuple(call.statistics() for call in self.calls.values()),
            pending=tuple(pending.statistics() for pending in self.outbound.pending.values()),
            link=self._link_statistics(),
            counters=attrs.evolve(self.counters),
        )
