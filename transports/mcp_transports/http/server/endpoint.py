"""The endpoint: routes HTTP requests of both eras and of HTTP+SSE. It parses no JSON and holds no session.

A request is refused by the first of these checks that fails: Host and Origin (403), the path (404), the method (405),
the principal (``authenticate``), the media types (415, 406). The engine checks the message.

MCP 2025-11-25, Transports, Streamable HTTP; MCP 2026-07-28, Streamable HTTP; MCP 2024-11-05, Transports, HTTP with SSE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.authentication import (
    Authentication,
    Continuation,
    HttpExchange,
    answer_document,
)
from mcp_transports.http.server.forwarded_messages import CHUNK, Begun, ForLeft, TakenOver, Unasked
from mcp_transports.http.server.forwarder import RemoteSessions
from mcp_transports.http.server.http_sse import HttpSseChannels, post, session_id_of
from mcp_transports.http.server.inbound_request import ForwardedResponse
from mcp_transports.http.server.origin_policy import OriginPolicy, Verdict
from mcp_transports.http.server.outlet import StatelessOutlet
from mcp_transports.http.server.responses import (
    EVENTS_NOT_ACCEPTED,
    JSON,
    LEGACY_STATUSES,
    MODERN_STATUSES,
    PATH_NOT_FOUND,
    REPLIES_NOT_ACCEPTED,
    SERVER_STOPPING,
    SESSION_NOT_FOUND,
    SESSION_REQUIRED,
    UNSUPPORTED_MEDIA_TYPE,
    USUAL_ACCEPT,
    Identity,
    IdentityLater,
    Refusal,
    accepts_both,
    accepts_events,
    accepts_json,
    is_json,
    method_not_allowed,
)
from mcp_transports.http.server.routes import Beside, nothing_beside
from mcp_transports.http.server.sessions import SESSION_HEADER, HttpSession, SessionTable
from mcp_transports.http.server.sse_response import StreamSettings

__all__ = ["Endpoint", "EndpointPaths"]

# Serves one method at one path, for a principal: it answers, or returns a function that waits and answers then.
Route = Callable[[HttpExchange, "Principal | None"], "Continuation | None"]

_VERSION_HEADER = "mcp-protocol-version"
# A message in place of the body that GET and DELETE do not have: the engine gets it in order to check
# MCP-Protocol-Version (MCP 2025-11-25, Transports, Protocol Version Header).
_STAND_IN_MESSAGE = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


@attrs.frozen
class EndpointPaths:
    """The paths that are served."""

    streamable: str
    """The path of Streamable HTTP, of both eras."""
    sse: str | None = None
    """The path of the event streams of HTTP+SSE; ``None`` where it is not served."""
    messages: str = "/messages"
    """The path to which clients of HTTP+SSE POST."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The path of Streamable HTTP with and without a slash at its end: people write the URL in both ways."""
        path = self.streamable
        other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
        return (path, other) if other else (path,)


class Endpoint:
    """The application of one listener: called for every request.

    Args:
        handler: The engine.
        origin_policy: Decides about ``Host`` and ``Origin``.
        settings: The settings of all streams.
        paths: The paths that are served.
        sessions: The sessions of legacy clients; ``None`` where they are served without sessions.
        http_sse: The connections of HTTP+SSE; ``None`` where it is not served.
        authentication: Knows the callers; ``None`` where anyone is served.
        remote_sessions: Serves the sessions of other nodes; ``None`` where there are none.
        beside: Serves the paths at which there is no MCP.
    """

    def __init__(
        self,
        handler: ServerHandler,
        origin_policy: OriginPolicy,
        settings: StreamSettings,
        paths: EndpointPaths,
        *,
        sessions: SessionTable | None,
        http_sse: HttpSseChannels | None = None,
        authentication: Authentication | None = None,
        remote_sessions: RemoteSessions | None = None,
        beside: Beside = nothing_beside,
    ) -> None:
        self._handler = handler
        self._origin_policy = origin_policy
        self._settings = settings
        self._paths = paths
        self._sessions, self._http_sse = sessions, http_sse
        self._remote_sessions = remote_sessions
        self._accepts_replies = accepts_json if settings.json_replies else accepts_both
        self._authentication = authentication
        self._serve_beside = beside
        # Whether the sessions are handed over: none is taken over any more.
        self._leaves = False
        streamable: dict[str, Route] = {"POST": self._post}
        self._routes: dict[str, dict[str, Route]] = dict.fromkeys(paths.forms, streamable)
        # MCP 2026-07-28 has neither sessions nor streams that begin with a GET.
        if sessions is not None and handler.has_sessions:
            streamable |= {"GET": self._get, "DELETE": self._delete}
        if http_sse is not None and paths.sse is not None and handler.has_sessions:
            self._routes[paths.sse] = {"GET": self._connect_http_sse}
            self._routes[paths.messages] = {"POST": self._post_http_sse}

    def __repr__(self) -> str:
        streams = self._settings.open_responses
        return f"<Endpoint {', '.join(self._routes)}: {self._sessions!r} {self._http_sse!r} {streams!r}>"

    def __call__(self, request: Request, response: Response) -> None:
        """Answers a request, now or later. Never waits. The HTTP server answers an error of it with 500."""
        headers = request.headers
        host, origin = headers.get("host"), headers.get("origin")
        policy = self._origin_policy
        # Looked up here first, because nearly all requests of a listener have the same two values.
        verdict = policy.remembered.get((host, origin)) or policy.check(host, origin)
        exchange = HttpExchange(request, response, verdict.headers, self._authentication)
        routes = self._routes.get(request.path)
        route = routes.get(request.method) if routes is not None else None
        if verdict.refusal is not None or route is None:
            self._refuse(exchange, verdict, routes)
        elif self._authentication is not None:
            self._identify(exchange, route, self._authentication)
        elif (continuation := route(exchange, None)) is not None:
            exchange.run(continuation)

    def serve_taken(self, request: Request, response: ForwardedResponse, begun: Begun) -> None:
        """Answers a request that another node has checked and forwarded to this one, now or later. Never waits.

        It is declined if its session was handed over: the other node looks for it again.
        """
        headers = tuple(begun.answer_headers)
        exchange = HttpExchange(request, response, headers, self._authentication)
        sessions, session_id = self._sessions, request.headers.get(SESSION_HEADER)
        if sessions is not None and session_id is not None:
            if begun.left:
                self._resume_left(exchange, response, sessions.left.get(session_id))
                return
            if sessions.has_handed_over(session_id):
                response.decline()
                return
        path = self._paths.messages if begun.http_sse else self._paths.streamable
        route = self._routes.get(path, {}).get(request.method)
        if route is None:
            exchange.refuse(PATH_NOT_FOUND)
        elif (continuation := route(exchange, request.principal)) is not None:
            exchange.run(continuation)

    # -- sessions that move from one node to another -----------------------------------------------------------------

    async def is_found_again(self, session: str) -> bool:
        """See `mcp_transports.http.server.forwarder.Taking.is_found_again`."""
        return self._sessions is not None and await self._sessions.is_found_again(session)

    def take_notice(self, message: TakenOver | ForLeft | Unasked) -> None:
        """Takes what another node has for a session that was handed over, from it or to it. Never waits."""
        if self._sessions is None:
            return
        if isinstance(message, Unasked):
            if (held := self._sessions.by_id(message.session)) is not None:
                with (
                    held.goes_on_if_raised("take a message of another node"),
                    suppress(trio.BrokenResourceError),
                ):
                    held.standalone.post(Frame(message.data))
            return
        left = self._sessions.left.get(message.session)
        if left is None:
            return
        if isinstance(message, TakenOver):
            self._sessions.taken_over(left, partial(self._pass_back, message.source, message.session))
        elif not message.body:
            self._sessions.close(left, "deleted")
        else:
            with left.goes_on_if_raised("take a message of another node"):
                arrival = self._handler.sort(Frame(message.body, metadata=message.headers), in_session=True)
                if arrival.refusal is None and not arrival.requests:
                    left.engine.deliver(arrival, left.standalone)

    def _pass_back(self, address: str, session: str, data: bytes) -> None:
        """Sends a message of a call that was left here to the node that goes on with its session."""
        if self._remote_sessions is not None and len(data) <= CHUNK:
            forwarder = self._remote_sessions.forwarder
            forwarder.outbox.post(address, Unasked(forwarder.address, session, data))

    def _pass_on(self, session: HttpSession, exchange: HttpExchange, body: bytes) -> None:
        """Sends what a client said, beside requests, to the nodes that still have calls of its session.

        Args:
            session: The session.
            exchange: The request that brought it.
            body: The messages; empty if the session has ended.
        """
        if session.former is None or self._remote_sessions is None or len(body) > CHUNK:
            return
        headers = exchange.request.headers
        said = {name: headers[name] for name in (_VERSION_HEADER,) if name in headers}
        forwarder = self._remote_sessions.forwarder
        for address in set(session.former.values()):
            forwarder.outbox.post(address, ForLeft(forwarder.address, session.id, body, said))

    def _resume_left(
        self, exchange: HttpExchange, response: ForwardedResponse, left: HttpSession | None
    ) -> None:
        """Resumes a stream of a call that was left here, for a client that came to the next node."""
        last_event_id = exchange.request.headers.get("last-event-id")
        if left is None or last_event_id is None:
            response.decline()
        else:
            exchange.run(partial(_done, left.resume, exchange, last_event_id))

    async def _resume(
        self, session: HttpSession, exchange: HttpExchange, principal: Principal | None, last_event_id: str
    ) -> None:
        """Resumes a stream, at the node that has it."""
        while (address := await session.resume(exchange, last_event_id)) is not None:
            assert self._remote_sessions is not None
            forwarder = self._remote_sessions.forwarder
            if await forwarder.forward_left(exchange, principal, address) == "answered":
                return
            session.forget_node(address)

    async def _take_over(self, exchange: HttpExchange, principal: Principal | None, session_id: str) -> bool:
        """Goes on with a session that another node has handed over; see `RemoteSessions.serve`."""
        if self._sessions is None or self._handler.stopping.is_set() or self._leaves:
            exchange.refuse(SERVER_STOPPING)
            return False
        session = await self._sessions.take_over(self._handler, exchange, principal, session_id)
        if session is not None and session.former is not None and self._remote_sessions is not None:
            forwarder = self._remote_sessions.forwarder
            for address in set(session.former.values()):
                forwarder.outbox.post(address, TakenOver(forwarder.address, session_id))
        return session is not None

    async def _serve_elsewhere(
        self,
        remote: RemoteSessions,
        exchange: HttpExchange,
        principal: Principal | None,
        session_id: str,
        *,
        http_sse: bool,
    ) -> None:
        if await remote.serve(exchange, principal, session_id, self._take_over, http_sse=http_sse):
            # It is here now.
            route = self._routes[self._paths.streamable][exchange.request.method]
            continuation = route(exchange, principal)
            if continuation is not None:
                await continuation()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops taking new work, and ends the streams that would never end by themselves. Never raises.

        Where there are other nodes, the sessions without calls end too, which no node can go on with: their clients
        begin anew there.
        """
        if self._remote_sessions is not None:
            self._remote_sessions.end_streams()
        if self._sessions is not None:
            if self._remote_sessions is not None:
                self._sessions.close_idle()
            self._sessions.close_standalone()

    async def before_stop(self, delay: float) -> None:
        """Hands the sessions over, and then has other nodes forward nothing more here.

        See `mcp_actors.abc.StopPart.before_stop`.
        """
        remote, self._leaves = self._remote_sessions, True
        if remote is None:
            return
        remote.end_streams()
        is_empty = self._sessions is None or await self._sessions.hand_over(self._handler)
        if is_empty and not self._http_sse:
            try:
                await remote.forwarder.shut()
            except SharedStateUnavailable as error:
                log.debug("other nodes do not know that this one ends", cause=error.cause)

    async def until_without_calls(self) -> None:
        """Waits until no session has a call in flight, also of clients that have lost their connection."""
        if self._sessions is not None:
            await self._sessions.until_without_calls()

    async def until_answered(self) -> None:
        """Waits until other nodes have answered what was forwarded to them, and the last answers of this one are kept.

        An answer in a stream that can be resumed at other nodes is sent once these can find it.
        """
        if self._remote_sessions is not None:
            await self._remote_sessions.until_answered()
        if self._sessions is not None:
            await self._sessions.until_passed_on()
        await self._settings.open_responses.until_none_waits()

    def cut(self) -> None:
        """Answers the requests that other nodes have not answered, because there is no more time."""
        if self._remote_sessions is not None:
            self._remote_sessions.cut()

    def close(self) -> None:
        """Ends all sessions. Never raises."""
        if self._sessions is not None:
            self._sessions.close_all()

    # -- before the protocol ---------------------------------------------------------------------------------------

    def _refuse(self, exchange: HttpExchange, verdict: Verdict, routes: dict[str, Route] | None) -> None:
        """Answers a request that is refused or has no route, and CORS preflights."""
        request = exchange.request
        if answer_document(exchange, self._authentication, self._origin_policy) or (
            routes is None and self._serve_beside(exchange, verdict)
        ):
            return
        if verdict.refusal is not None:
            exchange.refuse(Refusal(403, verdict.refusal))
        elif routes is None:
            exchange.refuse(PATH_NOT_FOUND)
        elif request.method == "OPTIONS":
            requested = request.headers.get("access-control-request-headers")
            exchange.headers = self._origin_policy.preflight(verdict, requested)
            exchange.answer(204, headers=(("allow", ", ".join((*routes, "OPTIONS"))),))
        else:
            exchange.refuse(method_not_allowed(*routes))

    def _identify(self, exchange: HttpExchange, route: Route, authentication: Authentication) -> None:
        try:
            identity = authentication.identify(exchange.request)
            if isinstance(identity, partial):
                exchange.run(partial(_serve_later, exchange, route, authentication, identity))
            elif (continuation := _serve(exchange, route, authentication, identity)) is not None:
                exchange.run(continuation)
        except BaseException:
            # It is made here, not around the block, because most requests go well.
            with exchange.containment("authenticate"):
                raise

    # -- Streamable HTTP -------------------------------------------------------------------------------------------

    def _post(self, exchange: HttpExchange, principal: Principal | None) -> Continuation | None:
        headers = exchange.request.headers
        content_type, accept = headers.get("content-type"), headers.get("accept")
        # The value that the official clients send is compared first, because that is faster.
        if content_type != JSON and not is_json(content_type):
            exchange.refuse(UNSUPPORTED_MEDIA_TYPE)
            return None
        if accept not in USUAL_ACCEPT and not self._accepts_replies(accept):
            exchange.refuse(REPLIES_NOT_ACCEPTED)
            return None
        session_id = headers.get(SESSION_HEADER)
        frame = Frame(exchange.request.body, metadata=headers)
        arrival = self._handler.sort(frame, in_session=session_id is not None)
        refusal, stateless = arrival.refusal, arrival.stateless
        if refusal is not None:
            exchange.refuse(Refusal(MODERN_STATUSES[refusal.refusal], body=refusal.data))
        elif arrival.requests and self._handler.stopping.is_set():
            return self._refuse_when_stopping(exchange, session_id, principal)
        elif stateless or (self._sessions is None and session_id is None):
            if self._lacks_scope(exchange, arrival, principal):
                return None
            statuses = MODERN_STATUSES if stateless else LEGACY_STATUSES
            outlet = StatelessOutlet(
                exchange,
                self._settings.open_responses,
                self._settings.longest,
                statuses,
                streams=self._may_stream(accept, stateless),
            )
            if not arrival.requests:
                return partial(outlet.accept, self._handler, arrival, principal)
            outlet.begin(self._handler, arrival, principal)
        else:
            return self._post_in_session(exchange, arrival, session_id, principal)
        return None

    def _lacks_scope(self, exchange: HttpExchange, arrival: Arrival, principal: Principal | None) -> bool:
        """Refuses a request of a caller that lacks a scope, before anything of it is begun, and returns whether it did.

        Without authentication no caller has a scope, and the engine refuses requests that need one.
        """
        authentication = self._authentication
        if authentication is None:
            return False
        needed = self._handler.scopes_needed(arrival)
        if not needed or (principal is not None and needed <= principal.scopes):
            return False
        # Clients of the revisions with sessions may replace the scopes that they have by those of the challenge (MCP
        # 2025-11-25, Authorization, Runtime Insufficient Scope Errors).
        exchange.refuse(authentication.lacking(principal, needed, repeats_granted=not arrival.stateless))
        return True

    def _may_stream(self, accept: str | None, stateless: bool) -> bool:
        """Whether a POST outside of sessions may be answered with an event stream."""
        if self._settings.json_replies:
            # Legacy clients never get a stream then, and others need not accept one.
            return stateless and accepts_events(accept)
        return True

    def _post_in_session(
        self, exchange: HttpExchange, arrival: Arrival, session_id: str | None, principal: Principal | None
    ) -> Continuation | None:
        if session_id is not None:
            session = self._session(session_id, principal)
            if session is None:
                return self._elsewhere(exchange, principal, session_id)
            if not self._lacks_scope(exchange, arrival, principal):
                if session.former is not None and not arrival.requests:
                    self._pass_on(session, exchange, exchange.request.body)
                session.deliver(arrival, exchange)
        elif arrival.initializes and self._sessions is not None:
            return self._sessions.begin(self._handler, arrival, exchange, principal)
        else:
            exchange.refuse(SESSION_REQUIRED)
        return None

    def _refuse_when_stopping(
        self, exchange: HttpExchange, session_id: str | None, principal: Principal | None
    ) -> Continuation | None:
        """Answers a request that would begin something new while this node stops.

        Where there are other nodes, a client with a session begins anew at one of them, or goes on if its session is
        there already.
        """
        if self._remote_sessions is None or session_id is None:
            exchange.refuse(SERVER_STOPPING)
        elif self._session(session_id, principal) is None:
            return self._elsewhere(exchange, principal, session_id)
        else:
            exchange.refuse(SESSION_NOT_FOUND)
        return None

    def _get(self, exchange: HttpExchange, principal: Principal | None) -> Continuation | None:
        if not accepts_events(exchange.request.headers.get("accept")):
            exchange.refuse(EVENTS_NOT_ACCEPTED)
        elif self._handler.stopping.is_set() and self._remote_sessions is None:
            exchange.refuse(SERVER_STOPPING)
        elif (session_id := self._session_without_message(exchange)) is not None:
            session = self._session(session_id, principal)
            if session is None:
                return self._elsewhere(exchange, principal, session_id)
            last_event_id = exchange.request.headers.get("last-event-id")
            if last_event_id is None and self._handler.stopping.is_set():
                return self._refuse_when_stopping(exchange, session_id, principal)
            if last_event_id is not None:
                return partial(self._resume, session, exchange, principal, last_event_id)
            session.standalone.open(exchange)
        return None

    def _delete(self, exchange: HttpExchange, principal: Principal | None) -> Continuation | None:
        session_id = self._session_without_message(exchange)
        if session_id is None:
            return None
        session = self._session(session_id, principal)
        if session is None or self._sessions is None:
            return self._elsewhere(exchange, principal, session_id)
        self._pass_on(session, exchange, b"")
        self._sessions.close(session, "deleted")
        exchange.answer(200)
        return None

    def _session_without_message(self, exchange: HttpExchange) -> str | None:
        """Returns the session that a GET or DELETE names, or refuses the request.

        MCP 2025-11-25, Transports, Session Management: 400 without an id; and 400 for a version without sessions.
        """
        frame = Frame(_STAND_IN_MESSAGE, metadata=exchange.request.headers)
        refusal = self._handler.sort(frame, in_session=True).refusal
        if refusal is not None:
            exchange.refuse(Refusal(400, body=refusal.data))
            return None
        session_id = exchange.request.headers.get(SESSION_HEADER)
        if session_id is None:
            exchange.refuse(SESSION_REQUIRED)
        return session_id

    def _session(self, session_id: str, principal: Principal | None) -> HttpSession | None:
        return None if self._sessions is None else self._sessions.find(session_id, principal)

    def _elsewhere(
        self, exchange: HttpExchange, principal: Principal | None, session_id: str, *, http_sse: bool = False
    ) -> Continuation | None:
        """Answers a request of a session that this listener does not hold, or does not hold for this caller.

        MCP 2025-11-25, Transports, Session Management: 404 for one that is unknown, has ended or belongs to another
        principal.
        """
        if self._remote_sessions is None:
            exchange.refuse(SESSION_NOT_FOUND)
            return None
        return partial(
            self._serve_elsewhere, self._remote_sessions, exchange, principal, session_id, http_sse=http_sse
        )

    # -- HTTP+SSE --------------------------------------------------------------------------------------------------

    def _connect_http_sse(self, exchange: HttpExchange, principal: Principal | None) -> Continuation | None:
        if not accepts_events(exchange.request.headers.get("accept")):
            exchange.refuse(EVENTS_NOT_ACCEPTED)
        elif self._handler.stopping.is_set():
            exchange.refuse(SERVER_STOPPING)
        elif self._http_sse is not None:
            return partial(self._http_sse.run, exchange, self._handler, principal)
        return None

    def _post_http_sse(self, exchange: HttpExchange, principal: Principal | None) -> Continuation | None:
        if not is_json(exchange.request.headers.get("content-type")):
            exchange.refuse(UNSUPPORTED_MEDIA_TYPE)
        elif self._http_sse is not None:
            session_id = session_id_of(exchange.request)
            channel = self._http_sse.find(session_id, principal)
            if channel is None:
                return self._elsewhere(exchange, principal, session_id, http_sse=True)
            frame = Frame(exchange.request.body)
            if self._authentication is not None:
                arrival = self._handler.sort(Frame(frame.data, metadata={}), in_session=True)
                if arrival.refusal is None and self._lacks_scope(exchange, arrival, principal):
                    return None
            return post(exchange, channel, frame)
        return None


async def _done(resume: Callable[[HttpExchange, str], Awaitable[object]], *given: Any) -> None:
    await resume(*given)


async def _serve_later(
    exchange: HttpExchange, route: Route, authentication: Authentication, identity_of: IdentityLater
) -> None:
    continuation = _serve(exchange, route, authentication, await identity_of())
    if continuation is not None:
        await continuation()


def _serve(
    exchange: HttpExchange, route: Route, authentication: Authentication, identity: Identity
) -> Continuation | None:
    """Serves a request of a caller that is known now, or refuses it."""
    if isinstance(identity, Refusal):
        exchange.refuse(identity)
        return None
    if identity is not None:
        request = exchange.request
        request.principal = identity
        # It contains the token too, and no other protocol is spoken here.
        request.head = b""
        if headers := authentication.response_headers(identity):
            exchange.headers = (*exchange.headers, *headers)
    return route(exchange, identity)
