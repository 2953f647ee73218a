"""A session that no connection carries: its binding brings messages as they come, each with an outlet for its answers.

It is an actor only while it has work: its calls run in tasks that it shares with its siblings, and an idle session is
nothing but its tables, so that a process can hold tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.budgets import ClientMemory
from mcp_actors._actors.counters import SessionStatistics
from mcp_actors._actors.dispatcher import Dispatcher, DispatchRules, Loss, NotificationHandler
from mcp_actors._actors.inbound_call import Responder
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.classify import Classified
from mcp_actors._eras.server_negotiation import ServerNegotiation
from mcp_actors._wire.messages import RequestId
from mcp_actors.abc import Arrival, Outlet, SessionOutlet
from mcp_actors.errors import ConnectionLost
from mcp_actors.supervision import TaskKind, start, start_again

__all__ = ["ConnectionlessSession"]

# Each of two requests with one id has an outlet of its own: that of the exchange which brought it.
RULES = DispatchRules(answers_malformed=True, repeated_ids=True)


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
    ) -> None:
        self.outlet = outlet
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
            RULES,
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
        if self.dispatcher.carrier is not None:
            self.dispatcher.dispatch(arrival.message, outlet)

    def stop(self) -> None:
        """Lets calls in flight end, then closes."""
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
        return self.dispatcher.name

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        begin = start_again if kind.restarted else start
        begin(self._nursery, kind, fn)

    def request_ended(self, request: RequestId) -> None:
        pass

    def connection_lost(self, broken: BaseException | None) -> Loss:
        lost = ConnectionLost(
            "the session ended" if broken is None else f"the client cannot be reached: {broken}"
        )
        lost.__cause__ = broken
        return lost

    def statistics(self) -> SessionStatistics:
        """Returns where the session and its calls stand."""
        return self.dispatcher.statistics(self.peer)
