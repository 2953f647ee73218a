"""WebSockets of an ASGI server: a session for each, in the engine, whatever loop the server has.

`AsgiWebSocket` belongs to the server's loop. It carries messages both ways and decides nothing. `AsgiWebSocketChannel`
belongs to the engine. Each reads numbers of the other one, which only their owner changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.abc.http import AsgiMessage, AsgiReceive, AsgiSend
from mcp_actors.errors import EngineStopped, LoopClosed, RemoteProtocolError
from mcp_actors.supervision.containment import Containment, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import SOCKET_CONNECTION
from mcp_transports.http.asgi.loops import Interruptible, LoopSide
from mcp_transports.http.asgi.response import AsgiListener, websocket_refusal_messages
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import access_scope
from mcp_transports.http.server.responses import INTERNAL_ERROR, SERVER_STOPPING, Refusal
from mcp_transports.http.server.service import HttpService

__all__ = ["AsgiWebSocket", "AsgiWebSocketChannel"]

SUBPROTOCOL = "mcp"
# Bytes of messages that wait in one direction; over it a server does not read on, and a call that sends waits.
HELD_BYTES = 1024 * 1024
# Bytes that a message costs beside its text, so that empty ones are bounded too.
_MESSAGE_BYTES = 256
# Messages that the engine takes at once.
_MOST_AT_ONCE = 256
# Seconds that a peer may take nothing while a call waits for it, as for our own listener.
WRITE_TIME = 30.0
# Seconds that the server has to say the last to a peer and to end the connection, once the channel is closed.
CLOSE_TIME = 5.0
# RFC 6455 section 7.4.1.
_GOING_AWAY, _UNSUPPORTED, _POLICY, _TOO_BIG = 1001, 1003, 1008, 1009


class AsgiWebSocket:
    """One WebSocket, in the loop of the ASGI server.

    Args:
        side: The loop.
        receive: The server's.
        send: The server's.
    """

    def __init__(self, side: LoopSide, receive: AsgiReceive, send: AsgiSend) -> None:
        self._side = side
        self._receive = receive
        self._send = send
        # The engine appends; ``None`` is the last.
        self._outgoing: deque[AsgiMessage | None] = deque()
        self._is_woken = False
        self._to_send = side.waiter()
        self._room = side.waiter()
        self._over = side.waiter()
        self.sent = 0
        """Characters of messages that the server has taken."""

    def __repr__(self) -> str:
        return f"<AsgiWebSocket {len(self._outgoing)} to send>"

    async def run(self, channel: AsgiWebSocketChannel) -> None:
        """Carries messages until the engine has closed ``channel``.

        Raises:
            Exception: What the server's ``send`` raises but for `OSError`, after the engine was notified.
        """
        engine = self._side.bridge.engine
        try:
            with self._side.interruptible() as stuck:
                async with (
                    self._side.beside(partial(self._take_messages, channel)),
                    self._side.beside(partial(self._end_in_time, stuck)),
                ):
                    await self._send_messages(channel)
        finally:
            with suppress(EngineStopped):
                engine.post(partial(channel.broke, "the ASGI server ended the connection", None))

    async def _send_messages(self, channel: AsgiWebSocketChannel) -> None:
        outgoing, engine = self._outgoing, self._side.bridge.engine
        while True:
            await self._to_send.wait()
            self._is_woken = False
            while outgoing:
                message = outgoing.popleft()
                if message is None:
                    return
                try:
                    await self._send(message)
                except OSError as error:
                    log.debug("a peer left before it got all", peer=channel.peer, reason=str(error))
                    return
                if message["type"] == "websocket.send":
                    self.sent += len(message["text"])
            if channel.waits_for_room:
                engine.post(channel.has_room)

    async def _take_messages(self, channel: AsgiWebSocketChannel) -> None:
        engine = self._side.bridge.engine
        taken = 0
        try:
            while True:
                message = await self._receive()
                if message["type"] != "websocket.receive":
                    engine.post(partial(channel.peer_closed, message.get("code")))
                    return
                text = message.get("text")
                if text is None:
                    broken = RemoteProtocolError("a peer sent binary frames: MCP is text")
                    engine.post(partial(channel.broke, str(broken), broken, _UNSUPPORTED))
                    return
                data = text.encode()
                if len(data) > channel.longest:
                    broken = RemoteProtocolError(f"a message is longer than {channel.longest} bytes")
                    engine.post(partial(channel.broke, str(broken), broken, _TOO_BIG))
                    return
                taken += len(data) + _MESSAGE_BYTES
                engine.post(partial(channel.arrived, data))
                while taken - channel.received > HELD_BYTES and not channel.is_over:
                    engine.post(channel.say_when_received)
                    await self._room.wait()
        except EngineStopped:
            log.debug("a WebSocket has outlived the engine", peer=channel.peer)
        except Exception as error:
            log.error("an ASGI server failed to receive", peer=channel.peer, exc_info=error)
            engine.post(partial(channel.broke, "the ASGI server failed", None))

    async def _end_in_time(self, stuck: Interruptible) -> None:
        await self._over.wait()
        try:
            await self._side.within(CLOSE_TIME, self._side.waiter().wait)
        except TimeoutError:
            log.info("an ASGI server does not end a WebSocket, which is given up")
            stuck.interrupt()

    def put(self, message: AsgiMessage | None) -> None:
        """Sends a message soon; ``None`` ends the WebSocket. Called in the engine, and never waits."""
        self._outgoing.append(message)
        if message is None:
            self._post(self._over.set)
        if not self._is_woken:
            self._is_woken = True
            self._post(self._to_send.set)

    def go_on(self) -> None:
        """Reads on. Called in the engine."""
        self._post(self._room.set)

    def _post(self, step: Callable[[], None]) -> None:
        try:
            self._side.bridge.post(step)
        except LoopClosed:
            log.debug("the loop of a WebSocket has ended")


class AsgiWebSocketChannel(FrameChannel):
    """The engine's side of one WebSocket.

    Args:
        socket: The side of the server's loop.
        scope: That of the connection.
        request: The request for it.
        longest: Bytes of the longest message either way.
    """

    def __init__(self, socket: AsgiWebSocket, scope: AsgiMessage, request: Request, longest: int) -> None:
        self._socket = socket
        self._scope = scope
        self._request = request
        self.longest = longest
        self.received = 0
        """The weight of messages that the engine has taken."""
        self.waits_for_room = False
        self.is_over = False
        """Whether nothing is carried any more."""
        self._incoming: deque[Frame] = deque()
        self._sent = 0
        self._end: BaseException | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._says_when_received = False

    def __repr__(self) -> str:
        return f"<AsgiWebSocketChannel {self.peer}{' over' if self.is_over else ''}>"

    @property
    def peer(self) -> str:
        return self._request.peer

    @property
    def http_request(self) -> Request:
        return self._request

    @property
    def max_message_bytes(self) -> int:
        return self.longest

    def begin(self, listener: AsgiListener, service: HttpService) -> None:
        """Serves the connection in a task of the listener. A step of the engine."""
        try:
            start(listener.nursery, SOCKET_CONNECTION, self._serve, listener, service, about=self.peer)
        except RuntimeError:
            # The nursery takes nothing any more: what serves has just ended.
            self._refuse(SERVER_STOPPING)

    async def _serve(self, listener: AsgiListener, service: HttpService) -> None:
        try:
            admitted: Principal | Refusal | None = INTERNAL_ERROR
            with Containment(SOCKET_CONNECTION, details={"doing": "authenticate", "peer": self.peer}):
                admitted = await self._admit(listener, service)
            if isinstance(admitted, Refusal):
                self._refuse(admitted)
                return
            self._request.principal = admitted
            offered = SUBPROTOCOL in (self._scope.get("subprotocols") or ())
            subprotocol = SUBPROTOCOL if offered else None
            self._socket.put({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
            with access_scope(admitted):
                await listener.handler(self, admitted)
        finally:
            self._close(_GOING_AWAY)

    async def _admit(self, listener: AsgiListener, service: HttpService) -> Principal | Refusal | None:
        """Returns who has sent the request, or why it is refused."""
        headers = self._request.headers
        verdict = service.origin_policy.check(headers.get("host"), headers.get("origin"))
        if verdict.refusal is not None:
            return Refusal(403, verdict.refusal)
        if listener.handler.stopping.is_set():
            return SERVER_STOPPING
        if service.authentication is None:
            return None
        identity = service.authentication.identify(self._request)
        return await identity() if isinstance(identity, partial) else identity

    def _refuse(self, refusal: Refusal) -> None:
        if not self.is_over:
            for message in websocket_refusal_messages(self._scope, refusal):
                self._socket.put(message)
            self._finish(trio.ClosedResourceError("the request was refused"))

    # -- steps that the server's loop posts --------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """Takes a message of the peer."""
        if not self.is_over:
            self._incoming.append(Frame(data))
            self._changed.unpark_all()

    def peer_closed(self, code: int | None) -> None:
        """Takes note that the peer has closed the connection. What came before it is still received."""
        log.debug("a peer closed its WebSocket", peer=self.peer, code=code)
        self._finish(trio.EndOfChannel())

    def broke(self, why: str, cause: BaseException | None, code: int | None = None) -> None:
        """Notes that the connection is of no use any more; ``code``, if given, says why to the peer."""
        if not self.is_over:
            if code is not None:
                self._socket.put({"type": "websocket.close", "code": code, "reason": ""})
            error = trio.BrokenResourceError(why)
            error.__cause__ = cause
            self._finish(error)

    def has_room(self) -> None:
        """Takes note that the server has taken messages."""
        self._changed.unpark_all()

    def say_when_received(self) -> None:
        """Has the server read on once there is room for what it reads."""
        self._says_when_received = True
        self._say_received()

    # -- what the engine calls ---------------------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Returns the next message. Raises as `FrameChannel.receive` does."""
        await self._until_received()
        frame = self._incoming.popleft()
        self._took([frame])
        return frame

    async def receive_many(self) -> list[Frame]:
        """Returns the messages that have come. Raises as `FrameChannel.receive` does."""
        await self._until_received()
        incoming = self._incoming
        frames = [incoming.popleft() for _ in range(min(len(incoming), _MOST_AT_ONCE))]
        self._took(frames)
        return frames

    async def send(self, value: Frame) -> None:
        """Hands one message to the server, after those before it were taken but for `HELD_BYTES`.

        Raises:
            trio.ClosedResourceError: We closed the channel.
            trio.BrokenResourceError: The connection has ended, or the peer took nothing for `WRITE_TIME` seconds.
        """
        await trio.lowlevel.checkpoint()
        self._require_open()
        if self._sent - self._socket.sent > HELD_BYTES:
            await self._until_room()
            self._require_open()
        self._put(value)

    def write_now(self, frame: Frame) -> bool:
        """Hands one message over without waiting, if not too many wait."""
        if self.is_over or self._sent - self._socket.sent > HELD_BYTES:
            return False
        self._put(frame)
        return True

    async def aclose(self) -> None:
        """Closes the connection with 1001, after what was sent. Legal from any task, any number of times."""
        self._close(_GOING_AWAY)
        await trio.lowlevel.checkpoint()

    def _put(self, frame: Frame) -> None:
        text = frame.data.decode()
        self._sent += len(text)
        self._socket.put({"type": "websocket.send", "text": text})

    async def _until_room(self) -> None:
        try:
            with trio.move_on_after(WRITE_TIME) as patience:
                while self._sent - self._socket.sent > HELD_BYTES and not self.is_over:
                    before = self._socket.sent
                    self.waits_for_room = True
                    # Looked at again after it was said, since the other thread looks in the opposite order.
                    if self._sent - self._socket.sent > HELD_BYTES:
                        await self._changed.park()
                    if self._socket.sent != before:
                        patience.deadline = trio.current_time() + WRITE_TIME
        finally:
            self.waits_for_room = False
        if patience.cancelled_caught:
            self.broke(f"it took nothing of what was sent for {WRITE_TIME:g} s", None, _POLICY)

    def _close(self, code: int) -> None:
        if not self.is_over:
            self._socket.put({"type": "websocket.close", "code": code, "reason": ""})
            self._finish(trio.ClosedResourceError("this channel was closed"))
        if not isinstance(self._end, trio.ClosedResourceError):
            self._end = trio.ClosedResourceError("this channel was closed")
            self._changed.unpark_all()
        self._incoming.clear()

    def _finish(self, end: BaseException) -> None:
        """Ends the channel, at its first end; the side of the server returns."""
        if not self.is_over:
            self.is_over = True
            self._end = end
            self._socket.put(None)
            self._socket.go_on()
            self._changed.unpark_all()

    async def _until_received(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._incoming:
            if self._end is not None:
                raise _again(self._end)
            await self._changed.park()

    def _require_open(self) -> None:
        if self._end is not None:
            end = self._end
            if isinstance(end, trio.EndOfChannel):
                raise trio.BrokenResourceError("the peer closed the connection")
            raise _again(end)

    def _took(self, frames: list[Frame]) -> None:
        self.received += _weight(frames)
        if self._says_when_received:
            self._say_received()

    def _say_received(self) -> None:
        if self.is_over or _weight(self._incoming) <= HELD_BYTES // 2:
            self._says_when_received = False
            self._socket.go_on()


def _weight(frames: Iterable[Frame]) -> int:
    return sum(len(each.data) + _MESSAGE_BYTES for each in frames)


def _again(end: BaseException) -> BaseException:
    """Returns an error of its own for each that waits, so that no two mix up their tracebacks."""
    error = type(end)(*end.args)
    error.__cause__ = end.__cause__
    return error
