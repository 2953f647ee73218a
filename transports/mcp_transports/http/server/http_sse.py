"""HTTP+SSE of 2024-11-05 (protocol §6.5): one GET is the connection, messages to the server are POSTed beside it."""

from __future__ import annotations

import secrets
from functools import partial

import trio

from mcp_actors.abc import Frame, FrameChannel, ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_transports.http.server.error_responses import FORGOTTEN, TOO_MANY_MESSAGES, Exchange, Rest
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["HttpSseChannel", "HttpSseChannels"]

_ID_BYTES = 24
# Messages that wait to be read: about what other bindings hold of small ones.
_INBOX = 256
# A POST waits so many seconds for a place among them before it is refused.
_PATIENCE = 5.0


class HttpSseChannel(FrameChannel):
    """The server's end of one connection: sends events, receives what was POSTed to its endpoint.

    The client that leaves its stream has left: nothing can be resumed.
    """

    def __init__(self, turn: Exchange, streams: OpenSseResponses, longest: int, endpoint: str) -> None:
        self._longest = longest
        self._peer = turn.request.peer
        self._closed = self._broken = False
        self._put, self._got = trio.open_memory_channel[Frame](_INBOX)
        # The first event of all says where to POST.
        first = encode_event(endpoint.encode(), event="endpoint")
        self._live = SseResponse(turn, streams, self._lost, first)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._broken else "open"
        return f"<HttpSseChannel {self._peer} {state}>"

    @property
    def max_message_bytes(self) -> int:
        return self._longest

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, value: Frame) -> None:
        """Sends one event; waits while the peer reads slowly. Cancelled while it waits, nothing was sent."""
        self._check(value)
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._live.full:
            await self._live.drained()
            self._check(value)
        self._live.write(encode_event(value.data, event="message"))
        await trio.lowlevel.cancel_shielded_checkpoint()

    def write_now(self, frame: Frame) -> bool:
        if self._closed or self._broken or self._live.full or len(frame.data) > self._longest:
            return False
        self._live.write(encode_event(frame.data, event="message"))
        return True

    async def receive(self) -> Frame:
        """Waits for one message. Cancelling loses nothing."""
        try:
            return await self._got.receive()
        except trio.EndOfChannel:
            raise trio.BrokenResourceError("the client left its event stream") from None

    async def receive_many(self) -> list[Frame]:
        """Waits for one message and returns it with all that are there already. Cancelling loses nothing."""
        frames = [await self.receive()]
        try:
            while True:
                frames.append(self._got.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return frames

    def push(self, frame: Frame) -> None:
        """Takes what was POSTed, or raises `trio.WouldBlock` when too much waits."""
        self._put.send_nowait(frame)

    async def push_patiently(self, frame: Frame) -> bool:
        """Takes what was POSTed as soon as there is room; says whether there was some in time."""
        with trio.move_on_after(_PATIENCE):
            await self._put.send(frame)
            return True
        return False

    async def aclose(self) -> None:
        """Ends the stream. What was POSTed and not received is lost."""
        if not self._closed:
            self._closed = True
            self._put.close()
            self._got.close()
            self._live.end()
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

    def _lost(self, live: SseResponse) -> None:
        self._broken = True
        self._put.close()


class HttpSseChannels:
    """The open connections of one listener, by the unguessable id in the address that each was told."""

    def __init__(self, streams: OpenSseResponses, messages_path: str, longest: int) -> None:
        self._streams = streams
        self._path = messages_path
        self._longest = longest
        self._open: dict[str, tuple[HttpSseChannel, str | None]] = {}

    def __repr__(self) -> str:
        return f"<HttpSseChannels: {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    async def run(self, turn: Exchange, handler: ServerHandler, principal: str | None) -> None:
        """Runs one connection to its end, in the task of the HTTP connection that carries its events."""
        id = secrets.token_urlsafe(_ID_BYTES)
        channel = HttpSseChannel(turn, self._streams, self._longest, f"{self._path}?session_id={id}")
        async with channel:
            self._open[id] = channel, principal
            try:
                await handler(channel, principal)
            finally:
                del self._open[id]

    def post(self, turn: Exchange, principal: str | None) -> Rest | None:
        """Hands on what was POSTed to the endpoint: 202, or 404 when it is nobody's or somebody else's."""
        channel, owner = self._open.get(_session_id(turn.request.query), (None, None))
        if channel is None or owner != principal:
            turn.refuse(FORGOTTEN)
            return None
        frame = Frame(turn.request.body)
        try:
            channel.push(frame)
        except trio.WouldBlock:
            return partial(_wait_for_room, turn, channel, frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            turn.refuse(FORGOTTEN)
            return None
        turn.answer(202)
        return None


async def _wait_for_room(turn: Exchange, channel: HttpSseChannel, frame: Frame) -> None:
    try:
        taken = await channel.push_patiently(frame)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        turn.refuse(FORGOTTEN)
        return
    if taken:
        turn.answer(202)
    else:
        turn.refuse(TOO_MANY_MESSAGES)


def _session_id(query: str) -> str:
    """The value of ``session_id``: ids have no character that would have to be escaped."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "session_id":
            return value
    return ""
