"""The answer to one request, and how answers are written."""

from __future__ import annotations

import http
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Literal, Protocol

import trio

from mcp_actors.errors import LocalProtocolError
from mcp_transports.http.h1.request import Request

__all__ = ["Response"]

Headers = Iterable[tuple[str, str]]

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 9110 §5.5: visible characters, blanks and obs-text; no CR, LF, NUL or other control character.
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# What this module decides: a second one from outside would make the answer mean two things.
_OURS = frozenset(("connection", "content-length", "content-type", "date", "transfer-encoding"))


def _header_line(name: str, value: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a header name: {name!r}")
    if name.lower() in _OURS:
        raise ValueError(f"the header {name} is written by the server itself")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"not a value for the header {name}: {value!r}")
    return f"{name}: {value}\r\n".encode("latin-1")


@lru_cache(maxsize=64)
def _type_line(content_type: str | None) -> bytes:
    if content_type is None:
        return b""
    if not content_type or not _VALUE.fullmatch(content_type):
        raise ValueError(f"not a content type: {content_type!r}")
    return f"content-type: {content_type}\r\n".encode("latin-1")


# Goes on with a connection after an upgrade.
Successor = Callable[[trio.abc.Stream], Awaitable[None]]


class Shared(Protocol):
    """What the connections of a server share, as far as an answer is concerned."""

    heads: dict[int, bytes]
    """By status: its line and the date, which change once a second. Filled here, emptied by the owner."""
    date_line: bytes
    stopping: bool


class Channel(Protocol):
    """What a response needs of its connection."""

    gone: bool

    @property
    def full(self) -> bool: ...
    def send(self, data: bytes) -> None: ...
    def send_piece(self, data: bytes) -> None: ...
    def completed(self) -> None: ...
    def lost(self) -> None: ...
    def upgrade(self, successor: Successor) -> bool: ...
    async def drained(self) -> None: ...
    def run(self, response: Response, fn: Callable[[], Awaitable[None]]) -> None: ...


class Response:
    """One per request: either `answer`, or `start`, any number of `write`, `end`.

    All but `drained` return at once, from any task. When the peer is `gone`, `answer`, `start` and `end` do nothing and
    `write` raises `trio.BrokenResourceError`. Using it after it ended raises `LocalProtocolError`; a status, a
    content type or a header that must not be sent raises `ValueError`, and nothing is sent.
    """

    __slots__ = ("_chunked", "_closes", "_head_only", "_http10", "_shared", "_state", "_wire", "on_gone")

    def __init__(self, wire: Channel, shared: Shared, request: Request) -> None:
        self._wire = wire
        self._shared = shared
        self._state: Literal["new", "streaming", "ended"] = "new"
        self._closes = not request.keep_alive
        self._http10 = request.version == "1.0"
        self._head_only = request.method == "HEAD"
        self._chunked = False
        self.on_gone: Callable[[], None] | None = None
        """Called once, synchronously, when the peer leaves or the connection breaks before the answer was complete.
        Must not raise or wait. That happens inside `write` too, when it is the write that finds out."""

    def __repr__(self) -> str:
        return f"<Response {self._state}{' gone' if self.gone else ''}>"

    @property
    def gone(self) -> bool:
        """Nothing can be sent any more: the peer left, or the connection is closed."""
        return self._wire.gone

    @property
    def started(self) -> bool:
        """Whether a status was sent already."""
        return self._state != "new"

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, as far as we are concerned."""
        return self._state == "ended"

    @property
    def full(self) -> bool:
        """More is unsent than ``HttpLimits.write_buffer``: wait for `drained` before writing on."""
        return self._wire.full

    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        """Sends a whole answer with its ``Content-Length``; for HEAD, all but the body."""
        if self._state != "new":
            raise LocalProtocolError("this request was answered already")
        head = self._shared.heads.get(status) or self._head(status)
        extra = _type_line(content_type)
        for name, value in headers:
            extra += _header_line(name, value)
        self._state = "ended"
        wire = self._wire
        if wire.gone:
            return
        if self._closes or self._http10 or self._shared.stopping:
            extra += self._connection_line()
        if status == 204 or status == 304:
            # RFC 9110 §6.4.1: these never have a body, and 204 no length.
            data = b"%b%b\r\n" % (head, extra)
        else:
            content = b"" if self._head_only else body
            data = b"%b%bcontent-length: %d\r\n\r\n%b" % (head, extra, len(body), content)
        wire.send(data)
        wire.completed()

    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        """Opens a stream: chunked, or until the connection closes for HTTP/1.0. ``first`` goes out with the head."""
        if self._state != "new":
            raise LocalProtocolError("this request was answered already")
        parts = [self._shared.heads.get(status) or self._head(status), _type_line(content_type)]
        if status in (204, 304):
            raise ValueError(f"an answer with the status {status} has no body to stream")
        parts += [_header_line(name, value) for name, value in headers]
        self._state = "streaming"
        if self._wire.gone:
            return
        if self._http10:
            self._closes = True
        else:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts += (self._connection_line(), b"\r\n")
        if first:
            parts.append(self._framed(first))
        self._wire.send(b"".join(parts))

    def write(self, data: bytes) -> None:
        """Sends a piece of the stream, or buffers what the peer does not take yet. Never waits.

        Raises `trio.BrokenResourceError` when the peer is gone, and drops it when more than
        ``HttpLimits.max_buffered`` bytes would wait for it.
        """
        self._must_stream()
        if self._wire.gone:
            raise trio.BrokenResourceError("the peer is gone")
        if data and not self._head_only:
            self._wire.send_piece(self._framed(data))
            if self._wire.gone:
                raise trio.BrokenResourceError("the peer is gone")

    async def drained(self) -> None:
        """Waits until less than ``HttpLimits.write_buffer`` is unsent. Always a checkpoint.

        Raises `trio.BrokenResourceError` when the peer is gone or took nothing for ``HttpLimits.write_timeout``.
        Cancelling it loses nothing.
        """
        await self._wire.drained()

    def end(self, last: bytes = b"") -> None:
        """Ends the stream; ``last`` is a last piece that saves a write of its own. The connection serves on."""
        self._must_stream()
        self._state = "ended"
        if self._wire.gone:
            return
        piece = self._framed(last) if last and not self._head_only else b""
        if self._chunked and not self._head_only:
            piece += b"0\r\n\r\n"
        if piece:
            self._wire.send(piece)
        self._wire.completed()

    def abort(self) -> None:
        """Closes the connection now, whatever is unsent: so a client knows that a stream was cut off.

        Does nothing when the answer is complete. ``on_gone`` is called as for any other loss.
        """
        if self._state != "ended":
            self._state = "ended"
            self._wire.lost()

    def upgrade(self, successor: Successor) -> bool:
        """Hands the connection over to another protocol (RFC 9110 §7.8): ``successor(stream)`` answers the request too.

        It runs to its end and raises nothing; then the stream is closed. It is for itself to be bounded in time, and to
        end when the server stops. False, with nothing done, when the peer has sent more than this request, is owed
        earlier answers, or is gone.
        """
        if self._state != "new":
            raise LocalProtocolError("this request was answered already")
        if not self._wire.upgrade(successor):
            return False
        self._state = "ended"
        return True

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in a task of this connection, which is cancelled when the peer goes away or the server stops.

        It may outlive the answer. An exception is logged and answered with 500, or with a cut-off stream.
        """
        if not self._wire.gone:
            self._wire.run(self, fn)

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this answer."""
        return self._closes

    def fail(self) -> None:
        """What a mistake of the application makes of an answer: 500 and close, or a cut-off stream."""
        if self._state == "new":
            self._closes = True
            self.answer(500, b"Internal Server Error", content_type="text/plain")
        elif self._state == "streaming":
            self.abort()

    def refuse(self, status: int, reason: str, headers: Headers = ()) -> None:
        """Answers what was no request, and closes."""
        self._closes = True
        text = f"{status} {http.HTTPStatus(status).phrase}: {reason}\n"
        self.answer(status, text.encode(), content_type="text/plain", headers=headers)

    def _head(self, status: int) -> bytes:
        line = _STATUS_LINES.get(status)
        if line is None or status < 200:
            raise ValueError(f"not the status of an answer: {status}")
        self._shared.heads[status] = head = line + self._shared.date_line
        return head

    def _must_stream(self) -> None:
        if self._state != "streaming":
            raise LocalProtocolError(f"no stream is open: the answer is {self._state}")

    def _framed(self, data: bytes) -> bytes:
        if self._head_only:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _connection_line(self) -> bytes:
        if self._closes or self._shared.stopping:
            self._closes = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self._http10 else b""
