"""The sessions that a listener does not hold: those of other nodes, those to take over, and those whose node is gone.

A `Forwarder` is the part of a listener that forwards requests to other nodes and takes those that other nodes forward
to it. `SessionPlaces` makes the sessions of this listener known to the other nodes, and `RemoteSessions` answers the
requests of all other sessions:

=========================================== ==========================================================================
the session                                  a request of it
=========================================== ==========================================================================
is held by another node                      is forwarded, and answered with what comes back
was handed over, and no node has it          makes this node take it over, and is served here; a node that is going to
                                             stop refuses it with 503, so that it is sent again
is being handed over, or was just now        looks again, until it is known where it is
was held by a node that is gone              gets 404, or the rest of a stream that it resumes
is unknown                                   gets 404
=========================================== ==========================================================================

A node that has handed a session over may still have calls of it. What the node that goes on with the session gets for
them is passed on there: `TakenOver`, `ForLeft` and `Unasked` are the messages between the two.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from mcp_actors.abc import EventLog, OpenState, SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.budget import Budget
from mcp_actors.supervision.containment import Containment, reraised, start_again, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import (
    FORWARDED_ANSWER,
    FORWARDED_REQUESTS,
    FORWARDING_MESSAGES,
    FORWARDING_WATCH,
)
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.forwarded_messages import (
    Begun,
    BodyPart,
    ClientGone,
    Consumed,
    CutOff,
    ForLeft,
    Head,
    MalformedForward,
    Message,
    NotTaken,
    OpenRequests,
    Outbox,
    Piece,
    Received,
    TakenOver,
    Unasked,
    Unknown,
    decode_message,
)
from mcp_transports.http.server.inbound_request import ForwardedResponse, InboundRequest
from mcp_transports.http.server.outbound_request import OutboundRequest, Outcome
from mcp_transports.http.server.responses import (
    SERVER_STOPPING,
    SESSION_NOT_FOUND,
    shared_state_unavailable,
)
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["Forwarder", "RemoteSessions", "SessionPlaces", "open_forwarder", "owner_key"]


class Taking(Protocol):
    """The endpoint of a listener, seen from its forwarder. Nothing here waits."""

    def serve_taken(self, request: Request, response: ForwardedResponse, begun: Begun) -> None:
        """Serves a request that was taken as one of its own, or declines it."""

    def take_notice(self, message: TakenOver | ForLeft | Unasked) -> None:
        """Takes what another node has for a session."""

    async def is_found_again(self, session: str) -> bool:
        """Waits until a session is taken over or handed over here, if it just is, and returns whether it is here."""


# Seconds between two signs of life to a node with which requests are open, and for which such a node may be silent.
# Together they are about the usual lease of a node.
WATCH_INTERVAL = 2.0
MAX_SILENCE = 8.0
# Requests that one listener has taken and not answered. Over it they are answered with a cut.
MAX_TAKEN = 20_000
# Bytes of bodies that came in parts, as `HttpLimits.held_bytes`.
HELD_BYTES = 512 * 1024 * 1024
# Sessions of other nodes whose place is remembered.
MAX_PLACES = 10_000
# Bits of a request's number: enough that no two that are open have the same.
_NUMBER_BITS = 60
# Numbers of requests in one message.
_AT_ONCE = 10_000
# Seconds between two looks for a session that is being handed over, and for which it is looked for.
_LOOK_AGAIN = 0.05
_LONGEST_LOOK = 5.0
# Seconds for the last answers to leave when the listener ends.
_LAST_ANSWERS = 2.0


@asynccontextmanager
async def open_forwarder(state: OpenState) -> AsyncIterator[Forwarder | None]:
    """Opens the mailbox of a listener for the length of the block; ``None`` if no other node could send to it.

    When the block ends, the answers that were given still leave, and unanswered requests are dropped.
    """
    if not (state.sessions.spans_processes and state.bus.spans_processes):
        yield None
        return
    ending = trio.Event()
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            try:
                forwarder = await start_and_wait(nursery, FORWARDED_REQUESTS, _hold, state, ending)
                with body:
                    yield forwarder
            finally:
                ending.set()


async def _hold(
    state: OpenState,
    ending: trio.Event,
    *,
    task_status: trio.TaskStatus[Forwarder] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Owns the tasks of a forwarder, which outlive a cancelled listener until its last answers have left."""
    async with trio.open_nursery() as nursery:
        # Where the start was cancelled, Trio lets nobody have the task: behind a shield it would never end.
        await trio.lowlevel.checkpoint_if_cancelled()
        nursery.cancel_scope.shield = True
        forwarder = Forwarder(state, nursery)
        try:
            task_status.started(forwarder)
            await ending.wait()
            await forwarder.finish()
        finally:
            forwarder.close()
            nursery.cancel_scope.cancel(reason="the last answers have left")


class Forwarder:
    """Forwards the requests of one listener, and takes those that other listeners forward to it.

    Args:
        state: The shared state, whose sessions and bus span processes.
        nursery: Owns the tasks that send answers.
    """

    def __init__(self, state: OpenState, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._state = state
        self._endpoint: Taking | None = None
        self._sent: dict[int, OutboundRequest] = {}
        self._sent_ended = trio.lowlevel.ParkingLot()
        self._taken: dict[tuple[str, int], InboundRequest] = {}
        self._all_answered = trio.Event()
        self._bodies = Budget(HELD_BYTES)
        self._places: dict[str, str] = {}
        # By the mailbox of a node with which requests are open: when its last message came.
        self._last_seen: dict[str, float] = {}
        self.outbox = Outbox(state.bus, self._lose_node)
        self.address, self._close_mailbox = state.bus.open_mailbox(self._arrived)
        start_again(nursery, FORWARDING_MESSAGES, self.outbox.run)
        start_again(nursery, FORWARDING_WATCH, self._watch)

    def __repr__(self) -> str:
        return f"<Forwarder {len(self._sent)} sent, {len(self._taken)} taken>"

    def serve_with(self, endpoint: Taking) -> None:
        """Sets what serves the requests of other nodes. None of them is taken before."""
        self._endpoint = endpoint

    def close(self) -> None:
        """Drops all unanswered requests in both directions, and takes and sends no more. Never raises."""
        self._endpoint = None
        self._close_mailbox()
        for sent in tuple(self._sent.values()):
            sent.lose()
        for taken in tuple(self._taken.values()):
            taken.response.lose(tell=False)
        self._taken.clear()

    async def all_answered(self) -> None:
        """Waits until all requests that were taken are answered, and the answers have left."""
        while self._taken:
            self._all_answered = trio.Event()
            await self._all_answered.wait()

    async def finish(self) -> None:
        """Does the same as `all_answered`, for a bounded time."""
        with trio.move_on_after(_LAST_ANSWERS):
            await self.all_answered()
            await self.outbox.until_sent()

    async def shut(self) -> None:
        """Has other nodes forward nothing more here, which they look up again then. Returns when all is taken.

        Raises:
            SharedStateUnavailable: They cannot learn of it.
        """
        await self._state.bus.shut(self.address)

    # -- forwarding -------------------------------------------------------------------------------------------------

    async def until_forwarded(self) -> None:
        """Waits until other nodes have answered what was forwarded to them."""
        while self._sent:
            await self._sent_ended.park()

    def end_streams(self) -> None:
        """Ends the streams that were asked for by GET: their clients come back for them to another node."""
        for sent in tuple(self._sent.values()):
            sent.end_stream()

    def cut(self) -> None:
        """Answers what other nodes have not answered, or breaks the answer off, which a client resumes elsewhere."""
        for sent in tuple(self._sent.values()):
            sent.cut()

    async def forward(
        self, exchange: HttpExchange, principal: Principal | None, session: str, *, http_sse: bool = False
    ) -> SessionPlace | None:
        """Answers a request of a session that this listener does not hold.

        Returns:
            ``None`` if it is answered. Otherwise the request is open, and this is the place of the session: this
            listener itself has taken it over meanwhile, or may do so, or its node is gone, or did not answer a request
            that resumes a stream.
        """
        if self._endpoint is None:
            exchange.refuse(shared_state_unavailable(SharedStateUnavailable("bus", "nothing is forwarded")))
            return None
        try:
            return await self._looked_up(exchange, principal, session, http_sse=http_sse)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
        return None

    async def _looked_up(
        self, exchange: HttpExchange, principal: Principal | None, session: str, *, http_sse: bool
    ) -> SessionPlace | None:
        until = trio.current_time() + _LONGEST_LOOK
        outcome: Outcome = "gone"
        address = self._places.get(session)
        if address is not None:
            outcome = await self._forward(exchange, principal, address, http_sse=http_sse)
            if outcome == "answered":
                return None
            self._places.pop(session, None)
        while True:
            place = await self._state.sessions.find(session)
            if place is None:
                exchange.refuse(SESSION_NOT_FOUND)
                return None
            if place.is_free or (outcome == "lost" and place.address == address):
                return place
            if place.address == self.address:
                if self._endpoint is not None and await self._endpoint.is_found_again(session):
                    return place
                if outcome == "declined":
                    exchange.refuse(SESSION_NOT_FOUND)
                    return None
                # It was handed over while this was looked up.
                outcome = "declined"
                continue
            if not place.alive:
                return place
            address = place.address
            outcome = await self._forward(exchange, principal, address, http_sse=http_sse)
            if outcome == "answered":
                if len(self._places) >= MAX_PLACES:
                    self._places.clear()
                self._places[session] = address
                return None
            if trio.current_time() >= until:
                exchange.refuse(SERVER_STOPPING)
                return None
            if outcome != "lost":
                await trio.sleep(_LOOK_AGAIN)

    async def forward_left(
        self, exchange: HttpExchange, principal: Principal | None, address: str
    ) -> Outcome:
        """Forwards a request to the node that still has a part of a session which is held here."""
        try:
            return await self._forward(exchange, principal, address, left=True)
        except SharedStateUnavailable:
            return "gone"

    async def _forward(
        self,
        exchange: HttpExchange,
        principal: Principal | None,
        address: str,
        *,
        http_sse: bool = False,
        left: bool = False,
    ) -> Outcome:
        number = secrets.randbits(_NUMBER_BITS)
        sent = self._sent[number] = OutboundRequest(self, exchange, address, number)
        self._last_seen.setdefault(address, trio.current_time())
        try:
            return await sent.run(principal, http_sse=http_sse, left=left)
        finally:
            del self._sent[number]
            self._sent_ended.unpark_all()
            if not sent.ended:
                self.outbox.post(address, ClientGone(self.address, [number]))

    # -- messages; handling one never waits -------------------------------------------------------------------------

    def _arrived(self, data: bytes) -> None:
        with Containment(FORWARDED_ANSWER):
            try:
                message = decode_message(data)
            except MalformedForward as error:
                log.warning("a message to this node is malformed and dropped", reason=str(error)[:200])
                return
            self._last_seen[message.source] = trio.current_time()
            self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case Begun():
                self._begin(message)
            case BodyPart():
                self._add(message)
            case Head() | Piece() | CutOff() | Received() | NotTaken():
                sent = self._sent.get(message.number)
                if sent is None or sent.address != message.source:
                    return
                if isinstance(message, Received):
                    sent.received(message.total)
                elif isinstance(message, NotTaken):
                    sent.decline()
                else:
                    sent.take(message)
            case Consumed():
                taken = self._taken.get((message.source, message.number))
                if taken is not None:
                    taken.response.sender.consumed(message.total)
            case ClientGone():
                for number in message.numbers:
                    self._lose_taken((message.source, number))
            case Unknown():
                for number in message.numbers:
                    sent = self._sent.get(number)
                    if sent is not None and sent.address == message.source:
                        sent.lose()
            case OpenRequests():
                self._compare(message)
            case TakenOver() | ForLeft() | Unasked():
                if self._endpoint is not None:
                    self._endpoint.take_notice(message)

    def _begin(self, begun: Begun) -> None:
        key = (begun.source, begun.number)
        if key in self._taken:
            return
        if self._endpoint is None or len(self._taken) >= MAX_TAKEN:
            self.outbox.post(begun.source, NotTaken(self.address, begun.number))
            return
        taken = self._taken[key] = InboundRequest(self, begun)
        if begun.last:
            self._serve_taken(taken)
        elif not self._charge(taken, len(begun.body)):
            taken.response.lose(tell=True)

    def _add(self, part: BodyPart) -> None:
        taken = self._taken.get((part.source, part.number))
        if taken is None:
            return
        if not taken.add(part) or not self._charge(taken, len(part.body)):
            taken.response.lose(tell=True)
            return
        self.outbox.post(part.source, Received(self.address, part.number, taken.received))
        if part.last:
            self._serve_taken(taken)

    def _charge(self, taken: InboundRequest, size: int) -> bool:
        if self._bodies.charge(taken.begun.source, size) is not None:
            return False
        taken.held += size
        return True

    def _serve_taken(self, taken: InboundRequest) -> None:
        endpoint, response = self._endpoint, taken.response
        assert endpoint is not None
        with Containment(FORWARDED_ANSWER, lambda _: response.fail()):
            endpoint.serve_taken(taken.request(), response, taken.begun)

    def forget_taken(self, taken: InboundRequest) -> None:
        """Removes a request whose answer was handed over, or that its client does not wait for any more."""
        if self._taken.pop(taken.key, None) is not None and taken.held:
            self._bodies.release(taken.begun.source, taken.held)
        if not self._taken:
            self._all_answered.set()

    def _lose_taken(self, key: tuple[str, int]) -> None:
        taken = self._taken.get(key)
        if taken is not None:
            taken.response.lose(tell=False)

    # -- nodes that are gone ----------------------------------------------------------------------------------------

    def _compare(self, watch: OpenRequests) -> None:
        """Compares the requests that the other side has open with this one, and notices lost messages."""
        unknown = []
        for state in watch.sent:
            taken = self._taken.get((watch.source, state.number))
            if taken is None:
                unknown.append(state.number)
            elif taken.is_behind(state.parts):
                taken.response.lose(tell=True)
            else:
                taken.response.sender.consumed(state.consumed)
        if unknown:
            self.outbox.post(watch.source, Unknown(self.address, unknown))
        left = []
        for taken_state in watch.taken:
            sent = self._sent.get(taken_state.number)
            if sent is None or sent.address != watch.source:
                left.append(taken_state.number)
            else:
                sent.received(taken_state.received)
                sent.expect(taken_state.pieces)
        if left:
            self.outbox.post(watch.source, ClientGone(self.address, left))

    def _lose_node(self, address: str) -> None:
        for sent in tuple(self._sent.values()):
            if sent.address == address:
                sent.lose()
        for key in [key for key in self._taken if key[0] == address]:
            self._lose_taken(key)
        self._last_seen.pop(address, None)
        self._places = {session: place for session, place in self._places.items() if place != address}

    async def _watch(self) -> None:
        while True:
            await trio.sleep(WATCH_INTERVAL)
            now = trio.current_time()
            sent: dict[str, list[OutboundRequest]] = {}
            taken: dict[str, list[InboundRequest]] = {}
            for request in self._sent.values():
                if request.parts >= 0:
                    sent.setdefault(request.address, []).append(request)
            for each in self._taken.values():
                taken.setdefault(each.begun.source, []).append(each)
            addresses = sent.keys() | taken.keys()
            self._last_seen = {address: self._last_seen.get(address, now) for address in addresses}
            for address in addresses:
                if now - self._last_seen[address] > MAX_SILENCE:
                    log.warning("a node with open requests is silent", silent=now - self._last_seen[address])
                    self._lose_node(address)
                else:
                    self._report(address, sent.get(address, []), taken.get(address, []))

    def _report(self, address: str, sent: list[OutboundRequest], taken: list[InboundRequest]) -> None:
        for first in range(0, max(len(sent), len(taken)), _AT_ONCE):
            behind = first + _AT_ONCE
            message = OpenRequests(
                self.address,
                [each.state for each in sent[first:behind]],
                [each.state for each in taken[first:behind]],
            )
            self.outbox.post(address, message)


def owner_key(principal: Principal | None) -> str:
    """Returns what the directory knows the owner of a session by."""
    return "" if principal is None else principal.key


class SessionPlaces:
    """The entries of one listener's sessions in the directory.

    Args:
        state: The shared state.
        address: The mailbox of the listener.
    """

    def __init__(self, state: OpenState, address: str) -> None:
        self._directory = state.sessions
        self.address = address

    async def register(self, session: str, principal: Principal | None) -> None:
        """Makes a session known to all nodes.

        Raises:
            SharedStateUnavailable: The directory cannot be reached.
        """
        await self._directory.register(session, owner_key(principal), self.address)

    def forget(self, session: str) -> None:
        """Takes out a session that has ended."""
        self._directory.forget(session)

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        """Gives sessions up for the nodes that take them; see `SessionDirectory.hand_over`.

        Raises:
            SharedStateUnavailable: The directory cannot be reached.
        """
        await self._directory.hand_over(records, seconds)

    async def take_over(self, session: str, principal: Principal | None) -> bytes | None:
        """Becomes the holder of a session, and returns its record; ``None`` if another node was faster.

        Raises:
            SharedStateUnavailable: The directory cannot be reached.
        """
        return await self._directory.take_over(session, owner_key(principal), self.address)


TakeOver = Callable[[HttpExchange, "Principal | None", str], Awaitable[bool]]
"""Takes a session over; returns false if it is not to be had, or if the request is answered, which it refuses."""


class RemoteSessions:
    """Answers the requests of sessions that this listener does not hold.

    Args:
        forwarder: Forwards those of sessions that other nodes hold.
        store: Has the events of sessions whose node is gone; ``None`` if no other node can read them.
        open_responses: The registry of open streams.
    """

    def __init__(
        self, forwarder: Forwarder, store: EventLog | None, open_responses: OpenSseResponses
    ) -> None:
        self.forwarder = forwarder
        self._store = store if store is not None and store.spans_processes else None
        self._open_responses = open_responses

    async def serve(
        self,
        exchange: HttpExchange,
        principal: Principal | None,
        session: str,
        take_over: TakeOver,
        *,
        http_sse: bool = False,
    ) -> bool:
        """Answers a request: with the answer of the node that holds its session, or with 404.

        A session that was handed over is taken over by ``take_over``. One whose node is gone still has its events (MCP
        2025-11-25, Transports, Resumability and Redelivery): a GET that resumes a stream gets the rest of it once, and
        every other request 404, so that its client begins anew.

        Returns:
            Whether the session is held here now; then the request is open.
        """
        while True:
            place = await self.forwarder.forward(exchange, principal, session, http_sse=http_sse)
            if place is None:
                return False
            if place.owner != owner_key(principal):
                exchange.refuse(SESSION_NOT_FOUND)
                return False
            if place.is_free:
                if await take_over(exchange, principal, session):
                    return True
                if exchange.response.started:
                    return False
            elif place.address == self.forwarder.address:
                return True
            else:
                await self._replay(exchange, session)
                return False

    async def _replay(self, exchange: HttpExchange, session: str) -> None:
        last_event_id = exchange.request.headers.get("last-event-id")
        if exchange.request.method != "GET" or last_event_id is None or self._store is None:
            exchange.refuse(SESSION_NOT_FOUND)
            return
        try:
            replay = await self._store.after(session, last_event_id)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
            return
        if replay is None or not replay.events:
            exchange.refuse(SESSION_NOT_FOUND)
            return
        events = b"".join(encode_event(data, id=id) for id, data in replay.events)
        SseResponse(exchange, self._open_responses, lambda gone: None, events).end()

    async def until_answered(self) -> None:
        """Waits until other nodes have answered what was forwarded to them."""
        await self.forwarder.until_forwarded()

    def end_streams(self) -> None:
        """See `Forwarder.end_streams`."""
        self.forwarder.end_streams()

    def cut(self) -> None:
        """See `Forwarder.cut`."""
        self.forwarder.cut()
