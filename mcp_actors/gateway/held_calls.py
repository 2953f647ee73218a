"""Calls at an upstream that go on while their client, which has no session, is asked.

A server with sessions asks by a request, in the middle of a call. A client of the stateless revisions is asked by an
input-required result, which ends its request (MCP 2026-07-28, Multi Round-Trip Requests). So the call at the server
runs in a task of the gateway, which goes on after that result and is found again by the client's retry:

==================================  ==================================================================================
the held call                       and its client
==================================  ==================================================================================
is attached                         a request of the client waits for it; cancelled, that ends the call
waits for answers                   the client was sent questions; it has `HELD_TIMEOUT` seconds to come back
has ended, and was not fetched      as before; the retry gets the result
==================================  ==================================================================================

The state that the client is given is sealed (`StateSealer`): it names the call by an unguessable id, and is good for
the same request of the same principal alone.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from mcp_actors._actors.deadlines import forget_inherited
from mcp_actors._server.questions import input_required, missing_capability, read_recorded
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import INTERNAL_ERROR, MissingCapability, Overloaded, RpcError, invalid_params
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import Context
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HELD_CALL
from mcp_actors.types import InputRequest, InputResponse

__all__ = ["ASKED_BY", "HELD_TIMEOUT", "RETRY_AFTER", "HeldCall", "HeldCalls"]

HELD_TIMEOUT = 600.0
"""Seconds that a client has for its answers: as long as one with a session has, `Limits.ask_timeout`."""
MAX_HELD = 1024
"""Calls that may wait for their clients, in all."""
MAX_HELD_BY_CALLER = 64
"""The same of one principal or, without one, of one address."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of the requests and questions of all of them; one caller may have an eighth."""
MAX_QUESTIONS = 16
"""Questions of one call that may wait at once."""

RETRY_AFTER = 1.0
"""Seconds after which a caller that is refused may expect better: about the length of a call."""

ASKED_BY = "asked_by"
"""The member of a sealed state that has the name of the upstream to which the retry belongs."""
_HELD = "held"
_ASKED = "asked"
_WHAT = "calls that wait for input"


@attrs.define(eq=False)
class _HeldQuestion:
    question: InputRequest
    answer: InputResponse | None = None
    answered: trio.Event = attrs.field(factory=trio.Event)


class HeldCall:
    """One call at an upstream, for a client that is asked by results.

    Args:
        calls: All of them.
        ctx: The request that began it.
        upstream: The name of the upstream.
    """

    def __init__(self, calls: HeldCalls, ctx: Context[Any], upstream: str) -> None:
        self._upstream = upstream
        self.ctx: Context[Any] | None = ctx
        """The request of the client that waits for it now, ``None`` while the client is asked."""
        self.on_request: Callable[[Context[Any] | None], object] | None = None
        """Is called whenever ``ctx`` is another one, with that."""
        self.id = secrets.token_urlsafe(24)
        self.caller = caller_of(ctx)
        self.weight = 0
        """Bytes that are counted for it; 0 as long as it has not asked."""
        self.scope = trio.CancelScope()
        self._calls = calls
        self.first = ctx
        """The request that began it, whose client declared what it can be asked."""
        self._questions: dict[str, _HeldQuestion] = {}
        self._asked = 0
        self._outcome: Any = None
        self._news = trio.Event()

    def __repr__(self) -> str:
        state = "ended" if self._outcome is not None else "asking" if self._questions else "running"
        return f"<HeldCall {state} attached={self.ctx is not None}>"

    # -- the task ----------------------------------------------------------------------------------------------------

    async def run(self, function: Callable[[HeldCall], Awaitable[Any]]) -> None:
        """Makes the call, and waits until its outcome is fetched or its time is up."""
        outcome: Any = RpcError(INTERNAL_ERROR, "the call was ended by the gateway")
        forget_inherited()
        try:
            with self.scope:
                try:
                    outcome = await function(self)
                except RpcError as error:
                    outcome = error
                self.end_with(outcome)
                if self.ctx is None:
                    await trio.sleep_forever()
        finally:
            self.end_with(outcome)
            self._calls.forget(self)

    def end_with(self, outcome: Any) -> None:
        """Takes the result of the call, or the error; only the first one counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._news.set()

    async def ask(self, question: InputRequest) -> InputResponse:
        """Asks the client and returns its answer; cancelled, the question is forgotten.

        Raises:
            MissingCapability: The client did not declare that it can answer.
            Overloaded: Too many calls wait for answers.
        """
        peer = self.first.peer
        needed = missing_capability(question, peer.raw_capabilities, peer.era)
        if needed is not None:
            raise MissingCapability(needed)
        if len(self._questions) >= MAX_QUESTIONS:
            raise Overloaded.for_caller("questions of one call", MAX_QUESTIONS, RETRY_AFTER)
        self._calls.admit(self, self.first.params, peer.era.unstructure(question))
        self._asked += 1
        key = f"{question.method.partition('/')[0]}-{self._asked}"
        asked = self._questions[key] = _HeldQuestion(question)
        self._news.set()
        try:
            await asked.answered.wait()
        finally:
            self._questions.pop(key, None)
        assert asked.answer is not None
        return asked.answer

    @property
    def principal_key(self) -> str | None:
        """The principal that began it, ``None`` without authentication."""
        return _principal_key(self.first)

    # -- the client --------------------------------------------------------------------------------------------------

    async def wait(self, ctx: Context[Any]) -> Any:
        """Returns the result of the call, or one that asks the client. Cancelled, the call is cancelled.

        Raises:
            RpcError: The call failed.
        """
        self.scope.deadline = math.inf
        self._attach(ctx)
        try:
            while not (self._outcome is not None or self._questions):
                self._news = trio.Event()
                await self._news.wait()
        except BaseException:
            self.scope.cancel(reason="the client has cancelled the call")
            raise
        finally:
            self._attach(None)
        if self._outcome is not None:
            self.scope.cancel(reason="the outcome was fetched")
            if isinstance(self._outcome, RpcError):
                raise self._outcome
            return self._outcome
        self.scope.deadline = trio.current_time() + HELD_TIMEOUT
        asked = {key: each.question for key, each in self._questions.items()}
        # The number of questions tells the rounds apart: clients may take an equal state for the same round.
        sealed = {ASKED_BY: self._upstream, _HELD: self.id, _ASKED: self._asked}
        state = ctx._scope.seal_answers(ctx.call.invocation, sealed, approval=ctx.call.approval)
        return input_required(asked, state, ctx.era)

    def _attach(self, ctx: Context[Any] | None) -> None:
        is_other, self.ctx = ctx is not self.ctx, ctx
        if is_other and self.on_request is not None:
            self.on_request(ctx)

    def take_answers(self, ctx: Context[Any]) -> None:
        """Hands on the answers that a retry has brought; those to questions that are not asked any more are dropped.

        Raises:
            RpcError: -32602: One of them is malformed, so that all are refused.
        """
        recorded = ctx.call.invocation.answers or {}
        answers = {
            key: read_recorded(each.question, key, recorded, ctx.era) for key, each in self._questions.items()
        }
        for key, answer in answers.items():
            if answer is not None:
                asked = self._questions.pop(key)
                asked.answer = answer
                asked.answered.set()


class HeldCalls:
    """All held calls of one gateway.

    Args:
        nursery: Owns their tasks.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._asking: dict[str, HeldCall] = {}
        self._of_callers: Counter[str] = Counter()
        self._bytes_of_callers: Counter[str] = Counter()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<HeldCalls {len(self)}/{MAX_HELD} bytes={self._bytes}>"

    def __len__(self) -> int:
        return len(self._asking)

    async def make(
        self, ctx: Context[Any], upstream: str, function: Callable[[HeldCall], Awaitable[Any]]
    ) -> Any:
        """Makes a call that may be held, in a task of its own; returns and raises as `HeldCall.wait`."""
        held = HeldCall(self, ctx, upstream)
        failed = RpcError(INTERNAL_ERROR, "internal error")
        start(
            self._nursery,
            HELD_CALL,
            held.run,
            function,
            about=ctx.method,
            on_crash=lambda crash: held.end_with(failed),
        )
        return await held.wait(ctx)

    def held_for(self, ctx: Context[Any]) -> HeldCall | None:
        """Returns the call that a retry belongs to, ``None`` if it belongs to none.

        Raises:
            RpcError: -32602: The call has ended, or another retry of it is in flight.
        """
        id = ctx._scope.sealed_answers(ctx.call.invocation).get(_HELD)
        if id is None:
            return None
        held = self._asking.get(id)
        if held is None or held.principal_key != _principal_key(ctx):
            raise invalid_params("requestState: the call has ended, or nobody answered in time; call again")
        if held.ctx is not None:
            raise invalid_params("requestState: another retry of this call is in flight")
        return held

    def admit(self, held: HeldCall, params: Any, question: Any) -> None:
        """Counts a call that asks; raises `Overloaded` if there are too many, or too many bytes in them."""
        weight = len(encode_value(question)) + (0 if held.weight else len(encode_value(params)))
        caller = held.caller
        if not held.weight:
            if self._of_callers[caller] >= MAX_HELD_BY_CALLER:
                raise Overloaded.for_caller(_WHAT, MAX_HELD_BY_CALLER, RETRY_AFTER)
            if len(self) >= MAX_HELD:
                raise Overloaded.for_caller(f"{_WHAT} of all clients", MAX_HELD, RETRY_AFTER)
        if self._bytes_of_callers[caller] + weight > MAX_HELD_BYTES // 8:
            raise Overloaded.for_bytes(_WHAT, "holder", MAX_HELD_BYTES // 8)
        if self._bytes + weight > MAX_HELD_BYTES:
            raise Overloaded.for_bytes(_WHAT, "all", MAX_HELD_BYTES)
        if not held.weight:
            self._asking[held.id] = held
            self._of_callers[caller] += 1
        held.weight += weight
        self._bytes += weight
        self._bytes_of_callers[caller] += weight

    def forget(self, held: HeldCall) -> None:
        """Forgets a call that is over."""
        if self._asking.pop(held.id, None) is None:
            return
        caller = held.caller
        self._of_callers[caller] -= 1
        self._bytes_of_callers[caller] -= held.weight
        self._bytes -= held.weight
        if not self._of_callers[caller]:
            del self._of_callers[caller], self._bytes_of_callers[caller]
        log.debug("a held call is over", held=held.id[:6], waiting=len(self))


def _principal_key(ctx: Context[Any]) -> str | None:
    return None if ctx.principal is None else ctx.principal.key
