"""Calls without a connection: sessions whose binding brings single messages, and exchanges without a session.

Each message comes with an outlet for its answers. A `ConnectionlessSession` is an actor only while it has work: its
calls run in tasks that it shares with its siblings, and an idle session is nothing but its tables, so that a process
can hold tens of thousands of them. `StatelessCalls` are all single exchanges of one server: requests that came by
themselves, each answered where it came from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from mcp_actors._actors.dispatcher import (
    Dispatcher,
    DispatchRules,
    Loss,
    NotificationHandler,
    SessionStatistics,
)
from mcp_actors._actors.inbound_call import InboundCall, Responder
from mcp_actors._actors.limits import ClientMemory, ConcurrencyLimiter, Limiters, Limits
from mcp_actors._actors.task_pool import TaskPool, run_call
from mcp_actors._eras.server_negotiation import Classified, ExchangeNegotiation, ServerNegotiation
from mcp_actors._wire.codec import JsonRpcNotification, JsonRpcRequest, RequestId
from mcp_actors.abc import Arrival, Frame, Outlet, SessionOutlet
from mcp_actors.errors import ConnectionLost, LocalProtocolError, MalformedMessage
from mcp_actors.supervision.containment import TaskKind, start, start_again
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import EXCHANGE

__all__ = ["ConnectionlessSession", "StatelessCalls"]


# Each of two requests with one id has an outlet of its own: that of the exchange which brought it.
SESSION_RULES = DispatchRules(answers_malformed=True, repeated_ids=True)


class ConnectionlessSession:
    """Fulfils `mcp_actors.abc.ServerSession`.

    Args:
        outlet: Takes what belongs to none of the client's requests.
        pool: Runs the calls.
        nursery: Owns the session's other tasks.
        on_closed: Is called once, when the session has ended.
        on_notification: As `Dispatcher` has it.
    """

    def __init__(
        self,
        name: str,
        outlet: Outlet,
        negotiation: ServerNegotiation,
        responder: Responder,
        pool: TaskPool,
        nursery: trio.Nursery,
        *,
        limits: Limits,
        limiter: ConcurrencyLimiter,
        memory: ClientMemory,
        on_closed: Callable[[ConnectionlessSession], None],
        on_notification: NotificationHandler,
        peer: str | None = None,
    ) -> None:
        self.outlet = outlet
        self._peer = peer
        self._legacy = negotiation.legacy
        self._nursery = nursery
        self._on_closed = on_closed
        self._stopping = False
        self._without_calls: trio.Event | None = None
        self.dispatcher = Dispatcher(
            name,
            self,
            negotiation,
            responder,
            SESSION_RULES,
            limits=limits,
            limiter=limiter,
            on_notification=on_notification,
            memory=memory,
        )
        self.dispatcher.on_idle = self._idle
        self.dispatcher.pool = pool

    def __repr__(self) -> str:
        dispatcher = self.dispatcher
        return (
            f"<ConnectionlessSession {dispatcher.name} {dispatcher.state} calls={len(dispatcher.calls)} "
            f"pending={len(dispatcher.outbound.pending)}>"
        )

    # -- as a `ServerSession` ----------------------------------------------------------------------------------------

    @property
    def initialized(self) -> bool:
        return self._legacy.era is not None

    @property
    def busy(self) -> bool:
        return bool(self.dispatcher.calls or self.dispatcher.outbound.pending)

    @property
    def resumes(self) -> bool:
        return self._legacy.era is not None and self._legacy.era.resumes

    def deliver(self, arrival: Arrival, outlet: Outlet) -> None:
        assert isinstance(arrival, Classified)
        dispatcher = self.dispatcher
        if dispatcher.carrier is not None and dispatcher.pool is not None:
            dispatcher.pool.read_at = trio.current_time()
            dispatcher.dispatch(arrival.message, outlet)

    def stop(self, grace: float | None = None) -> None:
        """Lets calls in flight end, then closes. The server, which knows of no connection here, keeps the ``grace``."""
        self._stopping = True
        self.dispatcher.drain()
        if not self.dispatcher.calls:
            self.close()

    async def wait_until_idle(self) -> None:
        """Waits until no call is in flight."""
        while self.dispatcher.calls:
            if self._without_calls is None:
                self._without_calls = trio.Event()
            await self._without_calls.wait()

    def end(self) -> None:
        """Ends the session as its client would: its binding answers what is in flight, and knows its id no more."""
        if isinstance(self.outlet, SessionOutlet):
            self.outlet.end_session()
        self.close()

    def close(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.carrier is None:
            return
        dispatcher.end(None)
        dispatcher.on_idle = None
        for call in list(dispatcher.calls.values()):
            call.cancel("the session ended")
        self._on_closed(self)

    def _idle(self) -> None:
        if self._without_calls is not None:
            self._without_calls.set()
            self._without_calls = None
        if self._stopping and not self.dispatcher.calls:
            self.close()

    # -- as the carrier of its dispatcher ----------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._peer or self.dispatcher.name

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        begin = start_again if kind.restarted else start
        begin(self._nursery, kind, fn)

    def request_ended(self, request: RequestId) -> None:
        pass

    def withdraw(self) -> Iterable[Frame]:
        return ()

    def connection_lost(self, broken: BaseException | None) -> Loss:
        lost = ConnectionLost(
            "the session ended" if broken is None else f"the client cannot be reached: {broken}"
        )
        lost.__cause__ = broken
        return lost

    def statistics(self) -> SessionStatistics:
        """Returns a snapshot of the session and its calls."""
        return self.dispatcher.statistics(self.peer)


ExchangeNotificationHandler = Callable[[JsonRpcNotification, Outlet, ExchangeNegotiation], None]

# Each exchange has an outlet of its own.
EXCHANGE_RULES = DispatchRules(answers_malformed=True, repeated_ids=True, session=False)


def _ignore_alone(
    notification: JsonRpcNotification, outlet: Outlet, negotiation: ExchangeNegotiation
) -> None:
    """Takes a notification after the server has stopped."""


class StatelessCalls:
    """All exchanges of one server that are in flight: calls without a session.

    Args:
        negotiation: What the server speaks; each exchange is opened by itself.
        on_notification: Takes each notification that came by itself, with the outlet that came with it.
        nursery: Owns the tasks in which exchanges run that no binding awaits.
    """

    def __init__(
        self,
        name: str,
        negotiation: ServerNegotiation,
        responder: Responder,
        pool: TaskPool,
        nursery: trio.Nursery,
        *,
        limits: Limits,
        limiter: ConcurrencyLimiter,
        on_notification: ExchangeNotificationHandler,
        memory: ClientMemory,
    ) -> None:
        self.ended = trio.lowlevel.ParkingLot()
        self._negotiation = negotiation
        self._on_notification = on_notification
        self._nursery = nursery
        self.dispatcher = Dispatcher(
            name, self, negotiation, responder, EXCHANGE_RULES, limits=limits, memory=memory
        )
        self.dispatcher.limiters = Limiters(limiter, memory=memory)
        self.dispatcher.on_idle = self.ended.unpark_all
        self.dispatcher.pool = pool

    def __repr__(self) -> str:
        return f"<StatelessCalls {self.dispatcher.name} {len(self.dispatcher.calls)} in flight>"

    async def run(
        self, arrival: Classified, outlet: Outlet, principal: Principal | None, peer: str | None
    ) -> None:
        """Answers what arrived, and returns when all of it is sent.

        Cancelled, the handlers are cancelled too, and nothing more is sent.
        """
        calls = self._open(arrival, outlet, principal, peer)
        if len(calls) == 1:
            await run_call(calls[0])
        elif calls:
            async with trio.open_nursery() as nursery:
                for call in calls:
                    start(nursery, EXCHANGE, run_call, call, about=call.invocation.method.name)

    def begin(
        self, arrival: Classified, outlet: Outlet, principal: Principal | None, peer: str | None
    ) -> Callable[[], None] | None:
        """The same in tasks of the pool. Returns what cancels it, or ``None`` when all is answered already."""
        calls = self._open(arrival, outlet, principal, peer)
        if not calls:
            return None
        pool = self.dispatcher.pool
        assert pool is not None
        for call in calls:
            pool.start(call)
        # A call may have ended with its first step. What cancels it refers to it, and its outlet to that.
        calls = [call for call in calls if call.state != "answered"]
        if not calls:
            return None
        if len(calls) == 1:
            return calls[0].cancel

        def cancel() -> None:
            for call in calls:
                call.cancel()

        return cancel

    def close(self) -> None:
        """Forgets what refers to these calls, when the server has stopped and all of them have ended."""
        self.dispatcher.end(None)
        self._on_notification = _ignore_alone

    def _open(
        self, arrival: Classified, outlet: Outlet, principal: Principal | None, peer: str | None
    ) -> list[InboundCall]:
        dispatcher, message = self.dispatcher, arrival.message
        assert dispatcher.pool is not None
        dispatcher.pool.read_at = trio.current_time()
        negotiation = ExchangeNegotiation(self._negotiation, arrival, principal, peer)
        if isinstance(message, JsonRpcRequest):
            call = dispatcher.open(message, outlet, negotiation)
            return [] if call is None else [call]
        if isinstance(message, list):
            return self._open_batch(message, outlet, negotiation)
        if (error := negotiation.refusal()) is not None:
            dispatcher.refuse(None, error, outlet)
        elif isinstance(message, JsonRpcNotification):
            self._on_notification(message, outlet, negotiation)
        # Anything else is an answer to a question that was never asked, and is ignored.
        return []

    def _open_batch(
        self, messages: list[Any], outlet: Outlet, negotiation: ExchangeNegotiation
    ) -> list[InboundCall]:
        """Opens a batch of a revision that has them, sent to a server that keeps no sessions."""
        dispatcher = self.dispatcher
        calls: list[InboundCall] = []
        if dispatcher.opens_batch(messages, outlet, negotiation):
            outlet = dispatcher.collected(messages, outlet)
            for each in messages:
                if isinstance(each, MalformedMessage):
                    dispatcher.malformed(each, outlet)
                elif isinstance(each, JsonRpcRequest):
                    call = dispatcher.open(each, outlet, negotiation)
                    calls += [] if call is None else [call]
        return calls

    # -- as the carrier of its dispatcher ----------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self.dispatcher.name

    @property
    def outlet(self) -> Outlet:
        raise LocalProtocolError("without a session there is no way back to the client")

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        begin = start_again if kind.restarted else start
        begin(self._nursery, kind, fn)

    def request_ended(self, request: RequestId) -> None:
        pass

    def withdraw(self) -> Iterable[Frame]:
        return ()

    def connection_lost(self, broken: BaseException | None) -> Loss:
        return ConnectionLost("the server has stopped")
