"""Events that a client may come back for: the store behind ``Last-Event-ID``.

A client that lost an event stream asks for it again with the id of the last event it saw, and gets the rest of *that*
stream, exactly: no other stream's events, no other session's, and nothing at all if a part of the rest is gone (a gap
that nobody is told of is worse than a refusal). What to do about an id that is refused is the endpoint's matter.

`EventStore` is what an endpoint needs; `MemoryEventStore` is the one it has by default.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import attrs
import trio

__all__ = [
    "DEFAULT_MAX_AGE",
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_EVENTS",
    "DEFAULT_MAX_TOTAL_BYTES",
    "EVENT_OVERHEAD",
    "EventStore",
    "EventStoreStatistics",
    "MemoryEventStore",
    "Replay",
]

# Of one session. A call that reports progress ten times a second fills this in a minute and a half, which is about as
# long as a client that lost its network takes to come back.
DEFAULT_MAX_EVENTS = 1024
# Of one session. Answers of a megabyte are rare, and four of them in flight rarer.
DEFAULT_MAX_BYTES = 4 * 1024 * 1024
# Of all sessions together: what one process may spend on clients that are perhaps never coming back.
DEFAULT_MAX_TOTAL_BYTES = 256 * 1024 * 1024
# Seconds. Long enough for a lift, a tunnel or a restarted proxy; who is away longer starts anew.
DEFAULT_MAX_AGE = 600.0
# What an event takes in memory beside its data, measured and rounded up; counted as bytes of it.
EVENT_OVERHEAD = 320
# No session lives to see a longer number, and `int` refuses text of several thousand digits with an exception.
_MAX_DIGITS = 18


class Replay(NamedTuple):
    """The rest of a stream: its name, and (event id, data) of every later event in order; perhaps none."""

    stream: str
    events: list[tuple[str, bytes]]


class EventStore(Protocol):
    """What an endpoint asks of a store of events.

    Sessions and streams are named by the endpoint. A stream's name is unique in its session and consists of letters,
    digits and ``_``, so that an id can be made of it.

    Only `after` may wait. The other methods are called where a message is handed over, in the order of the messages
    and without a checkpoint, so a store that lives in a database gives out the id at once and writes behind. What was
    appended while `after` waited may be missing from its answer: whoever resumes a stream asks again, with the last id
    it got, until that id is the one that `append` returned last.
    """

    def append(self, session: str, stream: str, data: bytes) -> str:
        """Keeps an event and returns its id.

        The id is unique in the session, over all its streams, and visible ASCII, so that it can stand in an event and
        in a header. It tells a client nothing. ``data`` may be empty: an event that gives the client an id to come back
        with before anything has happened.
        """

    async def after(self, session: str, event_id: str) -> Replay | None:
        """All that followed ``event_id`` in its stream, or ``None`` if that cannot be told exactly.

        ``None`` stands alike for an id that was never given out, is malformed, belongs to another session, or is so old
        that events after it are gone. ``event_id`` comes from a peer as it is.
        """

    def end(self, session: str, stream: str) -> None:
        """Nothing more is appended to the stream; what it holds may still be asked for. Unknown ones are ignored."""

    def forget(self, session: str) -> None:
        """The session is over: gives everything of it back. Unknown ones are ignored."""


@attrs.frozen
class EventStoreStatistics:
    """What a `MemoryEventStore` holds now."""

    sessions: int
    """Sessions that hold an event or an open stream."""
    events: int
    """Events of all sessions."""
    bytes: int
    """Their data and `EVENT_OVERHEAD` for each."""


class _Stream:
    __slots__ = ("dropped", "ended", "held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        # The number of the youngest event that is gone: an id before it would leave a gap, it itself would not.
        self.dropped = 0
        self.ended = False


class _Session:
    __slots__ = ("bytes", "events", "key", "last", "streams", "tag")

    def __init__(self, key: str) -> None:
        self.key = key
        # Makes the ids of one session unknown to every other.
        self.tag = secrets.token_hex(6)
        self.streams: dict[str, _Stream] = {}
        self.events: deque[_Event] = deque()
        self.bytes = 0
        # Events are numbered through the session, so that no id comes twice even if a stream's name did.
        self.last = 0


class _Event:
    __slots__ = ("at", "data", "number", "serial", "session", "stream")

    def __init__(
        self, session: _Session, stream: _Stream, number: int, serial: int, at: float, data: bytes
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


class MemoryEventStore:
    """An `EventStore` in the memory of this process, bounded in every direction. The oldest events go first.

    ``max_events`` (1024) and ``max_bytes`` (4 MiB) bound a session, ``max_total_bytes`` (256 MiB) all of them together;
    bytes are those of the data and `EVENT_OVERHEAD` for each event. An event older than ``max_age`` seconds (600) is
    never replayed over; its memory is given back at the next call about any session. A bound of 0 keeps nothing, so
    every id that something followed is unknown.

    A session costs nothing before its first event, and nothing again when its events are gone and its streams ended.
    An open stream without events costs an entry: that nothing of it was lost is still known after hours of silence.

    ``data`` is kept as it was given, without a copy. An append takes a constant time, a replay one that grows with what
    its session holds. ``clock`` tells seconds that never go back (default: Trio's own clock, of the running loop).
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
            raise ValueError("a bound of an event store cannot be negative")
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._max_age = max_age
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        # Every event of every session, oldest first. The oldest here is the oldest of its session as well.
        self._order: OrderedDict[int, _Event] = OrderedDict()
        self._serial = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<MemoryEventStore: {len(self._order)} events of {len(self._sessions)} sessions, {self._bytes} bytes>"

    def statistics(self) -> EventStoreStatistics:
        """What is held now."""
        return EventStoreStatistics(len(self._sessions), len(self._order), self._bytes)

    def append(self, session: str, stream: str, data: bytes) -> str:
        """Keeps an event and returns its id; drops the oldest events that are over a bound then."""
        own = self._sessions.get(session)
        if own is None:
            own = self._sessions[session] = _Session(session)
        line = own.streams.get(stream)
        if line is None:
            line = own.streams[stream] = _Stream(stream)
        own.last += 1
        self._serial += 1
        now = self._clock()
        event = _Event(own, line, own.last, self._serial, now, data)
        own.events.append(event)
        self._order[self._serial] = event
        line.held += 1
        own.bytes += event.size
        self._bytes += event.size
        while own.events and (len(own.events) > self._max_events or own.bytes > self._max_bytes):
            self._drop(own.events[0])
        self._drop_old(now)
        return event.id

    async def after(self, session: str, event_id: str) -> Replay | None:
        """All that followed ``event_id`` in its stream, or ``None``; see `EventStore.after`. Never waits."""
        self._drop_old(self._clock())
        own = self._sessions.get(session)
        if own is None:
            return None
        tag, _, rest = event_id.partition("-")
        name, _, digits = rest.rpartition("-")
        number = _number(digits)
        line = own.streams.get(name)
        if tag != own.tag or line is None or number is None or number < line.dropped:
            return None
        events = [each for each in own.events if each.stream is line and each.number >= number]
        if number > line.dropped:
            # Not dropped, so it is held, or it was never an event of this stream.
            if not events or events[0].number != number:
                return None
            del events[0]
        return Replay(name, [(each.id, each.data) for each in events])

    def end(self, session: str, stream: str) -> None:
        """Nothing more is appended to the stream; its entry goes with its last event."""
        own = self._sessions.get(session)
        line = own.streams.get(stream) if own is not None else None
        if own is not None and line is not None:
            line.ended = True
            self._tidy(own, line)

    def forget(self, session: str) -> None:
        """Gives everything of the session back."""
        own = self._sessions.pop(session, None)
        if own is not None:
            for event in own.events:
                del self._order[event.serial]
            self._bytes -= own.bytes

    def _drop_old(self, now: float) -> None:
        """Drops what is too old, and the oldest of all sessions while there is too much."""
        limit = now - self._max_age
        while self._order:
            oldest = next(iter(self._order.values()))
            if oldest.at >= limit and self._bytes <= self._max_total_bytes:
                break
            self._drop(oldest)

    def _drop(self, event: _Event) -> None:
        """Drops an event that is the oldest of its session."""
        own, line = event.session, event.stream
        own.events.popleft()
        del self._order[event.serial]
        own.bytes -= event.size
        self._bytes -= event.size
        line.held -= 1
        line.dropped = event.number
        self._tidy(own, line)

    def _tidy(self, own: _Session, line: _Stream) -> None:
        if line.ended and not line.held:
            del own.streams[line.name]
            if not own.streams:
                del self._sessions[own.key]


def _number(digits: str) -> int | None:
    """The number that ``digits`` is the one way to write, or ``None``."""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS) or digits[0] == "0":
        return None
    return int(digits)
