"""Fields over streams of bytes: lines, or the part of WebSocket (RFC 6455) that a load needs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mcp_actors.cli.bench.field import ANSWER_WITHIN_SECONDS, Arrival, Field
from mcp_actors.cli.bench.plan import Era, LoadError, Message

__all__ = [
    "READABLE",
    "WRITABLE",
    "Ends",
    "Framing",
    "Lines",
    "LoadPoll",
    "StreamField",
    "WebSocketFrames",
    "upgrade",
    "wait_for",
]


# -- Waiting for many descriptors, by epoll: elsewhere than on Linux the engine's client makes the load --

if sys.platform == "linux":
    from select import EPOLLIN as READABLE
    from select import EPOLLOUT as WRITABLE
    from select import epoll as LoadPoll
else:
    READABLE, WRITABLE = 1, 4

    class LoadPoll:
        """Replaces epoll, which this system does not have.

        Raises:
            LoadError: Always.
        """

        def __init__(self) -> None:
            raise LoadError("raw loads need Linux: drive the server through the engine's client")

        def register(self, descriptor: object, events: int) -> None:
            """Is never called."""

        def modify(self, descriptor: object, events: int) -> None:
            """Is never called."""

        def unregister(self, descriptor: object) -> None:
            """Is never called."""

        def poll(self, timeout: float = -1) -> list[tuple[int, int]]:
            """Is never called."""
            return []

        def fileno(self) -> int:
            """Is never called."""
            return -1

        def close(self) -> None:
            """Is never called."""


# -- Connections that carry nothing but messages: lines over pipes and sockets, frames of WebSocket ------

READ_BYTES = 65_536
# Of one message: a longer one is not an answer to the load.
MOST_BYTES = 64 * 2**20
# Timers of the system are late by about as much, so the rest of a wait is spent polling.
LOOK_SECONDS = 0.0001
# epoll counts milliseconds: a longer wait begins with it, because that is one call of the system and not two.
COARSE_SECONDS = 0.004


class Ends(NamedTuple):
    """The non-blocking file descriptors of an open connection, and the function that closes it."""

    read: int
    write: int
    close: Callable[[], None]


class Framing(ABC):
    """The framing of messages in the bytes of one connection."""

    @abstractmethod
    def wrap(self, data: bytes) -> bytes: ...

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that ``data`` completes."""


class Lines(Framing):
    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def wrap(self, data: bytes) -> bytes:
        return data + b"\n"

    def feed(self, data: bytes) -> list[bytes]:
        *lines, rest = data.split(b"\n")
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest.clear()
            self._size = 0
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
            if self._size > MOST_BYTES:
                raise LoadError(f"a message of more than {MOST_BYTES} bytes")
        return lines


def wait_for(
    poll: LoadPoll, until: float | None, patience: float = ANSWER_WITHIN_SECONDS
) -> list[tuple[int, int]]:
    """Returns events, or none when ``until`` has passed. Raises `LoadError` if nothing happens without ``until``."""
    if until is None:
        events = poll.poll(patience)
        if not events:
            raise LoadError(f"no answer within {patience:g} s")
        return events
    left = until - time.perf_counter()
    if left > COARSE_SECONDS:
        events = poll.poll(left - COARSE_SECONDS / 2)
        if events:
            return events
        left = until - time.perf_counter()
    if left > LOOK_SECONDS:
        # epoll alone counts milliseconds: an arrival rate would come in bursts.
        select.select([poll.fileno()], [], [], left - LOOK_SECONDS)
    while not (events := poll.poll(0)) and time.perf_counter() < until:
        pass
    return events


class _StreamLane:
    __slots__ = ("blocked", "ends", "framing", "number", "out")

    def __init__(self, number: int, ends: Ends, framing: Framing) -> None:
        self.number = number
        self.ends = ends
        self.framing = framing
        self.out: list[bytes] = []
        self.blocked = False


class StreamField(Field):
    """Lanes over such connections.

    ``opener`` opens a connection and makes the transport's own handshake, if it has one. ``write`` may write less than
    it could, as a connection that is full does, and is called again for the rest.
    """

    def __init__(
        self,
        era: Era,
        opener: Callable[[], Ends],
        framing: Callable[[], Framing],
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        super().__init__(era)
        self._opener = opener
        self._write = write
        self._framing = framing
        self._poll = LoadPoll()
        self._lanes: dict[int, _StreamLane] = {}
        self._reading: dict[int, _StreamLane] = {}
        self._unsent: set[int] = set()
        self._numbers = 0

    async def connect(self) -> int:
        ends = self._opener()
        self._numbers += 1
        lane = _StreamLane(self._numbers, ends, self._framing())
        self._lanes[lane.number] = lane
        self._reading[ends.read] = lane
        self._poll.register(ends.read, READABLE)
        return lane.number

    def post(self, lane: int, message: Message) -> None:
        here = self._lanes[lane]
        if here.blocked and len(here.out[0]) > MOST_BYTES:
            # The peer asks without end and does not read the answers.
            raise LoadError(f"the server has not read {MOST_BYTES} bytes")
        here.out.append(here.framing.wrap(message.data))
        self._unsent.add(lane)

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        found: list[Arrival] = []
        while not (found or self.troubles):
            self._flush()
            if self.troubles:
                break
            ready = wait_for(self._poll, until, self.patience)
            for descriptor, event in ready:
                # What can be written to again is what `_flush` tries next. A peer that takes no more may be one
                # that must be read first: both ends of a pipe may be full.
                if event != WRITABLE and (lane := self._reading.get(descriptor)) is not None:
                    self._read(lane, found)
            if not ready and until is not None and time.perf_counter() >= until:
                break
        return found

    def _read(self, lane: _StreamLane, found: list[Arrival]) -> None:
        try:
            data = os.read(lane.ends.read, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(lane, f"a connection broke: {error}")
            return
        if not data:
            self._lose(lane, "the server closed a connection")
            return
        number = lane.number
        try:
            found.extend([(number, message) for message in lane.framing.feed(data)])
        except LoadError as error:
            self._lose(lane, str(error))

    def _lose(self, lane: _StreamLane, text: str) -> None:
        self.fail(lane.number, None, "connection lost", text)
        self._forget(lane.number)

    def _flush(self) -> None:
        for number in tuple(self._unsent):
            lane = self._lanes[number]
            data = lane.out[0] if len(lane.out) == 1 else b"".join(lane.out)
            try:
                sent = self._write(lane.ends.write, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lose(lane, f"a connection broke: {error}")
                continue
            if sent == len(data):
                lane.out = []
                self._unsent.discard(number)
                if lane.blocked:
                    self._watch(lane, False)
            else:
                lane.out = [data[sent:]]
                if not lane.blocked:
                    self._watch(lane, True)

    def _watch(self, lane: _StreamLane, blocked: bool) -> None:
        """Sets whether `wait_for` reports that this lane can be written to."""
        lane.blocked = blocked
        read, write, _ = lane.ends
        if read == write:
            self._poll.modify(read, READABLE | WRITABLE if blocked else READABLE)
        elif blocked:
            self._poll.register(write, WRITABLE)
        else:
            self._poll.unregister(write)

    async def leave(self, lane: int) -> None:
        self._flush()
        if lane in self._lanes:
            self._forget(lane)

    def _forget(self, lane: int) -> None:
        left = self._lanes.pop(lane)
        if left.blocked and lane in self._unsent and left.ends.read != left.ends.write:
            self._watch(left, False)
        self._unsent.discard(lane)
        if self._reading.pop(left.ends.read, None) is not None:
            self._poll.unregister(left.ends.read)
        left.ends.close()

    async def stall(self, lane: int) -> None:
        while lane in self._unsent:
            self._flush()
        stalled = self._lanes[lane]
        del self._reading[stalled.ends.read]
        self._poll.unregister(stalled.ends.read)

    async def pause(self, seconds: float) -> None:
        self._flush()
        time.sleep(seconds)  # noqa: ASYNC251 - raw fields block

    async def __aenter__(self) -> StreamField:
        return self

    async def __aexit__(self, *_: object) -> None:
        for lane in self._lanes.values():
            with contextlib.suppress(OSError):
                lane.ends.close()
        self._poll.close()


KEY = "bWNwLWFjdG9ycy1sb2FkIQ=="
# A client must mask; with a key of zeros the masked bytes are the bytes.
NO_MASK = b"\0\0\0\0"
FIN, CONTINUED, TEXT, CLOSE = 0x80, 0x0, 0x1, 0x8
MASKED = 0x80


class WebSocketFrames(Framing):
    """Sends one message in one frame; joins received fragments and ignores pings."""

    def __init__(self) -> None:
        self._fragments: list[bytes] = []
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 0  # bytes of the frame that is arriving, as far as is known

    def wrap(self, data: bytes) -> bytes:
        size = len(data)
        if size < 126:
            head = bytes((FIN | TEXT, MASKED | size))
        elif size < 65536:
            head = bytes((FIN | TEXT, MASKED | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((FIN | TEXT, MASKED | 127)) + size.to_bytes(8, "big")
        return head + NO_MASK + data

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        messages, start = self._cut(data)
        self._pieces = [data[start:]] if start < len(data) else []
        self._held = len(data) - start
        return messages

    def _cut(self, data: bytes) -> tuple[list[bytes], int]:
        messages: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= 2:
            first, size = data[start], data[start + 1] & 0x7F
            body = start + 2
            if size > 125:
                width = 2 if size == 126 else 8
                size = int.from_bytes(data[body : body + width], "big")
                body += width
            if body > end or body + size > end:
                self._needed = body + size - start if body <= end else 0
                if self._needed > MOST_BYTES:
                    raise LoadError(f"a message of more than {MOST_BYTES} bytes")
                break
            start = body + size
            kind = first & 0x0F
            if kind == CLOSE:
                raise LoadError(f"the server closed the WebSocket: {data[body:start]!r}")
            if kind not in (TEXT, CONTINUED):
                continue
            self._fragments.append(data[body:start])
            if first & FIN:
                messages.append(b"".join(self._fragments))
                self._fragments.clear()
        else:
            self._needed = 0
        return messages, start


def upgrade(
    connection: socket.socket, host: str, path: str, headers: Mapping[str, str] | None = None
) -> None:
    """Makes a client's handshake. Raises `LoadError` if the server does not switch protocols."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mcp\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
    connection.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            break
        answer += piece
    if not answer.startswith(b"HTTP/1.1 101"):
        raise LoadError(f"no WebSocket: {answer[:200]!r}")
