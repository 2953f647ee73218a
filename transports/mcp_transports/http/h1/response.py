"""The answer to one request, whichever server sends it, and what every answer has in common.

`Response` is the interface that applications see. A connection of this server has an implementation of its own
(`mcp_transports.http.h1.connection.ConnectionResponse`), and so has every other server that gets its requests to the
same applications.
"""

from __future__ import annotations

import http
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

import trio

from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HTTP_RESPONSE

__all__ = [
    "BAD_REQUEST_CODE",
    "HEADERS_OF_EVERY_RESPONSE",
    "NO_ROOM_AFTER",
    "Headers",
    "Response",
    "ResponseStateError",
    "Successor",
    "check_header",
    "error_body",
    "header_line",
    "status_head",
    "type_line",
]

Headers = Iterable[tuple[str, str]]

Successor = Callable[[trio.abc.Stream], Awaitable[None]]
"""Another protocol, which goes on with a connection after an upgrade."""

HEADERS_OF_EVERY_RESPONSE: list[tuple[bytes, bytes]] = []
"""Headers, with names in lower case, of every answer: of a listener, of an ASGI application, and of a listener that
turns a connection away. Empty by default."""

# The convention of the protocol's official servers, where the protocol names no code of its own.
BAD_REQUEST_CODE = -32000
# RFC 9110 section 10.2.3, in seconds. The server stops or is full, so the same request may succeed a moment later.
NO_ROOM_AFTER = "1"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 9110 section 5.5: visible characters, blanks and obs-text; no CR, LF, NUL or other control character.
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# Headers that the server writes: a second one from the application would make the answer ambiguous.
_RESERVED = frozenset(("connection", "content-length", "content-type", "date", "transfer-encoding"))


def status_head(status: int) -> bytes:
    """Returns the status line, and the headers of every response.

    Raises:
        ValueError: An answer cannot have this status.
    """
    line = _STATUS_LINES.get(status)
    if line is None or status < 200:
        raise ValueError(f"not the status of an answer: {status}")
    return line + b"".join(b"%b: %b\r\n" % each for each in HEADERS_OF_EVERY_RESPONSE)


def check_header(name: str, value: str) -> None:
    """Raises `ValueError` for a header that an application must not send."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a header name: {name!r}")
    if name.lower() in _RESERVED:
        raise ValueError(f"the header {name} is written by the server itself")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"not a value for the header {name}: {value!r}")


def header_line(name: str, value: str) -> bytes:
    """Returns a header as a line; raises as `check_header` does."""
    check_header(name, value)
    return f"{name}: {value}\r\n".encode("latin-1")


@lru_cache(maxsize=64)
def type_line(content_type: str | None) -> bytes:
    """Returns the line of the content type, if there is one; raises `ValueError` for a malformed one."""
    if content_type is None:
        return b""
    if not content_type or not _VALUE.fullmatch(content_type):
        raise ValueError(f"not a content type: {content_type!r}")
    return f"content-type: {content_type}\r\n".encode("latin-1")


def error_body(message: str, code: int = BAD_REQUEST_CODE, data: Any = None) -> bytes:
    """Returns a JSON-RPC error without an id, for a request that was not decoded."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return json.dumps({"jsonrpc": "2.0", "error": error}, separators=(",", ":")).encode()


class ResponseStateError(RuntimeError):
    """A method of a `Response` was called that its state does not allow, such as a second answer."""


class Response(ABC):
    """The answer to one request: either `answer`, or `start`, any number of `write`, and `end`.

    All methods but `drained` return at once and may be called from any task. When the peer is `gone`, `answer`, `start`
    and `end` do nothing, and `write` raises.

    Raises:
        ResponseStateError: A method was called that the state does not allow, such as a second answer.
        ValueError: A status, a content type or a header must not be sent. Nothing was sent then.
    """

    __slots__ = ("_closes", "_state", "on_gone")

    _state: Literal["new", "streaming", "ended"]
    _closes: bool
    on_gone: Callable[[], None] | None
    """Called once, synchronously, when the peer leaves or the connection breaks before the answer was complete. Must
    not raise or wait. It is called inside `write` when the write finds out."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state}{' gone' if self.gone else ''}>"

    @property
    @abstractmethod
    def gone(self) -> bool:
        """Whether nothing can be sent any more: the peer left, or the connection is closed."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether more than ``HttpLimits.write_buffer`` is unsent: await `drained` before writing on."""

    @property
    def started(self) -> bool:
        """Whether a status was sent already."""
        return self._state != "new"

    @property
    def ended(self) -> bool:
        """Whether the answer was given completely; some of it may not be sent yet."""
        return self._state == "ended"

    def close_after(self) -> None:
        """Makes the connection end behind this answer, which was not begun yet."""
        self._closes = True

    @abstractmethod
    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        """Sends a whole answer with its ``Content-Length``; for HEAD, everything but the body.

        Raises:
            ResponseStateError: The request was answered already.
            ValueError: The status, the content type or a header must not be sent.
        """

    @abstractmethod
    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        """Begins a streamed answer: chunked, or for HTTP/1.0 ended by the end of the connection.

        Args:
            status: One that has a body.
            content_type: Of the body.
            headers: Further headers.
            first: A piece of the body that is sent together with the head.

        Raises:
            ResponseStateError: The request was answered already.
            ValueError: The status, the content type or a header must not be sent.
        """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Sends a piece of a streamed answer, or buffers what the peer does not take yet. Never waits.

        Raises:
            trio.BrokenResourceError: The peer is gone, or was dropped because more than ``HttpLimits.max_buffered``
                bytes would wait for it.
            ResponseStateError: No stream is open.
        """

    @abstractmethod
    async def drained(self) -> None:
        """Waits until no more than ``HttpLimits.write_buffer`` is unsent. Always a checkpoint.

        Cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The peer is gone, or took nothing for ``HttpLimits.write_timeout``.
        """

    @abstractmethod
    def end(self, last: bytes = b"") -> None:
        """Ends a streamed answer; the connection may be used again.

        Args:
            last: A last piece of the body, which is sent together with the end.

        Raises:
            ResponseStateError: No stream is open.
        """

    @abstractmethod
    def abort(self) -> None:
        """Closes the connection now, whatever is unsent, so that a client knows that a stream was cut off.

        Does nothing when the answer is complete. ``on_gone`` is called as for any other loss.
        """

    @abstractmethod
    def upgrade(self, successor: Successor) -> bool:
        """Hands the connection over to another protocol (RFC 9110 section 7.8), which answers the request too.

        Args:
            successor: Awaited with the stream, in the connection's task. It has to close the stream, to bound its own
                time, and to end when the server stops.

        Returns:
            False, with nothing done, when the peer has sent more than this request, when earlier answers are not sent
            yet, when the request closes the connection, when the peer is gone, or when the server cannot do it.

        Raises:
            ResponseStateError: The request was answered already.
        """

    @abstractmethod
    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in a task of this connection, which is cancelled when the peer leaves or the server is cancelled.

        The task may outlive the answer. What it raises is logged and answered with 500, or with a stream that is cut
        off. Does nothing when the peer is gone.
        """

    def refuse(self, status: int, reason: str, headers: Headers = ()) -> None:
        """Answers a malformed request, or one that there is no room for (503), and closes the connection."""
        self._closes = True
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            # As the application answers when it is full, since the client's request was good.
            later = ("retry-after", NO_ROOM_AFTER)
            self.answer(
                status, error_body(reason), content_type="application/json", headers=(later, *headers)
            )
            return
        text = f"{status} {http.HTTPStatus(status).phrase}: {reason}\n"
        self.answer(status, text.encode(), content_type="text/plain", headers=headers)

    def fail(self) -> None:
        """Ends an answer after a mistake of the application: with 500, or with a stream that is cut off."""
        if self._state == "new":
            self._closes = True
            self.answer(500, b"Internal Server Error", content_type="text/plain")
        elif self._state == "streaming":
            self.abort()

    def peer_left(self, peer: str) -> None:
        """Calls ``on_gone``, and logs any error of it."""
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            with Containment(HTTP_RESPONSE, None, {"peer": peer}):
                on_gone()

    def app_raised(self, error: BaseException, peer: str) -> None:
        """Logs an error that the application raised instead of answering, and ends the answer."""
        with Containment(HTTP_RESPONSE, lambda _: self.fail(), {"peer": peer}):
            try:
                raise error
            finally:
                # Its traceback has this frame: the request would wait for the garbage collector.
                del error

    async def _run(self, fn: Callable[[], Awaitable[None]]) -> None:
        try:
            await fn()
        except (trio.BrokenResourceError, BaseExceptionGroup) as error:
            if not self.gone or not _is_disconnect(error):
                raise
            log.debug("a peer left before it was answered", reason=str(error))

    def _must_be_new(self) -> None:
        if self._state != "new":
            raise ResponseStateError("this request was answered already")

    def _must_stream(self) -> None:
        if self._state != "streaming":
            raise ResponseStateError(f"no stream is open: the answer is {self._state}")


def _is_disconnect(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_disconnect(each) for each in error.exceptions)
    return isinstance(error, trio.BrokenResourceError)
