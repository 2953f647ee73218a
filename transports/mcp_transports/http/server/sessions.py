"""Legacy sessions: made by a valid ``initialize``, known by an unguessable id, and freed in time.

MCP 2025-11-25, Transports, Session Management.
"""

from __future__ import annotations

import secrets
from functools import partial

import attrs
import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler
from mcp_actors.budget import Budget, BudgetStatistics, holder_of
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.principal import Principal
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import SESSION_EXPIRY
from mcp_transports.http.server.error_responses import (
    INTERNAL_ERROR,
    TOO_MANY_SESSIONS,
    TOO_MANY_SESSIONS_OF_PEER,
    shared_state_unavailable,
)
from mcp_transports.http.server.forwarding.remote_sessions import SessionPlaces
from mcp_transports.http.server.http_exchange import Continuation, HttpExchange
from mcp_transports.http.server.http_session import HttpSession
from mcp_transports.http.server.initialize_outlet import InitializeOutlet
from mcp_transports.http.server.status_tables import LEGACY_STATUSES
from mcp_transports.http.server.stream_settings import SessionEnding, StreamSettings

__all__ = ["SESSION_HEADER", "HttpSession", "HttpSessionStatistics", "SessionLimits", "SessionTable"]

SESSION_HEADER = "mcp-session-id"
# Random bytes of an id: enough that none of 50,000 ids can be guessed.
_ID_BYTES = 24
# The idle time is counted in ticks of the one task that checks all sessions, so that no request reads the clock.
_TICKS = 4
# Sessions that are checked before other tasks run.
_SESSIONS_AT_ONCE = 1000
# Seconds that a server has for its answer to an initialize; a gateway meets its upstreams first.
INITIALIZE_TIMEOUT = 60.0


@attrs.frozen
class SessionLimits:
    """The bounds on the sessions of one listener: their idle time and their number."""

    idle: float
    """Seconds without any activity after which a session is closed, or up to a quarter later."""
    max_sessions: int
    """Sessions of one listener; over it ``initialize`` is answered with 503."""
    max_sessions_per_peer: int | None = None
    """Sessions of one principal or, without one, of one address; ``None`` for the half of all."""


@attrs.frozen
class HttpSessionStatistics:
    """The sessions of one listener."""

    open: int
    """Sessions that exist now."""
    opened: int
    """Sessions that ever began."""
    expired: int
    """Sessions that were closed because they were idle for too long."""
    refused: int
    """Sessions that did not begin because there were too many."""
    calls: int
    """Streams of calls in flight, of all sessions."""
    by_peer: BudgetStatistics
    """The sessions by principal or address, with their limits."""


class SessionTable:
    """All sessions of one listener, by id.

    Args:
        settings: The settings of their streams.
        limits: The bounds on them.
        places: Makes them known to other nodes; ``None`` where there are none.
    """

    def __init__(
        self, settings: StreamSettings, limits: SessionLimits, places: SessionPlaces | None = None
    ) -> None:
        self._places = places
        self.settings = settings
        self.tick = 0
        self._limits = limits
        self._budget = Budget(limits.max_sessions, limits.max_sessions_per_peer)
        self._sessions: dict[str, HttpSession] = {}
        self._opened = self._expired = self._refused = 0

    def __repr__(self) -> str:
        return f"<SessionTable {len(self._sessions)}/{self._limits.max_sessions}>"

    def begin(
        self, handler: ServerHandler, arrival: Arrival, exchange: HttpExchange, principal: Principal | None
    ) -> Continuation | None:
        """Answers an ``initialize``. Only one that is answered with a result leaves a session behind.

        If the server cannot answer at once, or other nodes have to know the session, this returns a function that waits
        for that and answers then.
        """
        holder = holder_of(exchange.request.peer, principal)
        over = self._budget.charge(holder, 1)
        if over is not None:
            self._refused += 1
            exchange.refuse(TOO_MANY_SESSIONS if over == "all" else TOO_MANY_SESSIONS_OF_PEER)
            return None
        session = HttpSession(self, principal, holder)
        continuation = None
        with exchange.containment("begin a session"):
            continuation = self._begin(handler, arrival, exchange, session)
        if not session.id and continuation is None:
            self._budget.release(holder, 1)
        return continuation

    def _begin(
        self, handler: ServerHandler, arrival: Arrival, exchange: HttpExchange, session: HttpSession
    ) -> Continuation | None:
        peer = exchange.request.peer
        session.engine = handler.open_session(session.standalone, session.principal, peer)
        outlet = InitializeOutlet(self.settings.longest)
        try:
            session.engine.deliver(arrival, outlet)
        except BaseException:
            with session.goes_on_if_raised("close the engine's session"):
                session.engine.close()
            raise
        if outlet.answer is None and session.engine.busy:
            return partial(self._answer_later, exchange, session, outlet)
        return self._answer(exchange, session, outlet)

    async def _answer_later(
        self, exchange: HttpExchange, session: HttpSession, outlet: InitializeOutlet
    ) -> None:
        """Answers when the server does. A client that does not wait for it leaves no session behind."""
        continuation: Continuation | None = None
        try:
            with trio.move_on_after(INITIALIZE_TIMEOUT):
                await outlet.answered.wait()
            continuation = self._answer(exchange, session, outlet)
        finally:
            if not session.id:
                session.engine.close()
                self._budget.release(session.holder, 1)
        if continuation is not None:
            await continuation()

    def _answer(
        self, exchange: HttpExchange, session: HttpSession, outlet: InitializeOutlet
    ) -> Continuation | None:
        answer = outlet.answer
        if answer is not None and session.engine.initialized:
            session.id = secrets.token_urlsafe(_ID_BYTES)
            self._sessions[session.id] = session
            self._opened += 1
            if self._places is not None:
                return partial(self._register, self._places, exchange, session, answer)
            exchange.answer(200, answer.data, ((SESSION_HEADER, session.id),))
            return None
        session.engine.close()
        if answer is None:
            log.error("an initialize was not answered")
            exchange.refuse(INTERNAL_ERROR)
        else:
            exchange.answer(LEGACY_STATUSES[answer.refusal], answer.data)
        return None

    async def _register(
        self, places: SessionPlaces, exchange: HttpExchange, session: HttpSession, answer: Frame
    ) -> None:
        """Makes a session known to all nodes before its client learns its id; one that nobody could find is closed."""
        registered = False
        try:
            await places.register(session.id, session.principal)
            registered = True
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
        finally:
            if not registered:
                self.close(session)
        if registered:
            exchange.answer(200, answer.data, ((SESSION_HEADER, session.id),))

    def find(self, id: str, principal: Principal | None) -> HttpSession | None:
        """Returns a session to the principal that began it, and ``None`` to any other (CVE-2026-52869)."""
        session = self._sessions.get(id)
        return session if session is not None and session.principal == principal else None

    def close(self, session: HttpSession, ending: SessionEnding = "closed") -> None:
        """Ends a session; its id is unknown from now on. Never raises, and does nothing the second time."""
        if self._sessions.pop(session.id, None) is not None:
            self._budget.release(session.holder, 1)
            if self._places is not None:
                with session.goes_on_if_raised("take a session out of the directory"):
                    self._places.forget(session.id)
            session.close(ending)

    def close_all(self) -> None:
        """Ends all sessions. Never raises."""
        for session in tuple(self._sessions.values()):
            self.close(session)

    def close_idle(self) -> None:
        """Ends the sessions that have no call in flight. Never raises."""
        for session in tuple(self._sessions.values()):
            if not session.streams:
                with session.goes_on_if_raised("end a stream"):
                    session.standalone.close_stream()
                self.close(session)

    def close_standalone(self) -> None:
        """Ends the streams that would never end by themselves; those of calls in flight go on. Never raises."""
        for session in tuple(self._sessions.values()):
            session.standalone.close("closed")

    async def expire(self) -> None:
        """Runs until cancelled, and closes the sessions that were idle for too long.

        A session on which that fails is closed at once; the others are still checked.
        """
        while True:
            await trio.sleep(self._limits.idle / _TICKS)
            self.tick += 1
            for number, session in enumerate(tuple(self._sessions.values()), 1):
                with Containment(SESSION_EXPIRY, partial(self._close_failed, session)):
                    self._expire(session)
                if number % _SESSIONS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()

    def _expire(self, session: HttpSession) -> None:
        if session.in_use:
            session.touch()
        elif self.tick - session.seen > _TICKS:
            self._expired += session.id in self._sessions
            self.close(session)

    def _close_failed(self, session: HttpSession, error: BaseException) -> None:
        self.close(session, "failed")

    def statistics(self) -> HttpSessionStatistics:
        """Returns the numbers of sessions."""
        calls = sum(len(session.streams) for session in self._sessions.values())
        return HttpSessionStatistics(
            len(self._sessions),
            self._opened,
            self._expired,
            self._refused,
            calls,
            self._budget.statistics(),
        )
