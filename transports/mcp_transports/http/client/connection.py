"""One connection to a server: requests one after the other, whose responses llhttp (through httptools) reads.

httpcore2 and h11 made up two thirds of the processor time of a call. Their exceptions are still the ones that are
raised here, so that a user's HTTP client and connections of our own fail alike.

Of what a server sends, only framing matters here: bodies are not decoded. Nothing that it sends is kept beyond one read
(64 KiB), except for the head, which is bounded.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, Protocol

import httpcore2
import httptools
import trio

__all__ = ["AnySocket", "ClientConnection", "ConnectedStream", "encode_header_lines"]

# Bytes of a head, of chunk framing without a chunk, or of a trailer. h11 had the same bound.
MAX_FRAMING_BYTES = 100 * 1024
# Names of headers that are remembered as valid: the protocol's, and those that tools mirror.
KNOWN_NAMES = 256
SWITCHING_PROTOCOLS = 101

_FIELD_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
# RFC 9110 section 5.5, except that control characters other than NUL and line ends are let through, as in h11.
_FIELD_VALUE = re.compile(rb"(?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?")

AnySocket = socket.socket | trio.socket.SocketType
State = Literal["idle", "head", "body", "complete", "closed"]


class ConnectedStream(Protocol):
    """The bytes of a connection. Errors are those of httpcore2."""

    @property
    def socket(self) -> AnySocket:
        """The socket under it."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Sends all bytes. Raises `httpcore2.WriteError`."""

    async def receive(self) -> bytes:
        """Waits for bytes; ``b""`` is the end. Raises `httpcore2.ReadError`."""

    def is_readable(self) -> bool:
        """Whether there is something to read, which may be the end."""

    async def aclose(self) -> None: ...


class _Surplus(Exception):
    """Ends llhttp from inside a callback, at bytes behind the response."""


class ClientConnection:
    """A connection, on which `exchange` is called for one request, then `read` for its response, then `finish`.

    Args:
        stream: the connected bytes; they are closed with the connection.
    """

    __slots__ = (
        "_failure",
        "_framing_bytes",
        "_is_kept",
        "_parser",
        "_parts",
        "_state",
        "_was_sent",
        "headers",
        "status",
        "stream",
    )

    def __init__(self, stream: ConnectedStream) -> None:
        self.stream = stream
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """The headers of the response, with names in lower case."""
        self._parser = httptools.HttpResponseParser(self)
        # RFC 9112 section 2.2 allows it, and servers of a few lines need it.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._parts: list[bytes] = []
        self._framing_bytes = 0
        self._failure: httpcore2.RemoteProtocolError | None = None
        self._is_kept = False
        self._was_sent = False
        self._state: State = "complete"

    def __repr__(self) -> str:
        return f"<ClientConnection {self._state}>"

    @property
    def is_idle(self) -> bool:
        """Whether the connection can carry another request."""
        return self._state == "idle"

    @property
    def is_closed(self) -> bool:
        """Whether it was closed on this side."""
        return self._state == "closed"

    def has_ended(self) -> bool:
        """Whether the server has closed an idle connection, or has sent what nobody asked for."""
        return self.stream.is_readable()

    async def exchange(self, request: bytes, sent: trio.Event | None = None) -> None:
        """Sends a request and waits for the head of its response: `status` and `headers`.

        Args:
            request: the head and the body.
            sent: is set when all of the request was sent.

        Raises:
            httpcore2.ReadError: the connection broke.
            httpcore2.RemoteProtocolError: the server ended the connection, or sent something that is not HTTP/1.1.
        """
        self.status, self.headers, self._framing_bytes = 0, [], 0
        self._state, self._is_kept = "head", False
        try:
            await self.stream.send_all(request)
        except httpcore2.WriteError:
            # A server may answer a request of which it has not read all, and close the connection.
            self._was_sent = False
        else:
            self._was_sent = True
            if sent is not None:
                sent.set()
        while self._state == "head":
            await self._feed()

    async def read(self) -> bytes:
        """Waits for the next bytes of the body; ``b""`` is its end. Raises as `exchange` does."""
        while not self._parts:
            if self._state != "body":
                return b""
            await self._feed()
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Ends the exchange: the connection is idle, if the response was read to its end and it can be used again."""
        if self._state == "complete" and self._is_kept and self._was_sent:
            self._state = "idle"
        self._parts = []

    async def aclose(self) -> None:
        """Closes the connection, also when cancelled. May be called twice."""
        if self._state != "closed":
            self._state, self._parts = "closed", []
            # It refers to this object.
            del self._parser
            await self.stream.aclose()

    async def _feed(self) -> None:
        if self._failure is not None:
            raise self._failure
        data = await self.stream.receive()
        if not data:
            self._end()
            return
        parts = self._parts
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._stopped(error)
        else:
            if parts:
                self._framing_bytes = 0
            elif self._state != "complete":
                self._framing_bytes += len(data)
                if self._framing_bytes > MAX_FRAMING_BYTES:
                    raise httpcore2.RemoteProtocolError(
                        "the head of the response, or its framing, is too long"
                    )

    def _stopped(self, error: Exception) -> None:
        """Takes note of the bytes that llhttp stopped at. What came before them counts."""
        if self._state == "complete":
            self._is_kept = False
        elif isinstance(error, httptools.HttpParserCallbackError):
            # A mistake of this module, or `KeyboardInterrupt`.
            raise error.__context__ or error
        else:
            self._failure = httpcore2.RemoteProtocolError(str(error))
            if not self._parts:
                raise self._failure from error

    def _end(self) -> None:
        """Takes note of the end of the bytes, which is that of a body without a length."""
        if self._state == "head":
            raise httpcore2.RemoteProtocolError("Server disconnected without sending a response.")
        framing = {name: value for name, value in self.headers if name in _FRAMING}
        if b"content-length" in framing or framing.get(b"transfer-encoding", b"").lower().endswith(
            b"chunked"
        ):
            raise httpcore2.RemoteProtocolError("the connection ended in the middle of the body")
        self._state = "complete"

    # -- called by llhttp ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begins a response, or another one after an interim response."""
        if self._state != "head":
            raise _Surplus
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header line, or drops one of a trailer, as RFC 9110 section 6.5.1 allows."""
        if self._state == "head":
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Ends the head, unless it is that of an interim response (RFC 9110 section 15.2)."""
        status = self._parser.get_status_code()
        if status >= 200 or status == SWITCHING_PROTOCOLS:
            self.status, self._state = status, "body"

    def on_body(self, data: bytes) -> None:
        """Takes a part of the body, without framing."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Ends a response, at its last byte."""
        if self._state == "body":
            self._state = "complete"
            self._is_kept = self.status != SWITCHING_PROTOCOLS and self._parser.should_keep_alive()


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@lru_cache(KNOWN_NAMES)
def _line_start(name: bytes) -> bytes:
    if not _FIELD_NAME.fullmatch(name):
        raise httpcore2.LocalProtocolError(f"Illegal header name {name!r}")
    return name + b": "


def encode_header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the lines of headers.

    Raises:
        httpcore2.LocalProtocolError: a name or a value cannot be sent, because it would end its line, for example.
    """
    lines = []
    for name, value in headers:
        if not _FIELD_VALUE.fullmatch(value):
            # The value may be a secret.
            raise httpcore2.LocalProtocolError(f"Illegal value of the header {name!r}")
        lines.append(_line_start(name) + value)
    return b"\r\n".join(lines) + b"\r\n" if lines else b""
