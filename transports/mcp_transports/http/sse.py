"""Server-sent events in both directions, without I/O: `encode_event` for servers, `SseDecoder` for clients.

The rules are those of the WHATWG HTML standard, Server-sent events.
"""

from __future__ import annotations

import attrs

from mcp_actors.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["COMMENT", "ServerSentEvent", "SseDecoder", "encode_event", "encode_retry"]

# A comment, which every parser skips: it keeps proxies from closing a quiet stream.
COMMENT = b":\n\n"

_BOM = b"\xef\xbb\xbf"
# Longer numbers of milliseconds are ignored: they would be more than thirty thousand years.
_MAX_RETRY_DIGITS = 15


def encode_event(
    data: bytes, *, id: str | None = None, event: str | None = None, retry: int | None = None
) -> bytes:
    """Returns one event, encoded.

    Args:
        data: Always written, and always as one line, because some clients read line by line. An event with empty data
            is no message, but its ``id`` and ``retry`` count.
        id: The id that a client can resume from.
        event: The name of the event.
        retry: Milliseconds that a client waits before it connects again.

    Raises:
        LocalProtocolError: A value would continue in another line, or be ignored by its reader.
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
    """Returns the line that makes a client wait ``retry`` milliseconds before it connects again. It is not an event.

    Raises:
        LocalProtocolError: ``retry`` is negative.
    """
    return b"retry: %d\n\n" % _milliseconds(retry)


@attrs.frozen
class ServerSentEvent:
    """One event of a stream: the fields between two blank lines.

    An event whose `is_message` is false carries no message; only its ``id`` and ``retry`` matter.
    """

    data: bytes = b""
    """Its data lines, joined by newlines. They are not decoded, and may be invalid UTF-8."""
    event: str = "message"
    """Its name; an event without one is a message."""
    id: str | None = None
    """The id in this event; ``None`` without one, ``""`` if it withdraws the one before."""
    retry: int | None = None
    """The delay in this event, in milliseconds."""

    @property
    def is_message(self) -> bool:
        """Whether it carries a message: it has data and no other name."""
        return bool(self.data) and self.event == "message"


class SseDecoder:
    """Cuts the bytes of one stream into events, wherever they were split. A new connection needs a new decoder.

    Between two feeds no more than one event and one line are held. The time is linear in the number of bytes.

    Args:
        max_event_bytes: Bounds one line, comments included, and all lines of one event that are kept, together with the
            names of their fields.

    Raises:
        ValueError: ``max_event_bytes`` is less than 1.
    """

    def __init__(self, max_event_bytes: int) -> None:
        if max_event_bytes < 1:
            raise ValueError("max_event_bytes must be at least 1")
        self._limit = max_event_bytes
        # The first bytes of the stream, while they may still become a byte order mark; then None.
        self._start: bytes | None = b""
        # The beginning of a line whose end is still to come.
        self._partial = bytearray()
        # The last byte was CR: if LF follows, it belongs to it.
        self._after_cr = False
        self._failure: RemoteProtocolError | None = None
        self._last_event_id = ""
        self._retry: int | None = None
        self._unfinished = _UnfinishedEvent()

    def __repr__(self) -> str:
        state = (
            "failed"
            if self._failure is not None
            else f"{len(self._partial) + self._unfinished.size} bytes of the next event"
        )
        return f"<SseDecoder: {state}, last event id {self._last_event_id!r}>"

    @property
    def last_event_id(self) -> str:
        """The id of the last complete event that had one, which a client resumes from; empty without one.

        It is text as the server chose it, which may not be fit for a header.
        """
        return self._last_event_id

    @property
    def retry(self) -> int | None:
        """Milliseconds to wait before connecting again, as the server sent last; ``None`` if it never did."""
        return self._retry

    @property
    def failure(self) -> RemoteProtocolError | None:
        """The error after which nothing more can be decoded; the next `feed` raises it."""
        return self._failure

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Takes the next bytes and returns the events that they complete.

        An event that is incomplete when the stream ends is dropped.

        Raises:
            RemoteProtocolError: A line or an event is over the limit, now or earlier. Events that came before it in the
                same bytes are returned first, and `failure` is set.
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
            self._unfinished = _UnfinishedEvent()
            if not events:
                raise
        return events

    def _cut(self, data: bytes, events: list[ServerSentEvent]) -> None:
        # For bytes, unlike for text, this splits at LF, CR and CRLF and nowhere else.
        lines = data.splitlines()
        unended = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
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
        self._check(len(self._partial) + len(unended))
        self._partial += unended

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise RemoteProtocolError(f"an event of the stream is longer than {self._limit} bytes")

    def _take(self, line: bytes) -> None:
        """Takes a line that is not blank. A comment is a field without a name, and ignored like any unknown field."""
        unfinished = self._unfinished
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if unfinished.data is None:
                unfinished.data = value
            else:
                if unfinished.more is None:
                    unfinished.more = bytearray(unfinished.data)
                unfinished.more += b"\n"
                unfinished.more += value
        elif name == b"event":
            unfinished.event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" in value:
                return
            unfinished.id = value.decode(errors="replace")
        elif name == b"retry":
            if not value.isdigit() or len(value) > _MAX_RETRY_DIGITS:
                return
            # Counts from here on, even if the event is never finished.
            self._retry = unfinished.retry = int(value)
        else:
            return
        unfinished.size += len(line)
        self._check(unfinished.size)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        unfinished = self._unfinished
        if not unfinished.size:
            return
        if unfinished.id is not None:
            self._last_event_id = unfinished.id
        data = (unfinished.data or b"") if unfinished.more is None else bytes(unfinished.more)
        events.append(ServerSentEvent(data, unfinished.event or "message", unfinished.id, unfinished.retry))
        self._unfinished = _UnfinishedEvent()


class _UnfinishedEvent:
    """The event whose blank line is still to come."""

    __slots__ = ("data", "event", "id", "more", "retry", "size")

    def __init__(self) -> None:
        self.data: bytes | None = None
        # All data lines, once there is a second one: the first alone needs no copy.
        self.more: bytearray | None = None
        self.event = ""
        self.id: str | None = None
        self.retry: int | None = None
        # Bytes of the lines that are kept; zero if there are none.
        self.size = 0


def _one_line(value: str, what: str) -> str:
    if "\n" in value or "\r" in value or "\0" in value:
        raise LocalProtocolError(f"the {what} of an event must be one line without NUL")
    return value


def _milliseconds(retry: int) -> int:
    if retry < 0:
        raise LocalProtocolError("the retry of an event cannot be negative")
    return retry
