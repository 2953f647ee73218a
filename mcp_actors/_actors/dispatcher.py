"""Dispatches what one peer sends: whole batches of messages, without waiting for anything.

Everything that a batch brings is decided at once: an answer wakes the task that waits for it, a cancellation cancels a
scope, a request is answered on the spot or becomes a call with a task of its own. No handler is ever awaited in the
read path, so a ping or a cancellation is never stuck behind slow work.

There is one dispatcher for everything that brings messages: a session with a connection (`Session`), a session of a
binding that has no connections (`ConnectionlessSession`), and all single exchanges of a server (`StatelessCalls`).
What differs between them is their `Carrier`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import attrs
import trio

from mcp_actors._actors.deadlines import time_left
from mcp_actors._actors.inbound_call import (
    CallStatistics,
    Continuation,
    DispatchRules,
    InboundCall,
    Responder,
    SupportsWaitUntilRead,
    title_of,
)
from mcp_actors._actors.limits import WEIGHED_BYTES, ClientMemory, ConcurrencyLimiter, Limiters, Limits
from mcp_actors._actors.outbound import KINDS
from mcp_actors._actors.outbound_call import CallOptions, OutboundCallStatistics
from mcp_actors._actors.responses import post_answer, refusal_frame, too_long_frame
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.era import DEADLINE, Invocation, NotAnswered
from mcp_actors._wire.codec import (
    JsonRpcError,
    JsonRpcMessage,
    JsonRpcNotification,
    JsonRpcRequest,
    JsonRpcResult,
    RequestId,
    decode_value,
    encode_notification,
)
from mcp_actors.abc import Frame, HttpRequest, NewAccess, NoAnswer, NotificationsMissed, Outlet, Waiting
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    MalformedMessage,
    RpcError,
    SessionExpired,
)
from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.logging import log
from mcp_actors.types.records import Number, ValueRecord, frozen_record, record

__all__ = [
    "Carrier",
    "Counters",
    "DispatchRules",
    "Dispatcher",
    "LinkStatistics",
    "Loss",
    "Negotiation",
    "Received",
    "SessionStatistics",
    "Totals",
    "UnansweredOutlet",
    "ignore",
    "prepare_unanswered",
    "start_unanswered",
]


@record(eq=False, repr=False)
class Counters(ValueRecord):
    """The events on a session since it began, counted."""

    __hash__ = None  # type: ignore[assignment]

    requests: Number = 0
    """Requests that arrived."""
    cancelled: Number = 0
    """Calls of the peer that it cancelled in flight."""
    late: Number = 0
    """Cancellations of unknown or finished ids, answers that no request waits for, progress without a call."""
    malformed: Number = 0
    """Frames that held no message."""
    refused: Number = 0
    """Requests answered with an error before a handler saw them."""

    def add(self, other: Counters) -> None:
        """Adds the counts of another session."""
        self.requests += other.requests
        self.cancelled += other.cancelled
        self.late += other.late
        self.malformed += other.malformed
        self.refused += other.refused


@frozen_record(eq=False, repr=False)
class LinkStatistics(ValueRecord):
    """A snapshot of a link."""

    outbox: Number
    """Frames that wait for the writer."""
    outbox_limit: Number
    """Frames the outbox takes before senders wait."""
    blocked: Number
    """Senders that wait for room."""
    frames_in: Number
    frames_out: Number
    bytes_in: Number
    bytes_out: Number


@record(eq=False, repr=False)
class Totals(ValueRecord):
    """The events of all conversations together, those that have ended included, since the server was first served."""

    __hash__ = None  # type: ignore[assignment]

    counters: Counters = attrs.field(factory=Counters)
    sessions: int = 0
    """Sessions and connections that have begun."""
    bytes_in: int = 0
    """Bytes of messages that came over connections; those of single exchanges are not counted."""
    bytes_out: int = 0
    """Bytes of messages that were written to connections."""

    def add(self, counters: Counters, link: LinkStatistics | None = None) -> None:
        """Adds the events of one conversation."""
        self.counters.add(counters)
        if link is not None:
            self.bytes_in += link.bytes_in
            self.bytes_out += link.bytes_out


@frozen_record(eq=False, repr=False)
class SessionStatistics(ValueRecord):
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
    kept_bytes: Number = 0
    """Bytes that the session makes the server remember: the description of the client, and subscribed URIs."""
    age: float = 0.0
    """Seconds since it began; 0 on a client."""
    version: str | None = None
    """The revision that server and client have agreed on; ``None`` before that, and on a client."""
    client: str | None = None
    """The name by which a client has introduced itself, with its version; ``None`` before that, and on a client."""
    principal: str | None = None
    """The client's user, if the transport has authenticated one."""
    in_flight: Number = 0
    """Calls in flight; a live view, which is bounded in size, has this number in place of ``calls``."""
    asked: Number = 0
    """Requests of ours that wait for an answer, likewise."""
    rate: float | None = None
    """Requests a second since the snapshot before, in a live view; ``None`` in its first."""


Received = (
    JsonRpcMessage
    | NoAnswer
    | Waiting
    | NewAccess
    | NotificationsMissed
    | MalformedMessage
    | list[JsonRpcMessage | MalformedMessage]
)
Loss = ConnectionLost | SessionExpired
# The methods under which a handler of notifications learns of a `NewAccess`, and of `NotificationsMissed` with
# ``first`` and ``reason``. A server that sends them makes its client forget answers, as it may with a change of a list.
NEW_ACCESS = "mcp-actors/new-access"
NOTIFICATIONS_MISSED = "mcp-actors/notifications-missed"
NotificationHandler = Callable[[str, dict[str, Any]], None]


class Negotiation(Protocol):
    """Turns requests into invocations: it knows the eras and keeps the lifecycle."""

    def open(self, request: JsonRpcRequest) -> Invocation:
        """Raises `RpcError` or `MalformedMessage` for a request that cannot be served."""

    @property
    def batches(self) -> bool:
        """Whether the agreed revision has JSON-RPC batches."""

    def notified(self, name: str) -> None:
        """Takes note of a notification that moves the lifecycle."""


class Carrier(Protocol):
    """The connection, or the session without one, that carries a conversation, seen from its dispatcher."""

    @property
    def peer(self) -> str:
        """The other end, for logs and statistics."""

    @property
    def outlet(self) -> Outlet:
        """The outlet for messages that belong to none of the peer's requests."""

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        """Runs ``fn`` as a supervised task, which ends with the conversation."""

    def connection_lost(self, broken: BaseException | None) -> Loss:
        """Makes the exception for requests of ours that get no answer."""

    def request_ended(self, request: RequestId) -> None:
        """Takes note that no task waits for a request of ours any more."""

    def withdraw(self) -> Iterable[Frame]:
        """Takes back the requests of ours that wait to be written, and returns them."""


def ignore(method: str, params: dict[str, Any]) -> None:
    """The notification handler of a side that needs no notifications."""
    log.debug("notification ignored", method=method)


class Dispatcher:
    """The tables of one conversation, and what happens to each message. Nothing in it waits.

    Args:
        responder: Answers the peer's requests.
        limiter: The limiter of the whole server, which calls enter after the connection's own.
        memory: What the peer makes this side hold; clients have none.
        on_notification: Takes, in the read path, every notification that is not the dispatcher's own business.
    """

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        negotiation: Negotiation,
        responder: Responder,
        rules: DispatchRules,
        *,
        limits: Limits,
        limiter: ConcurrencyLimiter | None = None,
        memory: ClientMemory | None = None,
        on_notification: NotificationHandler = ignore,
    ) -> None:
        self.name = name
        self.carrier: Carrier | None = carrier
        self.negotiation = negotiation
        self.responder = responder
        self.rules = rules
        self.calls: dict[Any, InboundCall] = {}
        self.counters = Counters()
        self.pool: TaskPool | None = None
        own = ConcurrencyLimiter("connection", limits.max_in_flight, limits.max_waiting, limits.max_wait)
        self.limiters = (
            Limiters(own, memory=memory) if limiter is None else Limiters(own, limiter, memory=memory)
        )
        telemetry = responder.telemetry
        self.outbound = KINDS[telemetry is not None].outbound(carrier, limits, name, telemetry)
        # Called whenever the last call in flight has ended.
        self.on_idle: Callable[[], object] | None = None
        self._on_notification = on_notification

    @property
    def state(self) -> Literal["new", "open", "ended"]:
        if self.carrier is None:
            return "ended"
        return "new" if self.pool is None else "open"

    @property
    def peer(self) -> str:
        """The other end, for logs and telemetry; empty once the conversation has ended."""
        return "" if self.carrier is None else self.carrier.peer

    # -- incoming: nothing waits in this part ------------------------------------------------

    def dispatch(self, message: Received, outlet: Outlet) -> None:
        """Takes one message; answers, at once or later, go to ``outlet``."""
        kind = type(message)
        if kind is JsonRpcRequest:
            call = self.open(message, outlet)  # type: ignore[arg-type]
            if call is not None:
                pool = self.pool
                assert pool is not None
                if (
                    call.continuation.__class__ is Continuation
                    # Calls begin in the order of their requests.
                    or pool.has_queue
                    or not call.begin_without_task(pool.start)
                ):
                    pool.start(call)
        elif kind is JsonRpcResult or kind is JsonRpcError:
            self._answered(message)  # type: ignore[arg-type]
        elif kind is JsonRpcNotification:
            self._notified(message)  # type: ignore[arg-type]
        elif kind is list:
            self._batch(message, outlet)  # type: ignore[arg-type]
        elif kind is NoAnswer:
            self._unanswered(message)  # type: ignore[arg-type]
        elif kind is Waiting:
            self.outbound.suspend_idle_clock(message.over)  # type: ignore[union-attr]
        elif kind is NewAccess:
            self._on_notification(NEW_ACCESS, {})
        elif kind is NotificationsMissed:
            missed = {"first": message.first, "reason": message.reason}  # type: ignore[union-attr]
            self._on_notification(NOTIFICATIONS_MISSED, missed)
        else:
            assert isinstance(message, MalformedMessage)
            self.malformed(message, outlet)

    def open(
        self, request: JsonRpcRequest, outlet: Outlet, negotiation: Negotiation | None = None
    ) -> InboundCall | None:
        """Returns a call that is admitted and in the table, or ``None`` for a request that was answered at once."""
        self.counters.requests += 1
        call: InboundCall | None = None
        try:
            taken = request.id in self.calls
            if taken and not self.rules.repeated_ids:
                raise RpcError(INVALID_REQUEST, f"a request with the id {request.id!r} is in flight already")
            invocation = (negotiation or self.negotiation).open(request)
            assert self.pool is not None
            meta = invocation.meta
            if meta and DEADLINE in meta:
                self._limit(invocation)
            call = self.responder.call_class(invocation, self, outlet, self.pool.read_at)
            answer = call.answer_now()
            if answer is None:
                if invocation.deadline is not None:
                    call.run_in_time()
                params = request.params
                if params is None or len(params) < WEIGHED_BYTES:
                    call.admission = self.limiters.admit()
                else:
                    call.admission = self.limiters.admit_weighed(call.invocation, len(params))
                call.key = key = object() if taken else request.id
                self.calls[key] = call
                return call
        except RpcError as error:
            answer = self._refusal(request.id, error)
            if call is not None:
                call.refuse(error)
        except NotAnswered:
            self.counters.refused += 1
            return None
        except MalformedMessage as error:
            self.counters.malformed += 1
            answer = self._refusal(request.id, RpcError(error.code, str(error)))
        except Exception as error:  # a defect of ours must not end the session
            log.error("request could not be opened", session=self.name, method=request.method, exc_info=error)
            answer = self._refusal(request.id, RpcError(INTERNAL_ERROR, "internal error"))
        post_answer(answer, outlet)
        return None

    def _limit(self, invocation: Invocation) -> None:
        """Reads the deadline of a request, and refuses one that has no time left."""
        left = time_left(invocation.meta)
        if not left:
            raise DeadlineExceeded(title_of(invocation), begun=False)
        invocation.deadline = trio.current_time() + left

    def malformed(self, error: MalformedMessage, outlet: Outlet) -> None:
        """Counts a malformed message, and answers it where that is due."""
        self.counters.malformed += 1
        log.debug("malformed message", session=self.name, error=str(error))
        if self.rules.answers_malformed:
            post_answer(refusal_frame(error.id, error.code, str(error)), outlet)
        else:
            self.outbound.note_malformed(error.beginning, self.name)

    def refuse(self, id: RequestId | None, error: RpcError, outlet: Outlet) -> None:
        """Answers what cannot be served with an error."""
        post_answer(self._refusal(id, error), outlet)

    def _refusal(self, id: RequestId | None, error: RpcError) -> Frame:
        self.counters.refused += 1
        return refusal_frame(id, error.code, error.message, error.data)

    def _batch(self, messages: list[JsonRpcMessage | MalformedMessage], outlet: Outlet) -> None:
        if self.opens_batch(messages, outlet, self.negotiation):
            outlet = self.collected(messages, outlet)
            for message in messages:
                self.dispatch(message, outlet)

    def opens_batch(self, messages: list[Any], outlet: Outlet, negotiation: Negotiation) -> bool:
        """Whether these messages may come as a batch; if not, the batch is refused here.

        JSON-RPC batches exist in one revision only, and ``initialize`` is never part of one (MCP 2025-03-26,
        Lifecycle, Initialization).
        """
        if negotiation.batches and not any(
            isinstance(each, JsonRpcRequest) and each.method == "initialize" for each in messages
        ):
            return True
        self.malformed(MalformedMessage("a batch is not allowed here", code=INVALID_REQUEST), outlet)
        return False

    def collected(self, messages: list[Any], outlet: Outlet) -> Outlet:
        """Returns the outlet that sends the answers to these messages as one array."""
        answered = (JsonRpcRequest, MalformedMessage) if self.rules.answers_malformed else (JsonRpcRequest,)
        answers = sum(isinstance(each, answered) for each in messages)
        return Batch(outlet, answers) if answers else outlet

    def _unanswered(self, message: NoAnswer) -> None:
        if message.about is None or not self.outbound.unanswered(message.about, message.reason):
            self.counters.late += 1

    def _answered(self, answer: JsonRpcResult | JsonRpcError) -> None:
        if not self.outbound.answered(answer):
            self.counters.late += 1
            log.debug("an answer that no request waits for", session=self.name, id=answer.id)

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
        elif notification.about is None or not self.outbound.came_with(
            notification.about, notification.method, params
        ):
            self.negotiation.notified(notification.method)
            self._on_notification(notification.method, params)

    def _cancelled(self, params: dict[str, Any]) -> None:
        id, reason = params.get("requestId"), params.get("reason")
        # 1 == True for a dict, but not for JSON.
        call = self.calls.get(id) if type(id) is int or isinstance(id, str) else None
        if call is None or (self.rules.repeated_ids and self._is_ambiguous(call)):
            self.counters.late += 1
            self._on_notification("notifications/cancelled", params)
        elif not call.cancelled:
            self.counters.cancelled += 1
            call.withdrawn = True
            call.cancel(reason if isinstance(reason, str) else None)

    def _is_ambiguous(self, call: InboundCall) -> bool:
        """Whether another call in flight has the same id: it is better to cancel neither than the wrong one."""
        return any(each.id == call.id and each is not call for each in self.calls.values())

    def forget(self, call: InboundCall) -> None:
        """Takes a call that has ended out of the table, so that its id may be used again."""
        if self.calls.get(call.key) is call:
            del self.calls[call.key]
            if self.on_idle is not None and not self.calls:
                self.on_idle()

    # -- outgoing --------------------------------------------------------------------------------------------------

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: InboundCall | None = None
    ) -> dict[str, Any]:
        """Sends a request of ours; see `OutboundCalls.request`.

        Raises:
            LocalProtocolError: There is no session, so there is no way back to the client.
        """
        if not self.rules.session:
            raise LocalProtocolError(
                f"{method} needs a session: without one there is no way back to the client"
            )
        return await self.outbound.request(method, params, options, call=call)

    async def notify(
        self, method: str, params: dict[str, Any] | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Sends a notification; ``metadata`` is mirrored outside the body, where the channel carries that.

        Raises:
            ConnectionLost, SessionExpired: The peer cannot be reached.
        """
        if self.carrier is None:
            raise self.outbound.loss()
        try:
            frame = Frame(encode_notification(method, params), metadata=metadata, method=method)
            await self.carrier.outlet.send(frame)
        except trio.BrokenResourceError as error:
            raise self.outbound.loss(error) from error

    def post(self, method: str, params: dict[str, Any] | None = None, about: RequestId | None = None) -> None:
        """Queues a notification without waiting; nothing happens when the conversation has ended."""
        if self.carrier is not None:
            self.carrier.outlet.post(Frame(encode_notification(method, params), about, method=method))

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        """Runs ``fn`` as a supervised task of this conversation; nothing happens when that has ended."""
        if self.carrier is not None:
            self.carrier.start_task(kind, fn)

    # -- the end ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ends the calls that would run until the session ends."""
        for call in list(self.calls.values()):
            call.drain()

    async def wait_for_deferred(self) -> None:
        """Waits for the calls that have no task, as a nursery does for the others."""
        if any(each.has_no_task for each in self.calls.values()):
            ended = trio.Event()
            self.on_idle = ended.set
            await ended.wait()

    def abandon_deferred(self) -> None:
        """Ends the calls that have no task which would be cancelled."""
        for call in list(self.calls.values()):
            if call.has_no_task:
                call.cancel("the session ended")

    def end(self, broken: BaseException | None) -> None:
        """Ends the conversation: no more messages come, and requests of ours fail. Idempotent."""
        if self.carrier is not None:
            self.outbound.end(broken)
            if self.limiters.memory is not None:
                self.limiters.memory.forget()
            # These refer to the dispatcher: what has ended must not wait for the garbage collector.
            self.carrier, self._on_notification = None, ignore

    def statistics(self, peer: str, link: LinkStatistics | None = None) -> SessionStatistics:
        """Returns a snapshot of the conversation and its calls."""
        memory = self.limiters.memory
        return SessionStatistics(
            name=self.name,
            peer=peer,
            state=self.state,
            calls=tuple(call.statistics() for call in self.calls.values()),
            pending=tuple(pending.statistics() for pending in self.outbound.pending.values()),
            link=link,
            counters=attrs.evolve(self.counters),
            kept_bytes=memory.kept if memory is not None else 0,
            in_flight=len(self.calls),
            asked=len(self.outbound.pending),
        )


# -- notifications of the peer that a function takes: calls that are never answered --------------------------------


class UnansweredOutlet:
    """The outlet of a notification: drops the answer, and sends what belongs to no request of the peer.

    Args:
        dispatcher: The conversation that the notification belongs to.
        arrived: The outlet that came with the notification.
    """

    def __init__(self, dispatcher: Dispatcher, arrived: Outlet | None) -> None:
        self._dispatcher = dispatcher
        self.http_request: HttpRequest | None = getattr(arrived, "http_request", None)

    @property
    def longest(self) -> int:
        """Unlimited, because no answer is sent."""
        return sys.maxsize

    def post(self, frame: Frame) -> None:
        if not frame.last:
            self._way_back().post(_about_nothing(frame))

    def send_nowait(self, frame: Frame) -> bool:
        return frame.last or self._way_back().send_nowait(_about_nothing(frame))

    async def send(self, frame: Frame) -> None:
        if not frame.last:
            await self._way_back().send(_about_nothing(frame))

    def settle(self) -> None:
        """Does nothing, because no answer is expected."""

    def close_stream(self) -> None:
        """Does nothing, because no stream waits for an answer."""

    def _way_back(self) -> Outlet:
        carrier = self._dispatcher.carrier
        if carrier is None:
            raise trio.BrokenResourceError("the session has ended")
        return carrier.outlet


def _about_nothing(frame: Frame) -> Frame:
    frame.about = None
    return frame


def prepare_unanswered(
    dispatcher: Dispatcher, invocation: Invocation, arrived: Outlet | None = None
) -> InboundCall:
    """Returns the call for a notification; give it to `start_unanswered`."""
    outlet = UnansweredOutlet(dispatcher, arrived)
    return dispatcher.responder.call_class(invocation, dispatcher, outlet, trio.current_time())


def start_unanswered(call: InboundCall, dispatcher: Dispatcher, function: Any, *args: Any) -> None:
    """Runs ``function`` for a notification in a task of the pool. Never waits.

    It counts among the calls in flight, waits for its place as they do, and is dropped where they are refused. What it
    raises is logged.
    """
    try:
        call.admission = dispatcher.limiters.admit()
    except RpcError as error:
        log.warning(
            "notification dropped",
            session=dispatcher.name,
            method=call.invocation.method.name,
            error=str(error),
        )
        return
    call.continuation = Continuation(function, *args)
    call.key = object()
    dispatcher.calls[call.key] = call
    assert dispatcher.pool is not None
    dispatcher.pool.start(call)


# -- a JSON-RPC batch: the answers to its requests go back together, as one array, in any order --------------------

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
