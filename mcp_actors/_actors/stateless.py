"""An exchange: a request that came by itself, answered where it came from. The task that awaits it is the call."""

from __future__ import annotations

from typing import Any, NoReturn

import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.inbound_call import Call, Responder, refusal_frame
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.era import Invocation
from mcp_actors.abc import Outlet
from mcp_actors.errors import LocalProtocolError, RpcError

__all__ = ["StatelessCalls"]


class StatelessCalls:
    """All exchanges of one server that are in flight: calls without a session."""

    def __init__(self, name: str, limiter: ConcurrencyLimiter) -> None:
        self.name = name
        self.calls: dict[Call, None] = {}
        self.ended = trio.lowlevel.ParkingLot()
        self._limiter = limiter

    def __repr__(self) -> str:
        return f"<StatelessCalls {self.name} {len(self.calls)} in flight>"

    async def run(self, invocation: Invocation, outlet: Outlet, responder: Responder) -> None:
        """Returns when the answer was given to ``outlet``; cancelled, the handler is, and nothing more is sent."""
        call = self._open(invocation, outlet, responder)
        if call is None:
            return
        scope = trio.CancelScope()
        try:
            with scope:
                await call.run(scope)
            if call.cut_short:
                await call.finish()
        finally:
            call.close()

    def begin(
        self, invocation: Invocation, outlet: Outlet, responder: Responder, pool: TaskPool
    ) -> Call | None:
        """The same in a task of ``pool``. ``None`` when it was answered at once."""
        call = self._open(invocation, outlet, responder)
        if call is not None:
            pool.start(call)
        return call

    def _open(self, invocation: Invocation, outlet: Outlet, responder: Responder) -> Call | None:
        call = Call(invocation, self, outlet, responder)
        answer = call.attempt()
        if answer is not None:
            outlet.post(answer)
            return None
        if self._limiter.try_enter():
            call.limiters = (self._limiter,)
        else:
            call.limiters_ahead = (self._limiter,)
        self.calls[call] = None
        return call

    def refuse(self, id: int | str | None, error: RpcError, outlet: Outlet) -> None:
        """Answers what could not even be opened."""
        outlet.post(refusal_frame(id, error.code, error.message, error.data))

    def drain(self) -> None:
        """Ends the calls that would go on for ever."""
        for call in list(self.calls):
            call.drain()

    # -- what a call asks of its conversation ----------------------------------------------------------------------

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: Call | None = None
    ) -> NoReturn:
        raise LocalProtocolError(f"{method} needs a session: without one there is no way back to the client")

    def forget(self, call: Call) -> None:
        # Hardly ever does anybody wait for the last one, and asking costs less than waking nobody.
        if self.calls.pop(call, call) is None and not self.calls and self.ended:
            self.ended.unpark_all()
