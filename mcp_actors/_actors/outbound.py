"""All requests of ours in one session: made here, answered by the session's reader, timed by one clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeGuard

import msgspec
import trio

from mcp_actors._actors.deadlines import with_time_left
from mcp_actors._actors.inbound_call import DetachedCall, InboundCall
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions, DeadlineClock, OutboundCall, Progress
from mcp_actors._wire.codec import (
    JsonRpcError,
    JsonRpcResult,
    RequestId,
    decode_value,
    encode_notification,
    encode_request,
)
from mcp_actors.abc import Frame, Outlet, Telemetry
from mcp_actors.errors import (
    CallTimeout,
    ConnectionLost,
    McpError,
    RemoteProtocolError,
    RpcError,
    SessionExpired,
)
from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.logging import log

__all__ = ["KINDS", "CallKinds", "OutboundCalls"]

# How much of what came instead of messages is remembered: enough to recognize a banner or a stray print.
MAX_REMEMBERED = 3
# Ids that one node has for the requests of a session before another one goes on with it.
IDS_OF_A_NODE = 1 << 20


class CallCarrier(Protocol):
    """The connection or session that carries the requests of one side, seen from them."""

    @property
    def outlet(self) -> Outlet: ...

    @property
    def peer(self) -> str: ...

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None: ...

    def connection_lost(self, broken: BaseException | None) -> ConnectionLost | SessionExpired: ...

    def request_ended(self, request: RequestId) -> None: ...

    def withdraw(self) -> Iterable[Frame]: ...


class OutboundCalls:
    """The requests of ours that one session waits for, by id; ``name`` and ``telemetry`` are for observed ones."""

    def __init__(
        self, carrier: CallCarrier, limits: Limits, name: str = "", telemetry: Telemetry | None = None
    ) -> None:
        self.pending: dict[RequestId, OutboundCall] = {}
        self.standing = 0
        """How many of them are subscriptions, which are answered when they end."""
        self.clock = DeadlineClock(self.pending, carrier.start_task)
        self.meta: Mapping[str, Any] = {}
        """What every request of this session carries in its ``_meta``."""
        self.version: str | None = None
        """The protocol version, once it was agreed on; for telemetry."""
        self._carrier: CallCarrier | None = carrier
        self._limits = limits
        self._last_id = 0
        self._lost: ConnectionLost | SessionExpired | None = None
        self.on_wait: Callable[[bool], object] | None = None
        """Is called with true when a person begins to be asked before requests can go on, and with false at the end."""
        self.received: tuple[str, ...] = ()
        """The beginnings of the first malformed messages, for the error of a caller that waits in vain."""

    def __repr__(self) -> str:
        return f"<OutboundCalls {'open' if self._lost is None else 'ended'} pending={len(self.pending)}>"

    @property
    def ended(self) -> bool:
        """Whether the session is over, so that every request raises why."""
        return self._carrier is None

    @property
    def is_plain(self) -> bool:
        """Whether a request may be sent by `begin` and `finish`: there is a session, and no telemetry observes it."""
        return self._carrier is not None

    @property
    def last_id(self) -> int:
        """The last id that was used; 0 before the first."""
        return self._last_id

    def go_on_behind(self, last_id: int) -> None:
        """Goes on with ids far behind ``last_id``: another node may use some more for calls that it still has."""
        self._last_id = (last_id // IDS_OF_A_NODE + 1) * IDS_OF_A_NODE

    def next_id(self) -> int:
        """Ids count up and are never used again: the legacy rule, and right for both eras."""
        self._last_id += 1
        return self._last_id

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        options: CallOptions,
        *,
        call: InboundCall | None = None,
        id: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Sends a request and waits for its result, a decoded JSON object.

        When the caller is cancelled, or a clock of ``options`` runs out, the peer is sent one cancellation.

        Args:
            call: The call of the peer on whose behalf this is requested: it is sent where that call's answer goes.
            id: An id from `next_id` that was taken before, for who must know it before the answer.
            metadata: What the protocol mirrors outside the body, where the channel carries that.

        Raises:
            RpcError: The peer answered with an error.
            CallTimeout: A clock of ``options`` ran out.
            DeadlineExceeded: The call that is answered in this task has no time left; nothing was sent.
            ConnectionLost: There is no connection, or it ended before the answer.
            SessionExpired: The server has forgotten the session.
            RemoteProtocolError: The result is not an object.
        """
        pending, outlet = self.begin(method, params, options, call=call, id=id, metadata=metadata)
        result: dict[str, Any] = await self.finish(pending, outlet, options, call=call)
        return result

    async def finish(
        self,
        pending: OutboundCall,
        outlet: Outlet,
        options: CallOptions,
        *,
        call: InboundCall | None = None,
        read: Callable[[msgspec.Raw], Any] | None = None,
    ) -> Any:
        """Waits for the result of a request that was begun, as the second part of `request`; raises as that does.

        Args:
            outlet: What `begin` returned with the call.
            call: What `begin` was given.
            read: Makes the result of its JSON, or returns ``None`` for one that is to be returned as a decoded object.
        """
        try:
            if pending.unsent is not None:
                await self._send(pending.unsent, pending, outlet)
            await pending.wait()
            answer = pending.taken()
        except BaseException as error:
            self._gave_up(pending, error, options, call)
            raise
        finally:
            del self.pending[pending.id]
        return _result_of(answer, read)

    def begin(
        self,
        method: str,
        params: dict[str, Any],
        options: CallOptions,
        *,
        call: InboundCall | None = None,
        id: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[OutboundCall, Outlet]:
        """Sends a request if there is room, as the first part of `request`; raises as that does.

        Returns the call, which is pending, and the outlet that it goes to.
        """
        carrier = self._carrier
        if carrier is None:
            raise self.loss(never_run=True)
        if id is None:
            id = self._last_id = self._last_id + 1
        on_progress, more, cap = options.on_progress, options.meta, options.cap
        if options.sends_deadline:
            more, cap = with_time_left(method, options)
        said = self.meta if options.envelope is None else options.envelope
        if not more and "_meta" not in params:
            # Most requests add nothing of their own.
            if on_progress or options.wants_progress:
                params = {**params, "_meta": {**said, "progressToken": id}}
            elif said:
                params = {**params, "_meta": said}
        elif said or more or on_progress or options.wants_progress:
            # What the engine itself says comes last, so that no caller passes for another client.
            meta = {**params.get("_meta", {}), **(more or {}), **said}
            if on_progress or options.wants_progress:
                meta["progressToken"] = id
            params = {**params, "_meta": meta}
        reports = None if on_progress is None else deque[Progress](maxlen=self._limits.progress_queue)
        pending = OutboundCall(id, method, options.idle, cap, on_progress, reports, options.on_message)
        outlet, about = (carrier.outlet, None) if call is None else (call.outlet, call.id)
        frame = Frame(encode_request(id, method, params), about, False, metadata, method, id)
        self.pending[id] = pending
        try:
            if not outlet.send_nowait(frame):
                pending.unsent = frame
        except BaseException as error:
            del self.pending[id]
            carrier.request_ended(id)
            if isinstance(error, trio.BrokenResourceError):
                raise self.loss(error, never_run=True) from error
            raise
        if pending.is_open:
            # A peer in this process may have answered already, and then no clock is needed.
            self.clock.watch(pending.deadline)
        return pending, outlet

    def take(self, pending: OutboundCall, options: CallOptions) -> dict[str, Any]:
        """Returns the result of a request that was begun, now that it is there; raises as `request` does."""
        try:
            answer = pending.taken()
        except BaseException as error:
            self._gave_up(pending, error, options)
            raise
        finally:
            del self.pending[pending.id]
        result: dict[str, Any] = _result_of(answer)
        return result

    def give_up(self, pending: OutboundCall, options: CallOptions) -> None:
        """Gives up a request that was begun: the peer is sent a cancellation."""
        del self.pending[pending.id]
        pending.on_done = None
        self._gave_up(pending, None, options)

    def forget(self, pending: OutboundCall) -> None:
        """Takes back a request that was begun and for which there is no room."""
        del self.pending[pending.id]
        if self._carrier is not None:
            self._carrier.request_ended(pending.id)

    def _gave_up(
        self,
        pending: OutboundCall,
        error: BaseException | None,
        options: CallOptions,
        call: InboundCall | None = None,
    ) -> None:
        """Ends the wait for an answer; the peer is sent a cancellation if it may have work left."""
        # For an answer it was said when that arrived, before reports of progress that its caller has to see first.
        carrier = self._carrier
        if carrier is not None:
            carrier.request_ended(pending.id)
        if isinstance(error, CallTimeout):
            error.received = self.received
        if pending.unsent is None and options.cancellable and carrier is not None and not pending.answered:
            outlet, about = (carrier.outlet, None) if call is None else (call.outlet, call.id)
            self._take_back(pending.id, isinstance(error, CallTimeout), outlet, about)

    def _take_back(self, id: RequestId, timed_out: bool, outlet: Outlet, about: RequestId | None) -> None:
        method = "notifications/cancelled"
        reason = "timed out" if timed_out else "the caller gave up"
        data = encode_notification(method, {"requestId": id, "reason": reason})
        with suppress(trio.BrokenResourceError):
            outlet.post(Frame(data, about, method=method, cancels=id))

    async def _send(self, frame: Frame, pending: OutboundCall, outlet: Outlet) -> None:
        """Waits for room, but no longer than for the answer: then it was not sent."""
        while True:
            with trio.move_on_at(math.inf if self.clock.is_stopped else pending.deadline.at):
                try:
                    await outlet.send(frame)
                except trio.BrokenResourceError as error:
                    raise self.loss(error, never_run=True) from error
                pending.unsent = None
                return
            if not self.clock.is_stopped and pending.deadline.at <= trio.current_time():
                pending.expire()
                return

    def note_malformed(self, beginning: str, session: str) -> None:
        """Remembers and logs the first malformed messages."""
        if beginning and len(self.received) < MAX_REMEMBERED:
            self.received += (beginning,)
            log.warning("the server sent text that is not a message", session=session, text=beginning)

    @property
    def waits_for_person(self) -> bool:
        """Whether a person is asked before requests can go on."""
        return self.clock.is_stopped

    def suspend_idle_clock(self, over: bool) -> None:
        """Stops the clocks of all requests while a person is asked."""
        if over is not self.clock.is_stopped:
            return
        if over:
            self.clock.go_on()
        else:
            self.clock.stop()
        if self.on_wait is not None:
            self.on_wait(not over)

    def answered(self, answer: JsonRpcResult | JsonRpcError) -> bool:
        """Wakes the task that waits for this answer; returns false if no request does."""
        pending = None if answer.id is None else self.pending.get(answer.id)
        if pending is None:
            return False
        pending.resolve(answer)
        # Not only when its caller wakes up, who may have reports of progress to see first.
        if self._carrier is not None:
            self._carrier.request_ended(pending.id)
        return True

    def unanswered(self, id: RequestId, reason: McpError | None) -> bool:
        """Ends a request that will get no answer; returns false if it is not pending."""
        pending = self.pending.get(id)
        if pending is None:
            return False
        pending.resolve(reason or self.loss())
        if self._carrier is not None:
            self._carrier.request_ended(pending.id)
        return True

    def progressed(self, params: dict[str, Any]) -> bool:
        """Hands a progress report to its call; returns false without a call or for anything else."""
        token, amount = params.get("progressToken"), params.get("progress")
        # 1 == True for a dict, but not for JSON.
        pending = self.pending.get(token) if type(token) is int or isinstance(token, str) else None
        if pending is None or not _is_number(amount):
            return False
        total, message = params.get("total"), params.get("message")
        pending.progressed(
            Progress(
                amount, total if _is_number(total) else None, message if isinstance(message, str) else None
            )
        )
        return True

    def came_with(self, request: RequestId, method: str, params: dict[str, Any]) -> bool:
        """Hands a notification to the request that it came with; false if that wants none."""
        pending = self.pending.get(request)
        if pending is None or pending.on_message is None:
            return False
        return pending.on_message(method, params)

    def loss(
        self, broken: BaseException | None = None, *, never_run: bool = False
    ) -> ConnectionLost | SessionExpired:
        """Makes the exception for a request that gets no answer: a new one each time, as each is raised elsewhere.

        Args:
            broken: What broke the connection, if it is not known yet.
            never_run: Whether nothing of the request was sent.
        """
        if self._carrier is not None:
            return _renewed(self._carrier.connection_lost(broken), never_run)
        assert self._lost is not None
        return _renewed(self._lost, never_run)

    def was_not_sent(self, frame: Frame) -> None:
        """Takes note that nothing of a frame was sent, and that nothing of it will be: the connection is broken."""
        pending = None if frame.request is None else self.pending.get(frame.request)
        if pending is not None:
            pending.never_sent = True

    def end(self, broken: BaseException | None) -> None:
        """There will be no more answers: every call raises why."""
        if self._carrier is None:
            return
        _forget_frames(broken)
        for frame in self._carrier.withdraw():
            self.was_not_sent(frame)
        self._lost = self._carrier.connection_lost(broken)
        self._carrier = None
        self.clock.end()
        for pending in list(self.pending.values()):
            pending.resolve(_renewed(self._lost, pending.never_sent))


def _renewed(lost: ConnectionLost | SessionExpired, never_run: bool) -> ConnectionLost | SessionExpired:
    if isinstance(lost, ConnectionLost):
        return lost.renewed(never_run)
    copy = SessionExpired(*lost.args, never_run=lost.never_run)
    copy.__cause__ = lost.__cause__
    return copy


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _result_of(answer: JsonRpcResult | JsonRpcError, read: Callable[[msgspec.Raw], Any] | None = None) -> Any:
    if isinstance(answer, JsonRpcError):
        raise RpcError.from_wire(answer.code, answer.message, answer.data)
    if read is not None and (made := read(answer.result)) is not None:
        return made
    result = decode_value(answer.result)
    if not isinstance(result, dict):
        raise RemoteProtocolError("the peer answered with a result that is not an object")
    return result


def _forget_frames(error: BaseException | None) -> None:
    """Drops tracebacks, whose frames would keep the last messages for as long as the exception is kept."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class CallKinds(NamedTuple):
    """The classes by which the calls of a conversation are made."""

    inbound: type[InboundCall]
    detached: type[DetachedCall]
    outbound: type[OutboundCalls]


KINDS = {False: CallKinds(InboundCall, DetachedCall, OutboundCalls)}
"""The kinds of calls, by whether telemetry observes them. `mcp_actors._actors.observed` enters its own kinds when it is
imported; a side with telemetry imports it before its first conversation, and others pay nothing for it."""
