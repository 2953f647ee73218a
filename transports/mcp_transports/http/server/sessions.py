"""Legacy sessions: begun by a valid ``initialize``, known by an unguessable id, and freed in time.

`SessionTable` has all sessions of one listener, and `HttpSession` is the HTTP side of one: its streams, what reaches
them, and the costs of its end. A session has no task of its own: a failure in it ends it, whichever task the failure
happens in. MCP 2025-11-25, Transports, Session Management.

Where other nodes can find the sessions, a listener that ends hands them over: the directory gets a `HandedOver` of
each, and the node that a client comes to next goes on with it. What the former node keeps is what a session has in
flight, `SessionTable.left`: calls, which end and are answered there, and the streams of them. The streams of each node
have names of their own, by which the next one knows where a stream goes on.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import msgspec
import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler, ServerSession
from mcp_actors.errors import LocalProtocolError, Overloaded, SharedStateUnavailable
from mcp_actors.supervision.budget import Budget, BudgetStatistics, holder_of
from mcp_actors.supervision.containment import Containment, TaskKind
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import SESSION_EXPIRY
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Continuation, HttpExchange
from mcp_transports.http.server.forwarder import SessionPlaces
from mcp_transports.http.server.responses import (
    EVENT_NOT_FOUND,
    INTERNAL_ERROR,
    LEGACY_STATUSES,
    SESSION_NOT_FOUND,
    TOO_MANY_SESSIONS,
    TOO_MANY_SESSIONS_OF_PEER,
    shared_state_unavailable,
)
from mcp_transports.http.server.session_streams import (
    STANDALONE,
    CallStream,
    JsonCallStream,
    SessionStream,
    StandaloneStream,
    StreamPart,
)
from mcp_transports.http.server.sse_response import (
    OpenSseResponses,
    SessionEnding,
    SseResponse,
    StreamSettings,
)
from mcp_transports.http.sse import encode_event

__all__ = [
    "SESSION_HEADER",
    "HandedOver",
    "HttpSession",
    "HttpSessionStatistics",
    "InitializeOutlet",
    "SessionLimits",
    "SessionTable",
]

# A session has no task of its own: a failure in it ends it, whichever task the failure happens in.
_SESSION = TaskKind(
    "HTTP session", "listener", "session", "the client: 500, then 404, so that it begins anew"
)
_SESSION_CLEANUP = TaskKind("HTTP session", "listener", "nothing", "nobody")
SESSION_HEADER = "mcp-session-id"
# Random bytes of an id: enough that none of 50,000 ids can be guessed.
_ID_BYTES = 24
# The idle time is counted in ticks of the one task that checks all sessions, so that no request reads the clock.
_TICKS = 4
# Sessions that are checked before other tasks run.
_SESSIONS_AT_ONCE = 1000
# Sessions that are handed over in one turn.
_HANDED_AT_ONCE = 200
# Seconds for taking one over: some requests to the shared state, each of which has a bound of its own. A session that
# is given up between them is lost, so this is longer than all of them.
_TAKE_OVER_TIME = 120.0
# Seconds that a node which ends waits for the next one of a session to say that it has it: its client may never come.
_PASSING_ON = 2.0
# Seconds that a server has for its answer to an initialize; a gateway meets its upstreams first.
INITIALIZE_TIMEOUT = 60.0


class HandedOver(msgspec.Struct, frozen=True):
    """The parts of a session that another node needs to go on with it."""

    engine: bytes
    """The part of the engine; see `mcp_actors.abc.ServerHandler.hand_over`."""
    turn: int
    """How many nodes have had the session before the one that hands it over."""
    standalone: StreamPart
    former: dict[int, str]
    """The mailboxes of nodes that still have calls of it, by their turns."""


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
        self.left: dict[str, HttpSession] = {}
        """The sessions that other nodes have, and of which calls are in flight here."""
        # Set, by session, once it is known whether it was taken or handed over.
        self._moving: dict[str, trio.Event] = {}
        self._has_left: set[str] = set()
        self._left_changed = trio.lowlevel.ParkingLot()
        self._leaves = False

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
        outlet = InitializeOutlet(self.settings.longest, exchange.request)
        try:
            session.engine.deliver(arrival, outlet)
        except BaseException:
            with session.goes_on_if_raised("close the engine's session"):
                session.engine.close()
            raise
        if outlet.answer is None and session.engine.busy:
            return partial(self._answer_later, handler, exchange, session, outlet)
        return self._answer(handler, exchange, session, outlet)

    async def _answer_later(
        self,
        handler: ServerHandler,
        exchange: HttpExchange,
        session: HttpSession,
        outlet: InitializeOutlet,
    ) -> None:
        """Answers when the server does. A client that does not wait for it leaves no session behind."""
        continuation: Continuation | None = None
        try:
            with trio.move_on_after(INITIALIZE_TIMEOUT):
                await outlet.answered.wait()
            continuation = self._answer(handler, exchange, session, outlet)
        finally:
            if not session.id:
                session.engine.close()
                self._budget.release(session.holder, 1)
        if continuation is not None:
            await continuation()

    def _answer(
        self,
        handler: ServerHandler,
        exchange: HttpExchange,
        session: HttpSession,
        outlet: InitializeOutlet,
    ) -> Continuation | None:
        answer = outlet.answer
        if answer is not None and session.engine.initialized:
            session.id = secrets.token_urlsafe(_ID_BYTES)
            self._sessions[session.id] = session
            self._opened += 1
            if self._places is not None:
                return partial(self._register, handler, self._places, exchange, session, answer)
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
        self,
        handler: ServerHandler,
        places: SessionPlaces,
        exchange: HttpExchange,
        session: HttpSession,
        answer: Frame,
    ) -> None:
        """Makes a session known to all nodes before its client learns its id, and closes it if that fails."""
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
            if self._leaves:
                await self._hand_over(handler, places, [session])
            exchange.answer(200, answer.data, ((SESSION_HEADER, session.id),))

    # -- handing over ------------------------------------------------------------------------------------------------

    def has_handed_over(self, id: str) -> bool:
        """Whether another node has a session that was here, or may take it."""
        return id in self._has_left

    async def is_found_again(self, id: str) -> bool:
        """Waits until a session is taken or handed over, if that goes on, and returns whether it is here."""
        while (moving := self._moving.get(id)) is not None:
            await moving.wait()
        return id in self._sessions

    async def hand_over(self, handler: ServerHandler) -> bool:
        """Hands all sessions over that other nodes can go on with, and those that begin from now on.

        Returns:
            Whether none is left that another node may forward requests for.
        """
        self._leaves = True
        if self._places is not None:
            # Those that are just being taken over are handed on like the others.
            for moving in list(self._moving.values()):
                await moving.wait()
            sessions = list(self._sessions.values())
            for first in range(0, len(sessions), _HANDED_AT_ONCE):
                await self._hand_over(handler, self._places, sessions[first : first + _HANDED_AT_ONCE])
        return not self._sessions

    async def _hand_over(
        self, handler: ServerHandler, places: SessionPlaces, sessions: Sequence[HttpSession]
    ) -> None:
        records: dict[str, bytes] = {}
        streams: dict[str, list[str]] = {}
        done = trio.Event()
        for session in sessions:
            if session.id not in self._sessions:
                continue
            with session.goes_on_if_raised("hand over a session"):
                handed = session.hand_over(handler, places.address)
                if handed is None:
                    continue
                records[session.id] = msgspec.msgpack.encode(handed)
                streams[session.id] = [STANDALONE] if handed.standalone.is_named else []
                self._moving[session.id] = done
                self._has_left.add(session.id)
                del self._sessions[session.id]
                self._budget.release(session.holder, 1)
                if session.streams:
                    self.left[session.id] = session
        try:
            store = self.settings.store
            if store is not None:
                await store.leave(streams)
            await places.hand_over(records, self._limits.idle)
        except SharedStateUnavailable as error:
            log.warning(
                "sessions end, because they cannot be handed over", sessions=len(records), cause=error.cause
            )
        finally:
            for id in records:
                del self._moving[id]
            done.set()

    async def take_over(
        self, handler: ServerHandler, exchange: HttpExchange, principal: Principal | None, id: str
    ) -> HttpSession | None:
        """Goes on with a session that another node has handed over.

        Returns:
            The session; ``None`` if it is not to be had, because another node was faster for one, or if the request is
            refused.
        """
        places = self._places
        if places is None or id in self._moving or id in self._sessions:
            return self.find(id, principal) if await self.is_found_again(id) else None
        holder = holder_of(exchange.request.peer, principal)
        over = self._budget.charge(holder, 1)
        if over is not None:
            self._refused += 1
            exchange.refuse(TOO_MANY_SESSIONS if over == "all" else TOO_MANY_SESSIONS_OF_PEER)
            return None
        self._moving[id] = done = trio.Event()
        session: HttpSession | None = None
        try:
            # A client that does not wait must not make a session be lost.
            with trio.move_on_after(_TAKE_OVER_TIME, shield=True):
                record = await places.take_over(id, principal)
                if record is not None:
                    session = await self._go_on(handler, places, id, record, exchange, principal, holder)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
        except (LocalProtocolError, Overloaded, msgspec.MsgspecError) as error:
            log.warning("a session cannot be gone on with, and ends", session=id[:6], reason=str(error))
            places.forget(id)
            exchange.refuse(SESSION_NOT_FOUND)
        finally:
            if session is None:
                self._budget.release(holder, 1)
            del self._moving[id]
            done.set()
        return session

    async def _go_on(
        self,
        handler: ServerHandler,
        places: SessionPlaces,
        id: str,
        record: bytes,
        exchange: HttpExchange,
        principal: Principal | None,
        holder: str | None,
    ) -> HttpSession:
        handed = msgspec.msgpack.decode(record, type=HandedOver)
        session = HttpSession(self, principal, holder)
        session.id, session.turn, session.former = id, handed.turn + 1, handed.former or None
        session.standalone.go_on(handed.standalone)
        if self.settings.store is not None:
            last = handed.standalone.last_id
            self.settings.store.go_on(id, {} if last is None else {STANDALONE: last})
        session.engine = await handler.go_on(
            handed.engine, session.standalone, principal, exchange.request.peer
        )
        self._sessions[id] = session
        self._has_left.discard(id)
        return session

    def without_calls(self, session: HttpSession) -> None:
        """Notes that a session has no call in flight any more: nothing is left of one that another node has.

        But for what its calls have said beside, as long as that node has not said that it has the session.
        """
        if session.is_left and not session.standalone.holds_messages:
            self.close(session)
        self._left_changed.unpark_all()

    def taken_over(self, session: HttpSession, pass_on: Callable[[bytes], None]) -> None:
        """Notes that another node goes on with a session of which calls are left here: it gets what they say beside."""
        session.standalone.pass_on(pass_on)
        if session.streams:
            self._left_changed.unpark_all()
        else:
            self.without_calls(session)

    async def until_without_calls(self) -> None:
        """Waits until no session has a call in flight, whose client may have lost its connection and come back."""
        while self.left or any(session.streams for session in self._sessions.values()):
            await self._left_changed.park()

    async def until_passed_on(self) -> None:
        """Waits for a bounded time until other nodes have what calls have said beside in sessions that were left."""
        with trio.move_on_after(_PASSING_ON):
            while any(session.standalone.holds_messages for session in self.left.values()):
                await self._left_changed.park()

    def find(self, id: str, principal: Principal | None) -> HttpSession | None:
        """Returns a session to the principal that began it, and ``None`` to any other (CVE-2026-52869)."""
        session = self._sessions.get(id)
        return session if session is not None and session.principal == principal else None

    def by_id(self, id: str) -> HttpSession | None:
        """Returns a session, whoever began it."""
        return self._sessions.get(id)

    def has(self, session: HttpSession) -> bool:
        """Whether a session is here, or what was left of it."""
        return session in (self._sessions.get(session.id), self.left.get(session.id))

    def close(self, session: HttpSession, ending: SessionEnding = "closed") -> None:
        """Ends a session; its id is unknown from now on. Never raises, and does nothing the second time."""
        if self.left.get(session.id) is session:
            del self.left[session.id]
            session.close(ending)
            self._left_changed.unpark_all()
        elif self._sessions.pop(session.id, None) is not None:
            self._budget.release(session.holder, 1)
            if self._places is not None:
                with session.goes_on_if_raised("take a session out of the directory"):
                    self._places.forget(session.id)
            session.close(ending)

    def close_all(self) -> None:
        """Ends all sessions. Never raises."""
        for session in tuple(self._sessions.values()):
            self.close(session)
        for session in tuple(self.left.values()):
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


class HttpSession:
    """The HTTP side of a session: its id, its owner, its streams, and the time of its last activity.

    The engine keeps its messages and its protocol revision, in ``engine``. A session costs no task.
    """

    __slots__ = (
        "__weakref__",
        "_names",
        "_table",
        "engine",
        "former",
        "holder",
        "id",
        "is_left",
        "principal",
        "seen",
        "settings",
        "standalone",
        "streams",
        "turn",
    )

    engine: ServerSession

    def __init__(self, table: SessionTable, principal: Principal | None, holder: str | None) -> None:
        self._table = table
        self.settings = table.settings
        self.principal = principal
        # The principal or the address that began it.
        self.holder = holder
        self.id = ""
        # Weakly, since a session that has ended must not wait for the garbage collector.
        self.standalone = StandaloneStream(weakref.proxy(self))
        # The streams of calls in flight. `in_use` looks whether a client waits for one of them. An empty dictionary
        # takes 150 bytes less than an empty set, of an idle session's five thousand.
        self.streams: dict[SessionStream, None] = {}
        self.seen = table.tick
        self._names = 0
        # How many nodes had it before, those of them that still have calls of it, and whether another one has it now.
        self.turn = 0
        self.former: dict[int, str] | None = None
        self.is_left = False

    def __repr__(self) -> str:
        state = "in use" if self.in_use else "idle"
        return f"<HttpSession {self.id[:6]}… {state} calls={len(self.streams)} {self.standalone!r}>"

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight or a client waits for something: such a session is never idle."""
        return self.engine.busy or self.standalone.attached or any(stream.attached for stream in self.streams)

    def touch(self) -> None:
        """Notes an activity, with which the idle time begins anew."""
        self.seen = self._table.tick

    def call_ended(self) -> None:
        """Notes that a call has ended, and its stream."""
        self.seen = self._table.tick
        if not self.streams:
            self._table.without_calls(self)

    def new_stream_name(self) -> str:
        """Returns a name that no other stream of this session had, at any node."""
        self._names += 1
        return f"{self.turn}_{self._names}" if self.turn else str(self._names)

    def hand_over(self, handler: ServerHandler, address: str) -> HandedOver | None:
        """Leaves the session to another node, but for its calls in flight; ``None`` if no other can go on with it.

        Args:
            handler: The engine.
            address: The mailbox of this node.
        """
        engine = handler.hand_over(self.engine)
        if engine is None:
            return None
        former = dict(self.former or {})
        if self.streams:
            former[self.turn] = address
        self.is_left = True
        return HandedOver(engine, self.turn, self.standalone.leave(), former)

    def node_of(self, stream: str) -> str | None:
        """Returns the mailbox of the node that has a stream of an earlier turn, if it still had it then."""
        if self.former is None or stream == STANDALONE:
            return None
        turn, is_later, _ = stream.partition("_")
        return self.former.get(int(turn) if is_later else 0)

    def forget_node(self, address: str) -> None:
        """Notes that a node has nothing of the session any more."""
        self.former = {turn: each for turn, each in (self.former or {}).items() if each != address} or None

    def deliver(self, arrival: Arrival, exchange: HttpExchange) -> None:
        """Takes the messages of a POST. Those that expect no answer are answered with 202.

        If the engine fails on them, the session ends, because its state is unknown then.
        """
        self.seen = self._table.tick
        try:
            if arrival.requests:
                stream = JsonCallStream if self.settings.json_replies else CallStream
                self.engine.deliver(arrival, stream(self, exchange))
                # The stream keeps the request for its calls, which may be long. Its body was decoded.
                exchange.request.body = b""
            else:
                self.engine.deliver(arrival, self.standalone)
                exchange.answer(202)
        except BaseException:
            with self.ends_if_raised("take a message"):
                raise
            exchange.fail()

    async def resume(self, exchange: HttpExchange, last_event_id: str) -> str | None:
        """Answers a GET with all that followed an event in its stream, or with 400 if that is not known exactly.

        MCP 2025-11-25, Transports, Resumability and Redelivery: no event of another stream is sent. Session Management:
        a client takes 404 for the end of its session.

        Returns:
            ``None`` if it is answered, else the mailbox of a node that may still have the stream.
        """
        try:
            return await self._resume(exchange, last_event_id)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
            return None

    async def _resume(self, exchange: HttpExchange, last_event_id: str) -> str | None:
        store = self.settings.store
        events: list[tuple[str, bytes]] = []
        cursor = last_event_id
        while True:
            replay = await store.after(self.id, cursor) if store is not None else None
            if not self._table.has(self):
                exchange.refuse(SESSION_NOT_FOUND)
                return None
            if replay is None:
                exchange.refuse(EVENT_NOT_FOUND)
                return None
            if self._stream(replay.stream) is None and (elsewhere := self.node_of(replay.stream)) is not None:
                return elsewhere
            events += replay.events
            if events:
                cursor = events[-1][0]
            stream = self._stream(replay.stream)
            # Events may have been appended while a slow store was read. A stream that has ended is not listed.
            if stream.last_id == cursor if stream is not None else not replay.events:
                break
            if not replay.events and not (stream is not None and await stream.wait_until_kept()):
                log.error("the event log has lost events of a stream", session=self.id[:6])
                exchange.refuse(EVENT_NOT_FOUND)
                return None
        # There is no checkpoint from here on, so no message comes between those that were missed and the next ones.
        self.touch()
        if stream is not None:
            stream.resume(exchange, events)
        else:
            _replay(exchange, self.settings.open_responses, events)
        return None

    def _stream(self, name: str) -> SessionStream | None:
        if self.standalone.name == name:
            return self.standalone
        return next((stream for stream in self.streams if stream.name == name), None)

    def end(self) -> None:
        """Ends the session as if its client had deleted it. Never raises."""
        self._table.close(self)

    def close(self, ending: SessionEnding) -> None:
        """Ends the engine's session, then every response that waits. Never raises.

        If the session failed, streams are cut off and unanswered requests get an internal error. Otherwise streams end
        in order, and those requests get the error that the session is gone, or 202 if the client deleted it.
        """
        with self.goes_on_if_raised("close the engine's session"):
            self.engine.close()
        for stream in (*self.streams, self.standalone):
            stream.close(ending)
        self.streams.clear()
        if self.settings.store is not None and not self.is_left:
            with self.goes_on_if_raised("have the event log forget a session"):
                self.settings.store.forget(self.id)

    def ends_if_raised(self, doing: str) -> Containment:
        """Returns a context manager for work on which the session depends: an error of it ends this session alone."""
        return Containment(
            _SESSION,
            lambda error: self._table.close(self, "failed"),
            {"session": self.id[:6], "doing": doing},
        )

    def goes_on_if_raised(self, doing: str) -> Containment:
        """Returns a context manager for cleaning up: an error of it is logged and ends nothing."""
        return Containment(_SESSION_CLEANUP, None, {"session": self.id[:6], "doing": doing})


def _replay(
    exchange: HttpExchange, open_responses: OpenSseResponses, events: list[tuple[str, bytes]]
) -> None:
    """Sends the events that are left of a stream that has ended."""
    first = b"".join(encode_event(data, id=id) for id, data in events)
    SseResponse(exchange, open_responses, lambda gone: None, first).end()


class InitializeOutlet:
    """The outlet of an ``initialize``: holds its answer, which is sent with the new session's id or without one."""

    def __init__(self, longest: int, http_request: Request) -> None:
        self.longest = longest
        self.http_request = http_request
        self.answer: Frame | None = None
        self.answered = trio.Event()

    def post(self, frame: Frame) -> None:
        if frame.last:
            self.answer = frame
            self.answered.set()

    def send_nowait(self, frame: Frame) -> bool:
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.post(frame)

    def settle(self) -> None:
        """Notes that the call was cancelled and gets no answer."""
        self.answered.set()

    def close_stream(self) -> None:
        """Does nothing: without a stream nothing can be resumed."""
