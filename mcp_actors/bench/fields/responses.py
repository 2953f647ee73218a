"""Responses of HTTP/1.1 as they arrive: whole JSON bodies, and the events of a stream one by one."""

from __future__ import annotations

import re
from typing import NamedTuple

from mcp_actors.bench.errors import LoadError

__all__ = ["ResponsePiece", "ResponseReader"]

# Of more digits nothing can be sent, and Python reads no number of thousands.
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18})", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nmcp-session-id: *([\x21-\x7e]+)", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\ncontent-type: *text/event-stream", re.IGNORECASE)
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,15}(?=[ \t;]|\Z)")
_MOST_HEADS = 1000
_MOST_HEAD_BYTES = 64 * 1024
_CHUNKS = -1
# Of one answer, or of an event that has no end.
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

    # Heads repeat but for the date: each is parsed once, and a day of seconds is not kept.
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
        raise LoadError(f"an answer whose end is not told: {head!r}")
    if len(known) >= _MOST_HEADS:
        known.clear()
    parsed = _Head(status, size, _EVENTS.search(head) is not None, session[1].decode() if session else "")
    known[head] = parsed
    return parsed
