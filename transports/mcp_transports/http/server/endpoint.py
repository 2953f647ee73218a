"""The endpoint: what an HTTP request becomes. Both eras and HTTP+SSE; it parses no JSON and holds no session itself.

Every row of the status tables (protocol §6.3, §6.4) is decided here, in this order: Host and Origin (403), the path
(404), the method (405), who is there (`authenticate`), media types (415, 406), then what the engine makes of the body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable

from mcp_actors.abc import Arrival, Frame, ServerHandler
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import (
    FORGOTTEN,
    NO_EVENT_STREAM,
    NO_JSON_NO_STREAM,
    NOT_HERE,
    NOT_JSON,
    SESSION_REQUIRED,
    STOPPING,
    Exchange,
    Refusal,
    Rest,
    not_allowed,
)
from mcp_transports.http.server.exchange import ExchangeOutlet, run_exchange, status_of
from mcp_transports.http.server.http_sse import HttpSseChannels
from mcp_transports.http.server.media_types import is_json, takes_both, takes_events, takes_json
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.sessions import SESSION_HEADER, LegacySession, SessionTable
from mcp_transports.http.server.sse_response import OpenSseResponses

__all__ = ["Authenticate", "Endpoint"]

Authenticate = Callable[[Request], "str | Refusal | Awaitable[str | Refusal | None] | None"]
# Sorted in place of a body where there is none: what the engine refuses of it is the mirrored version.
_ANYTHING = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
# What is done with one method at one path, for the principal: it answers, or says what is left to do.
Row = Callable[[Exchange, "str | None"], "Rest | None"]


class Endpoint:
    """The application of one listener: called for every request.

    ``sessions`` is ``None`` where legacy clients are served without, ``pipes`` where there is no HTTP+SSE.
    ``authenticate`` gets the request and says who it is from, or why it is refused.
    """

    def __init__(
        self,
        handler: ServerHandler,
        guard: OriginPolicy,
        open_streams: OpenSseResponses,
        *,
        path: str,
        longest: int,
        sessions: SessionTable | None,
        pipes: HttpSseChannels | None = None,
        sse_path: str = "",
        messages_path: str = "",
        json_replies: bool = False,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._handler = handler
        self._guard = guard
        self._open_streams = open_streams
        self._longest = longest
        self._sessions = sessions
        self._pipes = pipes
        self._takes_answers = takes_json if json_replies else takes_both
        self._authenticate = authenticate
        self._rows: dict[str, dict[str, Row]] = {path: {"POST": self._post}}
        # A server of the modern era alone has neither sessions nor streams that begin with a GET.
        if sessions is not None and handler.has_sessions:
            self._rows[path] |= {"GET": self._get, "DELETE": self._delete}
        if pipes is not None and handler.has_sessions:
            self._rows[sse_path] = {"GET": self._connect}
            self._rows[messages_path] = {"POST": self._message}

    def __repr__(self) -> str:
        return (
            f"<Endpoint {', '.join(self._rows)}: {self._sessions!r} {self._pipes!r} {self._open_streams!r}>"
        )

    def __call__(self, request: Request, response: Response) -> None:
        """Answers a request, now or later. Never waits; what it raises becomes a 500."""
        headers = request.headers
        verdict = self._guard.check(headers.get("host"), headers.get("origin"))
        turn = Exchange(request, response, verdict.headers)
        rows = self._rows.get(request.path)
        if verdict.refusal is not None:
            turn.refuse(Refusal(403, verdict.refusal))
        elif rows is None:
            turn.refuse(NOT_HERE)
        elif (row := rows.get(request.method)) is not None:
            self._admit(turn, row)
        elif request.method == "OPTIONS":
            turn.headers = ()
            preflight = self._guard.preflight(verdict, headers.get("access-control-request-headers"))
            turn.answer(204, headers=(*preflight, ("allow", ", ".join((*rows, "OPTIONS")))))
        else:
            turn.refuse(not_allowed(*rows))

    def stop(self) -> None:
        """No new work from now on; ends the streams that wait for nothing in particular."""
        if self._sessions is not None:
            self._sessions.close_standalone()

    def close(self) -> None:
        """Ends all sessions."""
        if self._sessions is not None:
            self._sessions.close_all()

    # -- who is there ----------------------------------------------------------------------------------------------

    def _admit(self, turn: Exchange, row: Row) -> None:
        if self._authenticate is None:
            rest = row(turn, None)
            if rest is not None:
                turn.response.run(rest)
            return
        found = self._authenticate(turn.request)
        if isawaitable(found):
            turn.response.run(partial(self._admit_later, turn, row, found))
        elif (rest := self._admitted(turn, row, found)) is not None:
            turn.response.run(rest)

    async def _admit_later(self, turn: Exchange, row: Row, finding: Awaitable[str | Refusal | None]) -> None:
        rest = self._admitted(turn, row, await finding)
        if rest is not None:
            await rest()

    def _admitted(self, turn: Exchange, row: Row, found: str | Refusal | None) -> Rest | None:
        if isinstance(found, Refusal):
            turn.refuse(found)
            return None
        return row(turn, found)

    # -- the MCP endpoint ------------------------------------------------------------------------------------------

    def _post(self, turn: Exchange, principal: str | None) -> Rest | None:
        headers = turn.request.headers
        if not is_json(headers.get("content-type")):
            turn.refuse(NOT_JSON)
            return None
        if not self._takes_answers(headers.get("accept")):
            turn.refuse(NO_JSON_NO_STREAM)
            return None
        named = headers.get(SESSION_HEADER)
        arrival = self._handler.sort(Frame(turn.request.body, metadata=headers), in_session=named is not None)
        refusal = arrival.refusal
        if refusal is not None:
            turn.answer(status_of(refusal, "modern"), refusal.data)
        elif arrival.requests and self._handler.stopping.is_set():
            turn.refuse(STOPPING)
        elif arrival.era == "modern" or (self._sessions is None and named is None):
            outlet = ExchangeOutlet(turn, self._open_streams, self._longest, arrival.era)
            if not arrival.requests:
                return partial(run_exchange, self._handler, arrival, outlet, principal)
            outlet.begin(self._handler, arrival, principal)
        else:
            self._post_in_session(turn, arrival, named, principal)
        return None

    def _post_in_session(
        self, turn: Exchange, arrival: Arrival, named: str | None, principal: str | None
    ) -> None:
        if named is not None:
            session = self._session(turn, principal)
            if session is not None:
                session.deliver(arrival, turn)
        elif arrival.initializes and self._sessions is not None:
            self._sessions.begin(self._handler, arrival, turn, principal)
        else:
            turn.refuse(SESSION_REQUIRED)

    def _get(self, turn: Exchange, principal: str | None) -> Rest | None:
        if not takes_events(turn.request.headers.get("accept")):
            turn.refuse(NO_EVENT_STREAM)
        elif self._handler.stopping.is_set():
            turn.refuse(STOPPING)
        elif (session := self._bodiless_session(turn, principal)) is not None:
            last_event_id = turn.request.headers.get("last-event-id")
            if last_event_id is not None:
                return partial(session.resume, turn, last_event_id)
            session.standalone.open(turn)
        return None

    def _delete(self, turn: Exchange, principal: str | None) -> None:
        session = self._bodiless_session(turn, principal)
        if session is not None and self._sessions is not None:
            self._sessions.close(session)
            turn.answer(200)

    def _bodiless_session(self, turn: Exchange, principal: str | None) -> LegacySession | None:
        """As `_session`, for a request without a message: 400 for a version that no session can have."""
        refusal = self._handler.sort(Frame(_ANYTHING, metadata=turn.request.headers), in_session=True).refusal
        if refusal is not None:
            turn.answer(400, refusal.data)
            return None
        return self._session(turn, principal)

    def _session(self, turn: Exchange, principal: str | None) -> LegacySession | None:
        """The session that a request names; answers it otherwise: 400 for none, 404 for one that is not theirs."""
        named = turn.request.headers.get(SESSION_HEADER)
        if named is None:
            turn.refuse(SESSION_REQUIRED)
            return None
        session = self._sessions.find(named, principal) if self._sessions is not None else None
        if session is None:
            turn.refuse(FORGOTTEN)
        return session

    # -- HTTP+SSE --------------------------------------------------------------------------------------------------

    def _connect(self, turn: Exchange, principal: str | None) -> Rest | None:
        if not takes_events(turn.request.headers.get("accept")):
            turn.refuse(NO_EVENT_STREAM)
        elif self._handler.stopping.is_set():
            turn.refuse(STOPPING)
        elif self._pipes is not None:
            return partial(self._pipes.run, turn, self._handler, principal)
        return None

    def _message(self, turn: Exchange, principal: str | None) -> Rest | None:
        if not is_json(turn.request.headers.get("content-type")):
            turn.refuse(NOT_JSON)
        elif self._pipes is not None:
            return self._pipes.post(turn, principal)
        return None
