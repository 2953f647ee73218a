"""A session that no connection carries: its binding brings messages as they come, each with an outlet for its answers.

It is an actor only while it has work: its calls run in tasks that it shares with its siblings, and an idle session is
nothing but its tables, so that a process can hold tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.dispatcher import Dispatcher, Loss
from mcp_actors._actors.inbound_call import Call, Responder
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._eras.classify import Classified
from mcp_actors._eras.server_negotiation import ServerNegotiation
from mcp_actors.abc import Outlet
from mcp_actors.errors import ConnectionLost
from mcp_actors.logging import log

__all__ = ["ConnectionlessSession"]


class ConnectionlessSession(Dispatcher):
    """Fulfils `mcp_actors.abc.ServerSession`; its calls run in ``pool``. ``on_closed`` is called once."""

    # Each of two requests with one id has an answer of its own to wait for: the exchange that brought it.
    twins = True

    def __init__(
        self,
        name: str,
        outlet: Outlet,
        opening: ServerNegotiation,
        responder: Responder,
        pool: TaskPool,
        *,
        limits: Limits,
        server_limiter: ConcurrencyLimiter,
        on_closed: Callable[[ConnectionlessSession], None],
    ) -> None:
        super().__init__(
            name,
            outlet,
            opening,
            responder,
            limits=limits,
            server_limiter=server_limiter,
            on_notification=self._ignored,
            answers_malformed=True,
        )
        self._conversation = opening.legacy
        self._pool = pool
        self._on_closed = on_closed
        # Called whenever the last call in flight has ended.
        self.on_idle: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        pending = len(self.outbound.pending)
        return f"<ConnectionlessSession {self.name} {self.state} calls={len(self.calls)} pending={pending}>"

    @property
    def initialized(self) -> bool:
        return self._conversation.era is not None

    @property
    def busy(self) -> bool:
        return bool(self.calls or self.outbound.pending)

    @property
    def resumes(self) -> bool:
        return self._conversation.era is not None and self._conversation.era.resumes

    @property
    def peer(self) -> str:
        return self.name

    def deliver(self, arrival: Classified, outlet: Outlet) -> None:
        if self._ending is None:
            self._dispatch(arrival.message, outlet)

    def start_soon(self, fn: Callable[[], Any], name: str) -> None:
        if self._pool is not None and self._ending is None:
            self._pool.start_soon(fn, name)

    def forget(self, call: Call) -> None:
        super().forget(call)
        if not self.calls:
            self.on_idle()

    def stop(self) -> None:
        """Lets calls in flight end, then closes."""
        for call in list(self.calls.values()):
            call.drain()
        self.on_idle = self.close
        if not self.calls:
            self.close()

    def close(self) -> None:
        if self._ending is not None:
            return
        self._ending = self._loss(None)
        self.outbound.end(None)
        for call in list(self.calls.values()):
            call.cancel("the session ended")
        self._on_closed(self)

    def _loss(self, broken: BaseException | None) -> Loss:
        lost = ConnectionLost(
            "the session ended" if broken is None else f"the client cannot be reached: {broken}"
        )
        lost.__cause__ = broken
        return lost

    def _ignored(self, method: str, params: dict[str, Any]) -> None:
        log.debug("notification ignored", session=self.name, method=method)


def _nothing() -> None:
    pass
