"""Server-sent events, both directions, without I/O: `encode_event` for servers, `SseDecoder` for clients.

Rules: the section "Server-sent events" of the WHATWG HTML standard, of which MCP uses all but the browser.
"""

from __future__ import annotations

import attrs

from mcp_actors.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["COMMENT", "ServerSentEvent", "SseDecoder", "encode_event", "encode_retry"]

# A line that every parser skips: keeps proxies from closing a quiet stream.
COMMENT = b":\n\n"

_BOM = b"\xef\xbb\xbf"
# More would be thirty thousand years.
_MAX_RETRY_DIGITS = 15


def encode_event(
    data: bytes, *, id: str | None = None, event: str | None = None, retry: int | None = None
) -> bytes:
    """One event: the lines ``event``, ``id``, ``retry`` (milliseconds), as far as given, then ``data``.

    ``data`` is always written, and always as one line, since some clients read line by line. Empty data make an event
    that is no message, but whose ``id`` and ``retry`` count.

    Raises `LocalProtocolError` if a value would spill into another line, or be ignored by who reads it.
    """
    if b"\n" in data or b"\r" in data:
        raise LocalProtocolError("the data of an event must be one line")
    if id is None and event is None and retry is None:
        return b"data: %b\n\n" % data
    head = ""
    if event is not None:
        head = f"event: {_one_line(event, 'name')}\n"
    if id is not None:
        head += f"id: {_one_line(id, 'id')}\n"
    if retry is not None:
        head += f"retry: {_milliseconds(retry)}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def encode_retry(retry: int) -> bytes:
    """Tells the client to wait ``retry`` milliseconds before it comes back, and nothing else: it is not an event."""
    return b"retry: %d\n\n" % _milliseconds(retry)


@attrs.frozen
class ServerSentEvent:
    """What stood between two blank lines, comments left out.

    Only if `is_message` is true is there something to hand on; the others are of interest for ``id`` and ``retry``.
    """

    data: bytes = b""
    """Its data lines, joined by newlines. Not decoded: what is no UTF-8 is for the reader of the data to refuse."""
    event: str = "message"
    """Its name; what has none is a message."""
    id: str | None = None
    """The id that it carries itself; ``None`` if none, ``""`` if it takes the one before back."""
    retry: int | None = None
    """The delay that it carries itself, in milliseconds."""

    @property
    def is_message(self) -> bool:
        """Whether it carries a message: it has data and no other name."""
        return bool(self.data) and self.event == "message"


class SseDecoder:
    """Cuts the bytes of one stream into events, wherever they were split. A new connection needs a new decoder.

    ``max_event_bytes`` bounds one line (comments too), and all lines of one event that are kept, with the names of
    their fields. Between two feeds no more than one such event and one such line are held, and the time is linear in
    what is fed.
    """

    # Of the event whose blank line is still to come.
    _data: bytes | None
    # Takes over when there is a second line of data; the first needs no copy.
    _more: bytearray | None
    _event: str
    _id: str | None
    _own_retry: int | None
    # Bytes of the lines that are kept; zero if there are none.
    _size: int

    def __init__(self, max_event_bytes: int) -> None:
        if max_event_bytes < 1:
            raise ValueError("max_event_bytes must be at least 1")
        self._limit = max_event_bytes
        # The first bytes of the stream, as long as they may still become a byte order mark; then None.
        self._start: bytes | None = b""
        # The beginning of a line whose end is still to come.
        self._partial = bytearray()
        # The last byte was CR: if LF follows, it belongs to it.
        self._after_cr = False
        self._failure: RemoteProtocolError | None = None
        self._last_event_id = ""
        self._retry: int | None = None
        self._begin()

    def __repr__(self) -> str:
        state = (
            "failed"
            if self._failure is not None
            else f"{len(self._partial) + self._size} bytes of the next event"
        )
        return f"<SseDecoder: {state}, last event id {self._last_event_id!r}>"

    @property
    def last_event_id(self) -> str:
        """The id of the last event that was complete and had one, to come back with; empty if there is none.

        It is text as the server chose it: who puts it in a header makes sure that it can stand there.
        """
        return self._last_event_id

    @property
    def retry(self) -> int | None:
        """Milliseconds to wait before coming back, as the server said last; ``None`` if it never did."""
        return self._retry

    @property
    def failure(self) -> RemoteProtocolError | None:
        """Why nothing more can be decoded; the next `feed` raises it."""
        return self._failure

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Takes the next bytes and returns the events that they complete.

        What is incomplete when the stream ends was never an event. Raises `RemoteProtocolError` when a line or an event
        is over the limit, and ever after; but events that came before it in the same bytes are returned first, and
        `failure` tells that there will be no more.
        """
        if self._failure is not None:
            raise self._failure
        if self._start is not None:
            data = self._start + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._start = data
                return []
            self._start = None
            data = data.removeprefix(_BOM)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        events: list[ServerSentEvent] = []
        try:
            self._cut(data, events)
        except RemoteProtocolError as error:
            self._failure = error
            self._partial.clear()
            self._begin()
            if not events:
                raise
        return events

    def _cut(self, data: bytes, events: list[ServerSentEvent]) -> None:
        # Of bytes, and unlike of text, this splits at LF, CR and CRLF and nowhere else.
        lines = data.splitlines()
        rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        self._after_cr = data.endswith(b"\r")
        if lines and self._partial:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial.clear()
        for line in lines:
            if line:
                self._check(len(line))
                self._take(line)
            else:
                self._dispatch(events)
        self._check(len(self._partial) + len(rest))
        self._partial += rest

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise RemoteProtocolError(f"an event of the stream is longer than {self._limit} bytes")

    def _take(self, line: bytes) -> None:
        """Takes a line that is not blank. Comments are fields without a name, so they go the way of unknown ones."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = value
            else:
                if self._more is None:
                    self._more = bytearray(self._data)
                self._more += b"\n"
                self._more += value
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" in value:
                return
            self._id = value.decode(errors="replace")
        elif name == b"retry":
            if not value.isdigit() or len(value) > _MAX_RETRY_DIGITS:
                return
            # Counts from here on, even if the event is never finished.
            self._retry = self._own_retry = int(value)
        else:
            return
        self._size += len(line)
        self._check(self._size)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        if not self._size:
            return
        if self._id is not None:
            self._last_event_id = self._id
        data = (self._data or b"") if self._more is None else bytes(self._more)
        events.append(ServerSentEvent(data, self._event or "message", self._id, self._own_retry))
        self._begin()

    def _begin(self) -> None:
        self._data = self._more = self._id = self._own_retry = None
        self._event = ""
        self._size = 0


def _one_line(value: str, what: str) -> str:
    if "\n" in value or "\r" in value or "\0" in value:
        raise LocalProtocolError(f"the {what} of an event must be one line without NUL")
    return value


def _milliseconds(retry: int) -> int:
    if retry < 0:
        raise LocalProtocolError("the retry of an event cannot be negative")
    return retry
