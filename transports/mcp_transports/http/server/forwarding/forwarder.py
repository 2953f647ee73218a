"""The part of a listener that forwards requests to other nodes, and takes those that other nodes forward to it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import trio

from mcp_actors.abc import OpenState, SessionPlace
from mcp_actors.budget import Budget
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.principal import Principal
from mcp_actors.supervision import Containment, start_again
from mcp_actors.task_kinds import FORWARDED_ANSWER, FORWARDING_MESSAGES, FORWARDING_WATCH
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import (
    SESSION_NOT_FOUND,
    Header,
    shared_state_unavailable,
)
from mcp_transports.http.server.forwarding.inbound_request import InboundRequest
from mcp_transports.http.server.forwarding.messages import (
    Begun,
    BodyPart,
    ClientGone,
    Consumed,
    CutOff,
    Head,
    MalformedForward,
    Message,
    OpenRequests,
    Piece,
    Received,
    Unknown,
    decode_message,
)
from mcp_transports.http.server.forwarding.outbound_request import OutboundRequest
from mcp_transports.http.server.forwarding.outbox import Outbox
from mcp_transports.http.server.http_exchange import HttpExchange

__all__ = ["Forwarder", "ServeTaken"]

# Serves a request that was taken, as the endpoint serves its own: (request, response, headers of every answer,
# whether it is a POST of HTTP+SSE).
ServeTaken = Callable[[Request, Response, tuple[Header, ...], bool], None]

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
# Seconds for the last answers to leave when the listener ends.
_LAST_ANSWERS = 2.0


class Forwarder:
    """Forwards the requests of one listener, and takes those that other listeners forward to it.

    Args:
        state: The shared state, whose sessions and bus span processes.
        nursery: Owns the tasks that send answers.
    """

    def __init__(self, state: OpenState, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._state = state
        self._serve: ServeTaken | None = None
        self._sent: dict[int, OutboundRequest] = {}
        self._taken: dict[tuple[str, int], InboundRequest] = {}
        self._all_answered = trio.Event()
        self._bodies = Budget(HELD_BYTES)
        self._places: dict[str, str] = {}
        # When a node with which requests are open was heard of last, by its mailbox.
        self._last_seen: dict[str, float] = {}
        self.outbox = Outbox(state.bus, self._lose_node)
        self.address, self._close_mailbox = state.bus.open_mailbox(self._arrived)
        start_again(nursery, FORWARDING_MESSAGES, self.outbox.run)
        start_again(nursery, FORWARDING_WATCH, self._watch)

    def __repr__(self) -> str:
        return f"<Forwarder {len(self._sent)} sent, {len(self._taken)} taken>"

    def serve_with(self, serve: ServeTaken) -> None:
        """Names the function that serves what is taken. Nothing is taken before."""
        self._serve = serve

    def close(self) -> None:
        """Drops all that was taken or sent and not answered, and takes and sends nothing more. Never raises."""
        self._serve = None
        self._close_mailbox()
        for sent in tuple(self._sent.values()):
            sent.lose()
        for taken in tuple(self._taken.values()):
            taken.response.lose(tell=False)
        self._taken.clear()

    async def all_answered(self) -> None:
        """Waits until nothing that was taken is unanswered, and the answers have left."""
        while self._taken:
            self._all_answered = trio.Event()
            await self._all_answered.wait()

    async def finish(self) -> None:
        """Does the same as `all_answered`, for a bounded time."""
        with trio.move_on_after(_LAST_ANSWERS):
            await self.all_answered()

    # -- forwarding -------------------------------------------------------------------------------------------------

    async def forward(
        self, exchange: HttpExchange, principal: Principal | None, session: str, *, http_sse: bool = False
    ) -> SessionPlace | None:
        """Answers a request of a session that this listener does not hold.

        Returns:
            ``None`` if it is answered, else the place of the session, whose node is gone, or does not answer a request
            that resumes a stream. Nothing was answered then.
        """
        if self._serve is None:
            exchange.refuse(shared_state_unavailable(SharedStateUnavailable("bus", "nothing is forwarded")))
            return None
        try:
            address = self._places.get(session)
            if address is None or not await self._forward(exchange, principal, address, http_sse=http_sse):
                self._places.pop(session, None)
                place = await self._state.sessions.find(session)
                if place is None or place.address == self.address:
                    exchange.refuse(SESSION_NOT_FOUND)
                    return None
                if not place.alive:
                    return place
                if len(self._places) >= MAX_PLACES:
                    self._places.clear()
                self._places[session] = place.address
                if not await self._forward(exchange, principal, place.address, http_sse=http_sse):
                    self._places.pop(session, None)
                    return place
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
        return None

    async def _forward(
        self, exchange: HttpExchange, principal: Principal | None, address: str, *, http_sse: bool
    ) -> bool:
        number = secrets.randbits(_NUMBER_BITS)
        sent = self._sent[number] = OutboundRequest(self, exchange, address, number)
        self._last_seen.setdefault(address, trio.current_time())
        try:
            return await sent.run(principal, http_sse=http_sse)
        finally:
            del self._sent[number]
            if not sent.ended:
                self.outbox.post(address, ClientGone(self.address, [number]))

    # -- messages, none of which waits ------------------------------------------------------------------------------

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
            case Head() | Piece() | CutOff() | Received():
                sent = self._sent.get(message.number)
                if sent is None or sent.address != message.source:
                    return
                if isinstance(message, Received):
                    sent.received(message.total)
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

    def _begin(self, begun: Begun) -> None:
        key = (begun.source, begun.number)
        if key in self._taken:
            return
        if self._serve is None or len(self._taken) >= MAX_TAKEN:
            self.outbox.post(begun.source, CutOff(self.address, begun.number))
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
        serve = self._serve
        assert serve is not None
        response = taken.response
        with Containment(FORWARDED_ANSWER, lambda _: response.fail()):
            serve(taken.request(), response, tuple(taken.begun.answer_headers), taken.begun.http_sse)

    def forget_taken(self, taken: InboundRequest) -> None:
        """Removes a request whose answer was handed over, or that nobody waits for any more."""
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
        """Notices, by what the other side has open with this one, the messages that were lost."""
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
