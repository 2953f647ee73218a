"""The store behind ``Last-Event-ID``: events that are kept for clients which lost a stream.

MCP 2025-11-25, Transports, Resumability and Redelivery. A client that lost an event stream asks for it again with the
id of the last event it saw, and gets the rest of that stream exactly: no event of another stream or session, and none
at all if a part of the rest is gone, because the client could not know of the gap.

`mcp_actors.abc.EventLog` is the contract; `MemoryEventLog` is the default.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable

import attrs
import trio

from mcp_actors._record import ValueRecord
from mcp_actors.abc.shared import Replay

__all__ = [
    "DEFAULT_MAX_AGE",
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_EVENTS",
    "DEFAULT_MAX_TOTAL_BYTES",
    "EVENT_OVERHEAD",
    "EventLogStatistics",
    "MemoryEventLog",
]

# Events of one session. A call that reports progress a hundred times a second fills this in almost three minutes, which
# is longer than a client that lost its network takes to come back.
DEFAULT_MAX_EVENTS = 16_384
# Bytes of one session: the longest message, 16 MiB, behind all that a response holds whose client does not read
# (`HttpLimits.max_buffered`). With less, a client would come back to a stalled stream and find that its answer is gone.
DEFAULT_MAX_BYTES = 24 * 1024 * 1024
# Bytes of all sessions together, for clients that perhaps never come back.
DEFAULT_MAX_TOTAL_BYTES = 256 * 1024 * 1024
# Seconds. Long enough for a train in a tunnel or a restarted proxy; a client that is away longer begins a new session.
DEFAULT_MAX_AGE = 600.0
# Bytes that an event takes in memory beside its data, measured and rounded up. They are counted with its data.
EVENT_OVERHEAD = 320
# No event of a session has a longer number, and `int` raises for text of several thousand digits.
_MAX_DIGITS = 18


@attrs.frozen(eq=False, repr=False)
class EventLogStatistics(ValueRecord):
    """A snapshot of the content of a `MemoryEventLog`."""

    sessions: int
    """Sessions that hold an event or an open stream."""
    events: int
    """Events of all sessions."""
    bytes: int
    """Bytes of their data, and `EVENT_OVERHEAD` for each event."""


class _StoredStream:
    __slots__ = ("dropped", "ended", "held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        # The number of the youngest event that was dropped. Resuming from an earlier one would leave a gap.
        self.dropped = 0
        self.ended = False


class _StoredSession:
    __slots__ = ("bytes", "events", "key", "last", "streams", "tag")

    def __init__(self, key: str) -> None:
        self.key = key
        # Makes the ids of one session unknown to every other.
        self.tag = secrets.token_hex(6)
        self.streams: dict[str, _StoredStream] = {}
        self.events: deque[_StoredEvent] = deque()
        self.bytes = 0
        # The number of the last event. Streams share the numbers, so that no id repeats even if a stream's name does.
        self.last = 0


class _StoredEvent:
    __slots__ = ("at", "data", "number", "serial", "session", "stream")

    def __init__(
        self, session: _StoredSession, stream: _StoredStream, number: int, serial: int, at: float, data: bytes
    ) -> None:
        self.session = session
        self.stream = stream
        self.number = number
        self.serial = serial
        self.at = at
        self.data = data

    @property
    def id(self) -> str:
        return f"{self.session.tag}-{self.stream.name}-{self.number}"

    @property
    def size(self) -> int:
        return len(self.data) + EVENT_OVERHEAD


class MemoryEventLog:
    """An `EventLog` in the memory of this process, bounded in every direction. The oldest events are dropped first.

    A session costs nothing before its first event, and nothing again when its events are dropped and its streams have
    ended. An open stream without events costs an entry, by which it can still be resumed after hours of silence.
    Data is kept as it was given, without a copy. An append takes a constant time, a replay one that grows with
    what its session holds.

    Args:
        max_events: Events of one session.
        max_bytes: Bytes of one session: those of the data, and `EVENT_OVERHEAD` for each event.
        max_total_bytes: Bytes of all sessions together, counted in the same way.
        max_age: Seconds after which an event is not replayed any more. Its memory is freed at the next call about any
            session.
        clock: Returns seconds that never go back. By default the clock of the running Trio loop.

    A bound of 0 keeps nothing, so that no stream can be resumed.

    Raises:
        ValueError: A bound is negative.
    """

    def __init__(
        self,
        *,
        max_events: int = DEFAULT_MAX_EVENTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES,
        max_age: float = DEFAULT_MAX_AGE,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        if min(max_events, max_bytes, max_total_bytes, max_age) < 0:
            raise ValueError("a bound of an event log cannot be negative")
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._max_age = max_age
        self._clock = clock
        self._sessions: dict[str, _StoredSession] = {}
        # Every event of every session, oldest first. The oldest of all is the oldest of its session as well.
        self._order: OrderedDict[int, _StoredEvent] = OrderedDict()
        self._serial = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<MemoryEventLog: {len(self._order)} events of {len(self._sessions)} sessions, {self._bytes} bytes>"

    def statistics(self) -> EventLogStatistics:
        """Returns a snapshot of the content."""
        return EventLogStatistics(len(self._sessions), len(self._order), self._bytes)

    @property
    def spans_processes(self) -> bool:
        """False: the events are those of one process."""
        return False

    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        """Keeps an event and returns its id. Drops the oldest events that are over a bound then."""
        own = self._sessions.get(session)
        if own is None:
            own = self._sessions[session] = _StoredSession(session)
        entry = own.streams.get(stream)
        if entry is None:
            entry = own.streams[stream] = _StoredStream(stream)
        own.last += 1
        self._serial += 1
        now = self._clock()
        event = _StoredEvent(own, entry, own.last, self._serial, now, data)
        own.events.append(event)
        self._order[self._serial] = event
        entry.held += 1
        own.bytes += event.size
        self._bytes += event.size
        while own.events and (len(own.events) > self._max_events or own.bytes > self._max_bytes):
            self._drop(own.events[0])
        self._drop_old(now)
        if kept is not None:
            kept(True)
        return event.id

    async def after(self, session: str, event_id: str) -> Replay | None:
        """Returns all that followed an event in its stream, or ``None``; see `EventLog.after`. Never waits."""
        self._drop_old(self._clock())
        own = self._sessions.get(session)
        if own is None:
            return None
        tag, _, name_and_number = event_id.partition("-")
        name, _, digits = name_and_number.rpartition("-")
        number = _number(digits)
        entry = own.streams.get(name)
        if tag != own.tag or entry is None or number is None or number < entry.dropped:
            return None
        events = [each for each in own.events if each.stream is entry and each.number >= number]
        if number > entry.dropped:
            # The event was not dropped, so it is held, or it was never an event of this stream.
            if not events or events[0].number != number:
                return None
            del events[0]
        return Replay(name, [(each.id, each.data) for each in events])

    def end(self, session: str, stream: str) -> None:
        """Notes that no more events are appended to a stream. Its entry is dropped with its last event."""
        own = self._sessions.get(session)
        entry = own.streams.get(stream) if own is not None else None
        if own is not None and entry is not None:
            entry.ended = True
            self._tidy(own, entry)

    def forget(self, session: str) -> None:
        """Frees all events of a session that has ended."""
        own = self._sessions.pop(session, None)
        if own is not None:
            for event in own.events:
                del self._order[event.serial]
            self._bytes -= own.bytes
            # Each of them refers to its session.
            own.events.clear()

    def _drop_old(self, now: float) -> None:
        """Drops events that are too old, and the oldest of all sessions while there are too many bytes."""
        limit = now - self._max_age
        while self._order:
            oldest = next(iter(self._order.values()))
            if oldest.at >= limit and self._bytes <= self._max_total_bytes:
                break
            self._drop(oldest)

    def _drop(self, event: _StoredEvent) -> None:
        """Drops an event that is the oldest of its session."""
        own, entry = event.session, event.stream
        own.events.popleft()
        del self._order[event.serial]
        own.bytes -= event.size
        self._bytes -= event.size
        entry.held -= 1
        entry.dropped = event.number
        self._tidy(own, entry)

    def _tidy(self, own: _StoredSession, entry: _StoredStream) -> None:
        if entry.ended and not entry.held:
            del own.streams[entry.name]
            if not own.streams:
                del self._sessions[own.key]


def _number(digits: str) -> int | None:
    """Returns the number if ``digits`` is its canonical form, else ``None``: no id is known in two forms."""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS) or digits[0] == "0":
        return None
    return int(digits)
