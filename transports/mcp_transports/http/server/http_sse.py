"""HTTP+SSE: one GET is the connection, and messages to the server are POSTed beside it.

MCP 2024-11-05, Transports, HTTP with SSE.
"""

from __future__ import annotations

import secrets
from functools import partial

import trio

from mcp_actors.abc import Frame, FrameChannel, ServerHandler
from mcp_actors.errors import LocalProtocolError, Overloaded, SharedStateUnavailable
from mcp_actors.supervision.budget import Account, Budget, holder_of
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Continuation, HttpExchange, access_scope
from mcp_transports.http.server.forwarder import SessionPlaces
from mcp_transports.http.server.responses import (
    RETRY_LATER,
    SESSION_NOT_FOUND,
    TOO_MANY_MESSAGES,
    Refusal,
    shared_state_unavailable,
)
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["HttpSseChannel", "HttpSseChannels", "post", "session_id_of"]

_ID_BYTES = 24
# Messages that wait to be received: about as many small ones as other bindings hold.
_QUEUED_MESSAGES = 256
# Seconds that a POST waits for room among them before it is refused.
_QUEUE_TIMEOUT = 5.0


class HttpSseChannel(FrameChannel):
    """The server's end of one connection: sends events, and receives the messages of POSTs.

    When a client leaves its stream the connection ends, because HTTP+SSE has no resumption.

    Args:
        exchange: The GET, which is answered with the event stream.
        open_responses: The registry of open streams.
        longest: Bytes of the longest message that is sent.
        messages_url: The URL to which the client is to POST.
        account: Is charged for the messages that wait to be received.
    """

    def __init__(
        self,
        exchange: HttpExchange,
        open_responses: OpenSseResponses,
        longest: int,
        messages_url: str,
        account: Account,
    ) -> None:
        self._longest = longest
        self._account = account
        self._request = exchange.request
        self._closed = self._broken = False
        self._access = trio.CancelScope()
        self._posted_end, self._receive_end = trio.open_memory_channel[Frame](_QUEUED_MESSAGES)
        # The first event of all names the URL to POST to.
        first = encode_event(messages_url.encode(), event="endpoint")
        self._sse = SseResponse(exchange, open_responses, self._client_left, first)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._broken else "open"
        return f"<HttpSseChannel {self.peer} {state}>"

    @property
    def max_message_bytes(self) -> int:
        return self._longest

    @property
    def sessions_only(self) -> bool:
        """True: MCP 2026-07-28 does not have this binding; the revisions since 2025-03-26 keep it for older peers."""
        return True

    @property
    def peer(self) -> str:
        return self._request.peer

    @property
    def http_request(self) -> Request:
        """The GET."""
        return self._request

    def while_access_lasts(self, principal: Principal | None) -> trio.CancelScope:
        """Returns the scope of the connection, which is cancelled some time after the access has ended."""
        self._access = access_scope(principal)
        return self._access

    def renew(self, principal: Principal) -> None:
        """Takes note of a token of the same principal that came with a POST: its scopes and its end count from now."""
        self._request.principal = principal
        self._access.deadline = access_scope(principal).deadline

    async def send(self, value: Frame) -> None:
        """Sends one event, and waits while the client reads slowly. Cancelled while it waits, it has sent nothing.

        Raises:
            LocalProtocolError: The message is longer than `max_message_bytes`; nothing was sent.
            trio.ClosedResourceError: The channel was closed.
            trio.BrokenResourceError: The client left, or has stopped reading.
        """
        self._check(value)
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._sse.full:
            await self._sse.drained()
            self._check(value)
        self._sse.write(encode_event(value.data, event="message"))
        await trio.lowlevel.cancel_shielded_checkpoint()

    def write_now(self, frame: Frame) -> bool:
        if self._closed or self._broken or self._sse.full or len(frame.data) > self._longest:
            return False
        self._sse.write(encode_event(frame.data, event="message"))
        return True

    async def receive(self) -> Frame:
        """Waits for one message. Cancelling it loses nothing.

        Raises:
            trio.ClosedResourceError: The channel was closed.
            trio.BrokenResourceError: The client left.
        """
        try:
            frame = await self._receive_end.receive()
        except trio.EndOfChannel:
            raise trio.BrokenResourceError("the client left its event stream") from None
        self._received(frame)
        return frame

    async def receive_many(self) -> list[Frame]:
        """Waits for one message, and returns it with all that are there already. Raises the errors of `receive`."""
        frames = [await self.receive()]
        try:
            while True:
                frame = self._receive_end.receive_nowait()
                self._received(frame)
                frames.append(frame)
        except (trio.WouldBlock, trio.EndOfChannel):
            return frames

    def _received(self, frame: Frame) -> None:
        # Less than that is charged only when the channel was closed meanwhile.
        self._account.keep(max(0, self._account.held - len(frame.data)))

    def put_nowait(self, frame: Frame) -> None:
        """Takes a message that was POSTed.

        Raises:
            Overloaded: Too many bytes wait to be received, of this client or of all.
            trio.WouldBlock: Too many messages wait to be received.
            trio.BrokenResourceError: The channel was closed.
            trio.ClosedResourceError: The client left.
        """
        self._charge(frame)
        try:
            self._posted_end.send_nowait(frame)
        except BaseException:
            self._received(frame)
            raise

    def _charge(self, frame: Frame) -> None:
        account = self._account
        over = account.charge(len(frame.data))
        if over is not None:
            raise Overloaded.for_bytes("messages that wait", over, account.budget.limit_of(over))

    async def put(self, frame: Frame) -> bool:
        """Takes a message that was POSTed, and waits for room. Returns false if there was none in time.

        Raises:
            Overloaded: Too many bytes wait to be received, of this client or of all.
            trio.BrokenResourceError: The channel was closed.
            trio.ClosedResourceError: The client left.
        """
        self._charge(frame)
        taken = False
        try:
            with trio.move_on_after(_QUEUE_TIMEOUT):
                await self._posted_end.send(frame)
                taken = True
        finally:
            if not taken:
                self._received(frame)
        return taken

    async def aclose(self) -> None:
        """Ends the stream. Messages that were POSTed and not received are lost."""
        if not self._closed:
            self._closed = True
            self._posted_end.close()
            self._receive_end.close()
            self._account.keep(0)
            self._sse.end()
        await trio.lowlevel.checkpoint()

    def _check(self, frame: Frame) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._broken:
            raise trio.BrokenResourceError("the client left its event stream")
        if len(frame.data) > self._longest:
            raise LocalProtocolError(
                f"a message of {len(frame.data)} bytes is too long: the limit is {self._longest}"
            )

    def _client_left(self, sse: SseResponse) -> None:
        self._broken = True
        self._posted_end.close()


class HttpSseChannels:
    """The open connections of one listener, by the unguessable id in the URL that each client was given.

    Args:
        open_responses: The registry of open streams.
        messages_path: The path that clients POST to.
        longest: Bytes of the longest message that is sent.
        posted: Is charged for the messages that wait to be received.
        places: Makes them known to other nodes, which a POST may reach; ``None`` where there are none.
    """

    def __init__(
        self,
        open_responses: OpenSseResponses,
        messages_path: str,
        longest: int,
        posted: Budget,
        places: SessionPlaces | None = None,
    ) -> None:
        self._places = places
        self._open_responses = open_responses
        self._messages_path = messages_path
        self._longest = longest
        self.posted = posted
        self._open: dict[str, tuple[HttpSseChannel, Principal | None]] = {}

    def __repr__(self) -> str:
        return f"<HttpSseChannels: {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    async def run(self, exchange: HttpExchange, handler: ServerHandler, principal: Principal | None) -> None:
        """Runs one connection to its end, in a task of the HTTP connection that carries its events."""
        id = secrets.token_urlsafe(_ID_BYTES)
        try:
            if self._places is not None and not await self._register(self._places, id, exchange, principal):
                return
            await self._run(id, exchange, handler, principal)
        finally:
            if self._places is not None:
                self._places.forget(id)

    async def _register(
        self, places: SessionPlaces, id: str, exchange: HttpExchange, principal: Principal | None
    ) -> bool:
        try:
            await places.register(id, principal)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))
            return False
        return True

    async def _run(
        self, id: str, exchange: HttpExchange, handler: ServerHandler, principal: Principal | None
    ) -> None:
        messages_url = f"{_prefix_of(exchange.request)}{self._messages_path}?session_id={id}"
        account = Account(self.posted, holder_of(exchange.request.peer, principal))
        channel = HttpSseChannel(exchange, self._open_responses, self._longest, messages_url, account)
        async with channel:
            self._open[id] = channel, principal
            try:
                with channel.while_access_lasts(principal):
                    await handler(channel, principal)
            finally:
                del self._open[id]

    def find(self, id: str, principal: Principal | None) -> HttpSseChannel | None:
        """Returns a connection to the principal that opened it, and ``None`` to any other."""
        channel, owner = self._open.get(id, (None, None))
        if channel is not None and owner == principal:
            # The token of this POST may be newer than that of the GET, with more scopes.
            if principal is not None:
                channel.renew(principal)
            return channel
        return None


def post(exchange: HttpExchange, channel: HttpSseChannel, frame: Frame) -> Continuation | None:
    """Gives the message of a POST to its connection, and answers 202.

    If there is no room yet, this returns a function that waits for it.
    """
    try:
        channel.put_nowait(frame)
    except trio.WouldBlock:
        return partial(_post_later, exchange, channel, frame)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        exchange.refuse(SESSION_NOT_FOUND)
        return None
    except Overloaded as error:
        exchange.refuse(_no_room(error))
        return None
    exchange.answer(202)
    return None


async def _post_later(exchange: HttpExchange, channel: HttpSseChannel, frame: Frame) -> None:
    try:
        taken = await channel.put(frame)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        exchange.refuse(SESSION_NOT_FOUND)
        return
    except Overloaded as error:
        exchange.refuse(_no_room(error))
        return
    if taken:
        exchange.answer(202)
    else:
        exchange.refuse(TOO_MANY_MESSAGES)


def _no_room(error: Overloaded) -> Refusal:
    return Refusal(503, error.message, error.code, RETRY_LATER)


def _prefix_of(request: Request) -> str:
    """Returns the prefix at which the listener is mounted in an application; empty where it has a port of its own."""
    target = request.target.partition("?")[0]
    return target.removesuffix(request.path) if target.startswith("/") else ""


def session_id_of(request: Request) -> str:
    """Returns the value of ``session_id`` in the URL of a POST, whose characters never have to be escaped."""
    for part in request.query.split("&"):
        name, _, value = part.partition("=")
        if name == "session_id":
            return value
    return ""
