"""The session: one peer's conversation. It dispatches whole batches without waiting for anything.

Everything that a batch brings is decided here and now: an answer wakes the task that waits for it, a cancellation
cancels a scope, a request becomes a call with a task of its own or is answered on the spot. No handler is ever
awaited in the read path, so a ping or a cancellation is never stuck behind slow work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import attrs
import trio

from mcp_actors._actors.batch import Batch
from mcp_actors._actors.call import DEFERRED, Call, CallStatistics, Outlet, Responder, failure_bytes
from mcp_actors._actors.gate import Gate
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import Link, LinkStatistics, Received
from mcp_actors._actors.outbound import Outbound
from mcp_actors._actors.pending import PendingStatistics
from mcp_actors._actors.pool import CallPool
from mcp_actors._eras.era import Invocation
from mcp_actors._logs import log
from mcp_actors._wire.codec import decode_value, encode_notification
from mcp_actors._wire.envelope import Envelope, Failure, Notification, Reply, Request, RequestId
from mcp_actors.abc import Frame
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ConnectionLost,
    LocalProtocolError,
    MalformedMessage,
    RemoteProtocolError,
    RpcError,
)

__all__ = ["Opening", "Session", "SessionStatistics"]


class Opening(Protocol):
    """What turns requests into invocations: knows the eras, keeps the lifecycle."""

    @property
    def batches(self) -> bool: ...

    def open(self, request: Request) -> Invocation: ...

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
    pending: tuple[PendingStatistics, ...]
    """Requests of ours that wait for an answer."""
    link: LinkStatistics
    counters: Counters


class Session:
    """One peer's conversation over one link.

    ``on_notification`` gets, in the read path and therefore without waiting, every notification that is not the
    session's own business. ``answers_malformed`` says whether broken frames are answered: servers do, clients count.
    """

    def __init__(
        self,
        name: str,
        link: Link,
        opening: Opening,
        responder: Responder,
        *,
        limits: Limits,
        server_gate: Gate | None = None,
        on_notification: Callable[[str, dict[str, Any]], None],
        answers_malformed: bool,
    ) -> None:
        self.name = name
        self.link = link
        self.opening = opening
        self.responder = responder
        self.limits = limits
        self.calls: dict[RequestId, Call] = {}
        self.counters = Counters()
        self._gates: Sequence[Gate] = [
            Gate("connection", limits.max_in_flight, limits.max_waiting, limits.max_wait),
            *([server_gate] if server_gate else []),
        ]
        self._on_notification = on_notification
        self._answers_malformed = answers_malformed
        self.outbound = Outbound(link, limits, self.start_soon, self._loss)
        self.request = self.outbound.request
        self.ended = trio.Event()
        self._ending: ConnectionLost | None = None
        self._reading = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._pool: CallPool | None = None
        self._breaking: BaseException | None = None
        self._lost_to: BaseException | None = None
        link.on_broken = self._broken
        link.alone = self._is_alone

    def __repr__(self) -> str:
        return (
            f"<Session {self.name} {self.state} calls={len(self.calls)} pending={len(self.outbound.pending)}>"
        )

    def _is_alone(self) -> bool:
        """Only the one that sends now is in flight: who answers has left its table, who asks stands in the other."""
        return not self.calls and len(self.outbound.pending) <= 1

    @property
    def state(self) -> Literal["new", "open", "ended"]:
        if self._ending is not None:
            return "ended"
        return "new" if self._nursery is None else "open"

    # -- the actor -------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Converses until the peer ends, the link breaks or `stop` is called; then drains, closes, returns.

        A clean end lets calls in flight go on for ``drain_grace`` seconds; a broken link cancels them at once.
        """
        try:
            async with trio.open_nursery() as calls:
                self._nursery = calls
                self._pool = CallPool(calls, self.limits.idle_tasks)
                task_status.started()
                broken = await self._read()
                self._end(broken)
                self._pool.close()
                if broken is not None:
                    calls.cancel_scope.cancel(reason="the connection broke")
                else:
                    calls.cancel_scope.deadline = trio.current_time() + self.limits.drain_grace
                    for call in list(self.calls.values()):
                        call.drain()
        finally:
            self._end(None)
            try:
                await self.link.aclose()
            finally:
                self.ended.set()

    @property
    def loss(self) -> ConnectionLost | None:
        """Why there is no connection any more, once there is none."""
        return self._ending

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then closes. Legal from any task, any time."""
        self._reading.cancel(reason="the session is told to stop")

    def start_soon(self, fn: Callable[[], Any], name: str) -> None:
        """Runs ``fn`` as a task of this session, which ends it when it ends."""
        if self._nursery is not None and self._ending is None:
            self._nursery.start_soon(fn, name=name)

    async def _read(self) -> BaseException | None:
        """Reads to the end; returns what broke the link, or ``None`` for a clean end."""
        try:
            with self._reading:
                while True:
                    for message in await self.link.receive():
                        self._dispatch(message)
                    if self.link.congested:
                        await self.link.flow()
        except trio.EndOfChannel:
            return None
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, RemoteProtocolError):
                self._malformed(MalformedMessage(str(error.__cause__), code=INVALID_REQUEST), self.link)
            return error
        except trio.ClosedResourceError:
            return None
        return self._breaking

    def _broken(self, error: BaseException) -> None:
        self._breaking = error
        self._reading.cancel(reason="the link broke")
        if self._ending is not None and self._nursery is not None:
            # Found out while draining, when nobody reads any more: there is nobody left to answer.
            self._nursery.cancel_scope.cancel(reason="the connection broke")

    def _end(self, broken: BaseException | None) -> None:
        if self._ending is not None:
            return
        self._ending = self._loss(broken)
        self._lost_to = broken
        self.outbound.end(broken)

    def _loss(self, broken: BaseException | None) -> ConnectionLost:
        broken = broken or self._lost_to
        report = self.link.channel.loss_report()
        code = report.get("exit_code")
        text = f"the connection to {self.link.channel.peer} " + (f"broke: {broken}" if broken else "ended")
        if code is not None:
            text += f"; it exited with code {code}"
        lost = ConnectionLost(text, exit_code=code, stderr=tuple(report.get("stderr", ())))
        lost.__cause__ = broken
        return lost

    # -- dispatch: no await below this line until the next heading -----------------------------------------------------

    def _dispatch(self, message: Received) -> None:
        if type(message) is Request:
            self._requested(message, self.link)
        elif type(message) is Reply or type(message) is Failure:
            self._answered(message)
        elif type(message) is Notification:
            self._notified(message)
        elif type(message) is list:
            self._batch(message)
        else:
            assert isinstance(message, MalformedMessage)
            self._malformed(message, self.link)

    def _malformed(self, error: MalformedMessage, outlet: Outlet) -> None:
        self.counters.malformed += 1
        log.debug("malformed message", session=self.name, error=str(error))
        if self._answers_malformed:
            self._post(Frame(failure_bytes(error.id, error.code, str(error), None), error.id, True), outlet)

    def _batch(self, messages: list[Envelope | MalformedMessage]) -> None:
        """JSON-RPC batches exist in one revision only; ``initialize`` is never part of one."""
        if not self.opening.batches or any(
            isinstance(m, Request) and m.method == "initialize" for m in messages
        ):
            self._malformed(MalformedMessage("a batch is not allowed here", code=INVALID_REQUEST), self.link)
            return
        answered = Request | MalformedMessage if self._answers_malformed else Request
        answers = sum(isinstance(m, answered) for m in messages)
        outlet = Batch(self.link, answers) if answers else self.link
        for message in messages:
            if isinstance(message, Request):
                self._requested(message, outlet)
            elif isinstance(message, MalformedMessage):
                self._malformed(message, outlet)
            else:
                self._dispatch(message)

    def _requested(self, request: Request, outlet: Outlet) -> None:
        self.counters.requests += 1
        try:
            if request.id in self.calls:
                raise RpcError(INVALID_REQUEST, f"a request with the id {request.id!r} is in flight already")
            call = Call(self.opening.open(request), self, outlet, self.responder)
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
        if not self._answered_inline(call):
            self._start(call)

    def _answered_inline(self, call: Call) -> bool:
        try:
            result = self.responder.attempt(call)
            if result is DEFERRED:
                return False
            frame = call.reply(result)
        except Exception as error:
            frame = call.failure(error)
        self._post(frame, call.outlet)
        return True

    def _start(self, call: Call) -> None:
        call.gates = self._gates
        for number, gate in enumerate(self._gates):
            if gate.try_enter():
                continue
            entered = self._gates[:number]
            try:
                call.ticket = gate.expect()
            except RpcError as error:
                for each in entered:
                    each.leave()
                self._refuse(call.id, error, call.outlet)
                return
            # The gates behind this one are entered from the call's own task: who waits here takes no place there.
            call.gates, call.gates_ahead = entered, self._gates[number:]
            break
        self.calls[call.id] = call
        assert self._pool is not None
        self._pool.start(call)

    def _refuse(self, id: RequestId | None, error: RpcError, outlet: Outlet) -> None:
        self.counters.refused += 1
        self._post(Frame(failure_bytes(id, error.code, error.message, error.data), id, True), outlet)

    def _post(self, frame: Frame, outlet: Outlet) -> None:
        try:
            outlet.post(frame)
        except LocalProtocolError as error:
            # It repeats what the peer sent, an endless id for example: that peer is owed no answer.
            log.warning("answer not sent", session=self.name, error=str(error))

    def _answered(self, answer: Reply | Failure) -> None:
        if not self.outbound.answered(answer):
            self.counters.late += 1
            log.debug("an answer nobody waits for", session=self.name, id=answer.id)

    def _notified(self, notification: Notification) -> None:
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
        if call is None:
            self.counters.late += 1
            self._on_notification("notifications/cancelled", params)
        elif not call.cancelled:
            self.counters.cancelled += 1
            call.cancel(reason if isinstance(reason, str) else None)

    def forget(self, call: Call) -> None:
        """Takes a call that has ended out of the table, so that its id may be used again."""
        if self.calls.get(call.id) is call:
            del self.calls[call.id]

    # -- outgoing --------------------------------------------------------------------------------------------------

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Sends a notification; raises `ConnectionLost` when there is nobody to send it to."""
        try:
            await self.link.send(Frame(encode_notification(method, params)))
        except trio.BrokenResourceError as error:
            raise self._ending or self._loss(error) from error

    def post(self, method: str, params: dict[str, Any] | None = None, about: RequestId | None = None) -> None:
        """Queues a notification without waiting."""
        self.link.post(Frame(encode_notification(method, params), about))

    def statistics(self) -> SessionStatistics:
        """Where the session, its calls and its link stand."""
        return SessionStatistics(
            name=self.name,
            peer=self.link.channel.peer,
            state=self.state,
            calls=tuple(call.statistics() for call in self.calls.values()),
            pending=tuple(pending.statistics() for pending in self.outbound.pending.values()),
            link=self.link.statistics(),
            counters=attrs.evolve(self.counters),
        )
