"""A call: an inbound request in flight. One task, one cancel scope, at most one answer.

How a call ends, first row that fits:

===============================================  ==============================================================
the peer cancelled it                            nothing is sent, whatever the handler returned
the handler asked for input (`Call.replace`)     the input-required result that it left
the handler returned                             the result, sealed by the era
`RpcError`                                       that error
any other exception                              -32603 without its text, which is logged here
the session ends                                 nothing is sent
===============================================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Invocation
from mcp_actors._exception_groups import sole_cause
from mcp_actors._wire.codec import encode_failure, encode_notification, encode_reply
from mcp_actors._wire.messages import RequestId
from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import (
    INTERNAL_ERROR,
    LocalProtocolError,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    ResourceNotFound,
    RpcError,
)
from mcp_actors.logging import log

__all__ = ["DEFERRED", "Call", "CallStatistics", "Conversation", "Deferred", "Responder", "refusal_frame"]


class Deferred:
    """The type of `DEFERRED`."""

    def __repr__(self) -> str:
        return "DEFERRED"


# What an inline attempt returns when the request needs a task of its own.
DEFERRED = Deferred()


class Conversation(Protocol):
    """What a call can ask of the session it belongs to."""

    name: str

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: Call | None = None
    ) -> dict[str, Any]: ...

    def forget(self, call: Call) -> None: ...


class Responder(Protocol):
    """The floor above: whoever knows what the methods do."""

    stamp: Mapping[str, Any]

    def attempt(self, call: Call) -> Any:
        """Answers at once without blocking, or returns `DEFERRED`."""

    def answer(self, call: Call) -> Awaitable[Any]:
        """Answers in the call's own task."""


@attrs.frozen
class CallStatistics:
    """A snapshot of a call."""

    id: RequestId
    method: str
    target: str | None
    """The tool, prompt or resource that is meant."""
    age: float
    """Seconds since it arrived."""
    state: str
    """``waiting`` for a place, ``running`` or ``cancelled`` (its handler cleans up)."""


class Call:
    """One inbound request in flight."""

    __slots__ = (
        "_on_drain",
        "_over",
        "_replacement",
        "_state",
        "cancelled",
        "conversation",
        "cut_short",
        "id",
        "invocation",
        "key",
        "limiters",
        "limiters_ahead",
        "outlet",
        "prepared",
        "responder",
        "scope",
        "started",
        "ticket",
    )

    def __init__(
        self, invocation: Invocation, conversation: Conversation, outlet: Outlet, responder: Responder
    ) -> None:
        self.id = invocation.id
        # Under which the conversation keeps it: its id, unless another call in flight has the same.
        self.key: Any = invocation.id
        self.invocation = invocation
        self.conversation = conversation
        self.outlet = outlet
        self.responder = responder
        self.scope: trio.CancelScope | None = None
        self.started = trio.current_time()
        # Gates whose place this call holds, those it has still to enter, and the ticket for the first of them.
        self.limiters: Sequence[ConcurrencyLimiter] = ()
        self.limiters_ahead: Sequence[ConcurrencyLimiter] = ()
        self.ticket: trio.Event | None = None
        # What the responder keeps between its attempt to answer at once and the call's own task.
        self.prepared: Any = None
        self.cancelled = False
        # Whether its scope was cancelled. Asking the scope costs a look at the clock.
        self.cut_short = False
        self._over = False
        self._state = "running"
        self._replacement: Any = None
        self._on_drain: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Call {self.id!r} {self.invocation.method.name} {self.state}>"

    # -- from outside ----------------------------------------------------------------------------------------------

    def cancel(self, reason: str | None = None) -> None:
        """The peer no longer wants the answer: the handler sees `trio.Cancelled` and nothing is sent."""
        self.cancelled = True
        if self.scope is not None:
            self._cut_short(self.scope, f"cancelled by the peer: {reason or 'no reason given'}")

    def drain(self) -> None:
        """The connection is about to end: calls without an end of their own end now."""
        if self._on_drain is not None:
            self._on_drain()

    @property
    def state(self) -> str:
        return "cancelled" if self.cancelled else self._state

    # -- for the handler's context ---------------------------------------------------------------------------------

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Registers how a call that would go on for ever (a subscription) is ended gracefully."""
        self._on_drain = callback

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification that belongs to this call; after its end or a cancellation nothing goes out any more."""
        if not self.cancelled and not self._over:
            await self.outlet.send(Frame(encode_notification(method, params), self.id, method=method))

    async def ask(self, method: str, params: dict[str, Any], *, idle: float, cap: float) -> dict[str, Any]:
        """Sends a request to the client on this call's stream; cancelling the call cancels it at the other side."""
        return await self.conversation.request(method, params, CallOptions(idle=idle, cap=cap), call=self)

    def close_stream(self) -> None:
        """Lets go of the connection that waits for this call, if the client comes back by itself for the rest."""
        if not self.cancelled and not self._over:
            self.outlet.close_stream()

    async def replace(self, result: Any) -> None:
        """Ends the call with ``result`` instead of what the handler would return. Never returns.

        The handler is unwound like any cancelled code, so that an ``except Exception`` in it cannot stop this.
        """
        assert self.scope is not None
        self._replacement = result
        self._cut_short(self.scope, "the client is asked for input; its retry runs this handler again")
        await trio.sleep_forever()

    def _cut_short(self, scope: trio.CancelScope, reason: str) -> None:
        self.cut_short = True
        scope.cancel(reason=reason)

    # -- the actor -------------------------------------------------------------------------------------------------

    def attempt(self) -> Frame | None:
        """The answer, if it can be given at once; ``None`` when the call needs a task of its own."""
        try:
            result = self.responder.attempt(self)
            return None if result is DEFERRED else self.reply(result)
        except Exception as error:
            return self.failure(error)

    async def run(self, scope: trio.CancelScope) -> None:
        """Runs the handler inside ``scope`` and sends what comes of it.

        When it was `cut_short`, by `cancel` or `replace`, `finish` comes after the scope; `close` comes in any case.
        """
        self.scope = scope
        if self.cancelled:
            self._cut_short(scope, "cancelled by the peer before it began")
        frame = await self._outcome()
        if not self.cut_short:
            await self._send(frame)

    async def finish(self) -> None:
        """What is left to do outside of the scope that was cancelled."""
        frame = None
        if self._replacement is not None and not self.cancelled:
            try:
                frame = self.reply(self._replacement)
            except Exception as error:
                frame = self.failure(error)
        await self._send(frame)

    def close(self) -> None:
        """The call is over: its id may be used again, its place and its scope are free."""
        self.scope = None
        if not self._over:
            self.conversation.forget(self)
        for limiter in self.limiters:
            limiter.leave()

    async def _send(self, frame: Frame | None) -> None:
        # From here on a cancellation comes too late, as the protocol allows.
        self._over = True
        self.conversation.forget(self)
        try:
            if frame is None:
                self.outlet.settle()
            elif not self.outlet.send_nowait(frame):
                await self.outlet.send(frame)
        except trio.BrokenResourceError:
            log.debug("answer not sent: the connection is gone", id=self.id)
        except LocalProtocolError as error:
            log.warning("answer not sent", id=self.id, error=str(error))

    async def _outcome(self) -> Frame | None:
        try:
            if self.limiters_ahead:
                await self._enter()
            if self.cancelled:
                await trio.lowlevel.checkpoint()
            return self.reply(await self.responder.answer(self))
        except BaseExceptionGroup as group:
            return self._group_failure(group)
        except Exception as error:
            return None if self._is_silent(error) else self.failure(error)

    async def _enter(self) -> None:
        self._state = "waiting"
        entered = list(self.limiters)
        ticket, self.ticket = self.ticket, None
        try:
            for limiter in self.limiters_ahead:
                if ticket is None and not limiter.try_enter():
                    ticket = limiter.expect()
                if ticket is not None:
                    await limiter.enter(ticket)
                    ticket = None
                entered.append(limiter)
        finally:
            self.limiters = entered
        self._state = "running"

    def _is_silent(self, error: BaseException) -> bool:
        if self.cancelled:
            log.debug("a cancelled handler raised while it cleaned up", id=self.id, exc_info=error)
        return self.cancelled

    def _group_failure(self, group: BaseExceptionGroup[BaseException]) -> Frame | None:
        """A handler's own nursery broke. Cancellation from outside goes on; one sole cause speaks for itself."""
        cancelled, rest = group.split(trio.Cancelled)
        if cancelled is not None:
            if rest is not None:
                log.warning("a handler raised while it was cancelled", id=self.id, exc_info=rest)
            raise cancelled
        if not isinstance(group, ExceptionGroup):
            raise group
        cause = sole_cause(group)
        return None if self._is_silent(cause) else self.failure(cause)

    # -- encoding --------------------------------------------------------------------------------------------------

    def reply(self, result: Any) -> Frame:
        """The answer as a frame; raises what the encoder raises for a value that JSON cannot hold."""
        invocation = self.invocation
        payload = invocation.era.seal(result, invocation.method, self.responder.stamp)
        data = encode_reply(self.id, payload)
        if len(data) > self.outlet.longest:
            raise RpcError(
                INTERNAL_ERROR,
                f"the result is too long to be sent: {len(data)} bytes, the limit is {self.outlet.longest}",
            )
        return Frame(data, self.id, True)

    def failure(self, error: BaseException) -> Frame:
        """The error as a frame. Only `RpcError` says more than that something went wrong."""
        if not isinstance(error, RpcError):
            log.error("handler failed", method=self.invocation.method.name, id=self.id, exc_info=error)
            error = RpcError(INTERNAL_ERROR, "internal error")
        code = error.code
        if isinstance(error, ResourceNotFound):
            code = self.invocation.era.resource_not_found
        refused = isinstance(error, MethodNotFound | MissingCapability | Overloaded)
        encode = refusal_frame if refused else failure_frame
        return encode(self.id, code, error.message, error.data)

    def statistics(self) -> CallStatistics:
        """Where the call stands."""
        method = self.invocation.method
        target = self.invocation.params.get(method.target) if method.target else None
        age = trio.current_time() - self.started
        return CallStatistics(
            self.id, method.name, target if isinstance(target, str) else None, age, self.state
        )


def failure_frame(id: RequestId | None, code: int, message: str, data: Any = None) -> Frame:
    """An error response; data that JSON cannot hold is left out rather than losing the answer."""
    try:
        encoded = encode_failure(id, code, message, data)
    except (TypeError, ValueError):
        log.warning("error data cannot be encoded", id=id, code=code)
        encoded = encode_failure(id, code, message)
    return Frame(encoded, id, True)


def refusal_frame(id: RequestId | None, code: int, message: str, data: Any = None) -> Frame:
    """An error response to what cannot be served as it stands; it says so to bindings that have a status for that."""
    frame = failure_frame(id, code, message, data)
    frame.refusal = code
    return frame
