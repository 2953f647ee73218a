"""Streamable HTTP: a lane is a client with keep-alive connections of its own, one request outstanding on each."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mcp_actors.cli.bench.field import Arrival, Field
from mcp_actors.cli.bench.plan import LEGACY_VERSION, Era, LoadError, Message
from mcp_actors.cli.bench.streams import READ_BYTES, READABLE, WRITABLE, LoadPoll, wait_for

__all__ = ["HttpField", "ResponsePiece", "ResponseReader"]


class _KeepAliveConnection:
    __slots__ = ("again", "asked", "blocked", "lane", "out", "reader", "socket", "stream", "used")

    def __init__(self, lane: _HttpLane, connection: socket.socket) -> None:
        self.lane = lane
        self.socket = connection
        self.reader = ResponseReader()
        self.asked: int | None = None
        self.out = b""
        self.blocked = False
        self.stream = False
        # A server may close what is idle while a request is on its way: it is sent again, once, on a new connection.
        self.used = False
        self.again = b""


class _HttpLane:
    __slots__ = ("busy", "free", "number", "session", "unsettled")

    def __init__(self, number: int) -> None:
        self.number = number
        self.session = ""
        self.unsettled = 0
        self.free: list[_KeepAliveConnection] = []
        self.busy: dict[int, _KeepAliveConnection] = {}


class HttpField(Field):
    """Lanes over Streamable HTTP.

    ``opener`` opens a connection to the server; ``host``, ``path`` and ``headers`` are those of its requests.
    """

    def __init__(
        self,
        era: Era,
        opener: Callable[[], socket.socket],
        host: str,
        path: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(era)
        self._opener = opener
        self._host = host
        self._path = path
        self._headers = dict(headers or {})
        self._poll = LoadPoll()
        self._lanes: dict[int, _HttpLane] = {}
        self._open: dict[int, _KeepAliveConnection] = {}
        self._unsent: list[_KeepAliveConnection] = []
        # Connections outlive their lanes: sessions need none of their own.
        self._spare: list[_KeepAliveConnection] = []
        self._heads: dict[tuple[str, str, str], bytes] = {}
        self._numbers = 0

    async def connect(self) -> int:
        self._numbers += 1
        self._lanes[self._numbers] = _HttpLane(self._numbers)
        return self._numbers

    def post(self, lane: int, message: Message) -> None:
        here = self._lanes[lane]
        key = (message.method, message.name, here.session)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 20_000:
                self._heads.clear()
            head = self._heads[key] = self._head(
                here, "POST", message.headers(self.era, self.version), length=True
            )
        connection = self._take(here)
        connection.asked = message.id
        if message.id is not None:
            here.busy[message.id] = connection
        connection.out = b"%s%d\r\n\r\n%s" % (head, len(message.data), message.data)
        connection.again = connection.out if connection.used and self.troubles is not None else b""
        here.unsettled += 1
        self._unsent.append(connection)

    async def begin(self) -> int:
        """Waits for all answers of the handshake, since requests on other connections must not overtake it."""
        lane = await super().begin()
        self._settle_all(self._lanes[lane])
        return lane

    def _settle_all(self, lane: _HttpLane) -> None:
        while lane.unsettled and not self.troubles:
            self._turn(None, [])

    def _head(self, lane: _HttpLane, verb: str, headers: dict[str, str], *, length: bool) -> bytes:
        """Returns the head of a request; one with a ``length`` breaks off where the number belongs."""
        lines = {"host": self._host, "accept": "application/json, text/event-stream"} | headers
        lines |= self._headers
        if lane.session:
            lines["mcp-session-id"] = lane.session
        if length:
            lines["content-type"] = "application/json"
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        end = "content-length: " if length else "\r\n"
        return f"{verb} {self._path} HTTP/1.1\r\n{text}{end}".encode()

    def _take(self, lane: _HttpLane) -> _KeepAliveConnection:
        if lane.free:
            return lane.free.pop()
        if self._spare:
            connection = self._spare.pop()
            connection.lane = lane
            return connection
        connection = _KeepAliveConnection(lane, self._opener())
        self._watch(connection)
        return connection

    def _watch(self, connection: _KeepAliveConnection) -> None:
        self._open[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, READABLE)

    def _flush(self) -> None:
        waiting = []
        for connection in self._unsent:
            try:
                sent = connection.socket.send(connection.out)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lost(connection, f"a connection broke: {error}")
                continue
            connection.out = connection.out[sent:]
            if connection.out:
                waiting.append(connection)
            if connection.blocked != bool(connection.out):
                connection.blocked = bool(connection.out)
                wanted = READABLE | WRITABLE if connection.blocked else READABLE
                self._poll.modify(connection.socket, wanted)
        self._unsent = waiting

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        found: list[Arrival] = []
        while not found:
            ready = self._turn(until, found)
            if self.troubles:
                break
            if not ready and until is not None and time.perf_counter() >= until:
                break
        return found

    def _turn(self, until: float | None, found: list[Arrival]) -> bool:
        """Sends and reads as much as possible; returns whether anything happened."""
        self._flush()
        if self.troubles:
            return True
        ready = wait_for(self._poll, until, self.patience)
        for descriptor, event in ready:
            connection = self._open.get(descriptor)
            if connection is not None and event != WRITABLE:
                self._read(connection, found)
        return bool(ready)

    def _read(self, connection: _KeepAliveConnection, found: list[Arrival]) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, f"a connection broke: {error}")
            return
        lane = connection.lane
        if not data:
            self._lost(connection, "the server closed a connection in the middle of an answer")
            return
        try:
            response = connection.reader.feed(data)
        except LoadError as error:
            connection.again = b""
            self._lost(connection, str(error))
            return
        connection.again = b""
        if response.session and not lane.session:
            lane.session = response.session
        if response.messages:
            found.extend([(lane.number, message) for message in response.messages])
        if response.complete:
            self._settle(connection, response)

    def _lost(self, connection: _KeepAliveConnection, text: str) -> None:
        """Drops a connection; its request gets another one if the server cannot have seen it."""
        lane, again, asked = connection.lane, connection.again, connection.asked
        idle = not (asked is not None or connection.stream or again)
        self._drop(connection)
        if idle:
            if connection in lane.free:
                lane.free.remove(connection)
            if connection in self._spare:
                self._spare.remove(connection)
            return
        if again:
            try:
                other = _KeepAliveConnection(lane, self._opener())
            except LoadError as error:
                text = str(error)
            else:
                self._watch(other)
                other.asked, other.out = asked, again
                if asked is not None:
                    lane.busy[asked] = other
                self._unsent.append(other)
                return
        lane.unsettled -= 1
        if asked is not None:
            lane.busy.pop(asked, None)
            self.fail(lane.number, asked, "connection lost", text)
        elif self.troubles is None:
            raise LoadError(text)

    def _settle(self, connection: _KeepAliveConnection, response: ResponsePiece) -> None:
        lane = connection.lane
        if response.status >= 400:
            text = f"{response.status} {b' '.join(response.messages)[:300]!r}"
            asked = connection.asked
            self.fail(lane.number, -1 if asked is None else asked, f"http {response.status}", text)
        elif connection.asked is not None and not response.messages:
            self._unanswered(connection, lane)
        connection.used = True
        if not connection.stream:
            lane.unsettled -= 1
        if connection.asked is not None:
            lane.busy.pop(connection.asked, None)
            connection.asked = None
        connection.stream = False
        lane.free.append(connection)

    def _unanswered(self, connection: _KeepAliveConnection, lane: _HttpLane) -> None:
        """The end of a response without its message: whether the answer came before is known elsewhere."""
        if self.troubles is not None:
            text = "the response ended without an answer"
            self.fail(lane.number, connection.asked, "no answer", text)

    def _drop(self, connection: _KeepAliveConnection) -> None:
        descriptor = connection.socket.fileno()
        if self._open.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
        connection.socket.close()
        connection.again = b""

    def cancel(self, lane: int, id: int) -> None:
        """Closes the connection of the request in the modern era, which cancels it."""
        if self.era == "legacy":
            super().cancel(lane, id)
            return
        connection = self._lanes[lane].busy.pop(id, None)
        if connection is not None:
            self._drop(connection)

    def is_quiet(self, lane: int) -> bool:
        return not self._lanes[lane].unsettled

    async def drop(self, lane: int) -> None:
        if lane in self._lanes:
            self.rest(lane)

    def abandon(self, lane: int, id: int) -> None:
        """Closes the connection that still waits for the answer."""
        connection = self._lanes[lane].busy.pop(id, None) if lane in self._lanes else None
        if connection is not None:
            self._drop(connection)

    async def attend(self, lane: int) -> None:
        """Opens the GET stream of a session, on which messages arrive that answer no request."""
        if self.era == "modern":
            return
        here = self._lanes[lane]
        connection = self._take(here)
        connection.stream = True
        headers = {"accept": "text/event-stream", "mcp-protocol-version": LEGACY_VERSION}
        connection.out = self._head(here, "GET", headers, length=False)
        self._unsent.append(connection)

    async def leave(self, lane: int) -> None:
        """Ends the session by DELETE where there is one."""
        left = self._lanes[lane]
        for busy in tuple(left.busy.values()):
            self._drop(busy)
        left.unsettled = 0
        if left.session:
            connection = self._take(left)
            headers = {"mcp-protocol-version": LEGACY_VERSION}
            connection.out = self._head(left, "DELETE", headers, length=False)
            left.unsettled = 1
            self._unsent.append(connection)
            self._settle_all(left)
        self._spare += left.free
        del self._lanes[lane]

    def rest(self, lane: int) -> None:
        """Releases the connections; the session continues at the server."""
        here = self._lanes[lane]
        self._spare += here.free
        here.free = []

    async def stall(self, lane: int) -> None:
        while self._unsent:
            self._flush()
        for connection in self._lanes[lane].busy.values():
            descriptor = connection.socket.fileno()
            self._poll.unregister(descriptor)
            del self._open[descriptor]

    async def pause(self, seconds: float) -> None:
        self._flush()
        time.sleep(seconds)  # noqa: ASYNC251 - raw fields block

    async def __aenter__(self) -> HttpField:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._open.values():
            with contextlib.suppress(OSError):
                os.close(connection.socket.detach())
        self._poll.close()


# -- Responses as they arrive: whole JSON bodies, and the events of a stream one by one ----------------

# A body of more digits is impossible, and Python refuses to read numbers of thousands of digits.
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18})", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nmcp-session-id: *([\x21-\x7e]+)", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\ncontent-type: *text/event-stream", re.IGNORECASE)
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,15}(?=[ \t;]|\Z)")
_MOST_HEADS = 1000
_MOST_HEAD_BYTES = 64 * 1024
_CHUNKS = -1
# Bytes of one answer, or of an event that does not end.
MOST_BYTES = 64 * 2**20


class ResponsePiece(NamedTuple):
    """The messages in a piece of a response, and whether it was the last piece."""

    messages: list[bytes]
    complete: bool = False
    status: int = 200
    session: str = ""


class _Head(NamedTuple):
    status: int
    length: int
    events: bool
    session: str


_NOTHING = ResponsePiece([])


class ResponseReader:
    """Reads the responses of one connection, of one request at a time."""

    # Heads repeat except for the date: each is parsed once, and only the latest are kept.
    _heads: dict[bytes, _Head] = {}

    def __init__(self) -> None:
        self._head: _Head | None = None
        self._rest: list[bytes] = []
        self._size = 0
        self._needed = 0  # bytes of the chunk that is arriving
        self._text: list[bytes] = []  # of the body or event that is arriving
        self._text_size = 0

    def feed(self, data: bytes) -> ResponsePiece:
        if self._head is None:
            if self._rest:
                data = b"".join([*self._rest, data])
                self._rest.clear()
            end = data.find(b"\r\n\r\n") + 4
            if end == 3:
                if len(data) > _MOST_HEAD_BYTES:
                    raise LoadError(f"the head of an answer has more than {_MOST_HEAD_BYTES} bytes")
                self._rest = [data]
                return _NOTHING
            self._head = self._heads.get(data[:end]) or _parse(data[:end], self._heads)
            data = data[end:]
            self._size = 0
        if self._head.length == _CHUNKS:
            return self._chunks(data)
        self._rest.append(data)
        self._size += len(data)
        if self._size < self._head.length:
            if self._head.length > MOST_BYTES:
                raise LoadError(f"an answer of more than {MOST_BYTES} bytes")
            return _NOTHING
        if self._size > self._head.length:
            raise LoadError(f"more than one answer: {data[:300]!r}")
        body = data if len(self._rest) == 1 else b"".join(self._rest)
        return self._end(_data_lines(body) if self._head.events else [body])

    def _chunks(self, data: bytes) -> ResponsePiece:
        self._rest.append(data)
        self._size += len(data)
        if self._size > MOST_BYTES:
            raise LoadError(f"an answer of more than {MOST_BYTES} bytes")
        if self._size < self._needed:
            return _NOTHING
        data = b"".join(self._rest)
        self._rest, self._needed = [], 0
        start, last = 0, False
        while not last and (line := data.find(b"\r\n", start)) >= 0:
            size = _chunk_size(data[start:line])
            if len(data) < line + 4 + size:
                self._needed = line + 4 + size - start
                break
            last = not size
            if size:
                self._text.append(data[line + 2 : line + 2 + size])
                self._text_size += size
            start = line + 4 + size
        self._size = len(data) - start
        if self._text_size > MOST_BYTES or self._needed > MOST_BYTES:
            raise LoadError(f"an answer of more than {MOST_BYTES} bytes")
        assert self._head is not None
        messages = self._events(last) if self._head.events else []
        if last:
            body = b"".join(self._text)
            self._text, self._text_size = [], 0
            return self._end(messages if self._head.events else [body])
        self._rest = [data[start:]]
        return ResponsePiece(messages, False, self._head.status, self._head.session)

    def _events(self, last: bool) -> list[bytes]:
        if not self._text or not (last or self._text[-1].endswith((b"\n\n", b"\r\n\r\n"))):
            return []
        text = b"".join(self._text)
        self._text, self._text_size = [], 0
        return _data_lines(text)

    def _end(self, messages: list[bytes]) -> ResponsePiece:
        assert self._head is not None
        response = ResponsePiece(
            [each for each in messages if each], True, self._head.status, self._head.session
        )
        self._head = None
        self._rest = []
        return response


def _chunk_size(line: bytes) -> int:
    found = _CHUNK.match(line)
    if found is None:
        raise LoadError(f"no size of a chunk: {line[:100]!r}")
    return int(found[0], 16)


def _data_lines(text: bytes) -> list[bytes]:
    lines = [line[5:].strip(b" \r") for line in text.split(b"\n") if line.startswith(b"data:")]
    return [line for line in lines if line]


def _parse(head: bytes, known: dict[bytes, _Head]) -> _Head:
    try:
        status = int(head[9:12])
    except ValueError:
        raise LoadError(f"not HTTP: {head[:200]!r}") from None
    length, session = _LENGTH.search(head), _SESSION.search(head)
    if length is not None:
        size = int(length[1])
    elif _CHUNKED.search(head):
        size = _CHUNKS
    elif status in (202, 204):
        size = 0
    else:
        raise LoadError(f"an answer without a length: {head!r}")
    if len(known) >= _MOST_HEADS:
        known.clear()
    parsed = _Head(status, size, _EVENTS.search(head) is not None, session[1].decode() if session else "")
    known[head] = parsed
    return parsed
