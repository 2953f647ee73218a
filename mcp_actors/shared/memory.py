"""Shared state in the memory of one process: the default, and the reference for all others.

Other processes see nothing of it, and all of it ends with its server.

`MemoryEventLog` is the store behind ``Last-Event-ID`` (MCP 2025-11-25, Transports, Resumability and Redelivery). A
client that lost an event stream asks for it again with the id of the last event it saw, and gets the rest of that
stream exactly: no event of another stream or session, and nothing at all if a part of the rest is gone, because the
client could not know of the gap.
"""

from __future__ import annotations

import heapq
import secrets
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Literal

import msgspec
import trio

from mcp_actors.abc.shared import EventLog, Replay, SessionPlace, TaskBounds, TaskRecord
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "DEFAULT_MAX_AGE",
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_EVENTS",
    "DEFAULT_MAX_TOTAL_BYTES",
    "EVENT_OVERHEAD",
    "EventLogStatistics",
    "MemoryBus",
    "MemoryEventLog",
    "MemoryReplayGuard",
    "MemorySessionDirectory",
    "MemoryShared",
    "MemoryState",
    "MemoryTaskStore",
    "MemoryValueStore",
    "make_event_id",
    "new_node_name",
]


# -- events ------------------------------------------------------------------------------------------------------------

DEFAULT_MAX_EVENTS = 16_384
"""Events of one session.

A call that reports progress a hundred times a second fills this in almost three minutes, which is longer than a
client that lost its network takes to come back.
"""
DEFAULT_MAX_BYTES = 24 * 1024 * 1024
"""Bytes of one session: the longest message, 16 MiB, behind all that a response holds whose client does not read
(`HttpLimits.max_buffered`).

With less, a client would come back to a stalled stream and find that its answer is gone.
"""
DEFAULT_MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Bytes of the events of all sessions together, for clients that perhaps never come back."""
DEFAULT_MAX_AGE = 600.0
"""Seconds that an event is kept.

They cover a train in a tunnel or a proxy that is restarted; a client that is away longer begins a new session.
"""
EVENT_OVERHEAD = 320
"""Bytes that an event takes in memory beside its data, measured and rounded up. They are counted with its data."""
# No event of a session has a longer number, and `int` raises for text of several thousand digits.
_MAX_DIGITS = 18


@frozen_record(eq=False, repr=False)
class EventLogStatistics(ValueRecord):
    """A snapshot of the content of a `MemoryEventLog`."""

    sessions: int
    """Sessions that hold an event or an open stream."""
    events: int
    """Events of all sessions."""
    bytes: int
    """Bytes of their data, and `EVENT_OVERHEAD` for each event."""


class _StoredStream:
    __slots__ = ("broken", "dropped", "ended", "held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        # The tag and number of the youngest event that was dropped. Resuming from an earlier one would leave a gap.
        self.dropped: tuple[str, int] | None = None
        self.ended = self.broken = False


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
    __slots__ = ("at", "data", "number", "serial", "session", "stream", "tag")

    def __init__(
        self,
        session: _StoredSession,
        stream: _StoredStream,
        tag: str,
        number: int,
        serial: int,
        at: float,
        data: bytes,
    ) -> None:
        self.session = session
        self.stream = stream
        self.tag = tag
        self.number = number
        self.serial = serial
        self.at = at
        self.data = data

    @property
    def id(self) -> str:
        return make_event_id(self.tag, self.stream.name, self.number)

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
        own = self._session(session)
        own.last += 1
        event = self._keep(own, stream, own.tag, own.last, data)
        if kept is not None:
            kept(True)
        return event.id

    def keep(self, session: str, stream: str, tag: str, number: int, data: bytes) -> None:
        """Keeps an event of another process, which has made its id of a tag of its own: see `make_event_id`."""
        self._keep(self._session(session), stream, tag, number, data)

    def break_off(self, session: str, stream: str) -> None:
        """Has nothing of a stream replayed any more, of which another process could not have an event kept."""
        self._stream(self._session(session), stream).broken = True

    def _session(self, session: str) -> _StoredSession:
        own = self._sessions.get(session)
        if own is None:
            own = self._sessions[session] = _StoredSession(session)
        return own

    def _stream(self, own: _StoredSession, name: str) -> _StoredStream:
        entry = own.streams.get(name)
        if entry is None:
            entry = own.streams[name] = _StoredStream(name)
        return entry

    def _keep(self, own: _StoredSession, stream: str, tag: str, number: int, data: bytes) -> _StoredEvent:
        entry = self._stream(own, stream)
        self._serial += 1
        now = self._clock()
        event = _StoredEvent(own, entry, tag, number, self._serial, now, data)
        own.events.append(event)
        self._order[self._serial] = event
        entry.held += 1
        own.bytes += event.size
        self._bytes += event.size
        while own.events and (len(own.events) > self._max_events or own.bytes > self._max_bytes):
            self._drop(own.events[0])
        self._drop_old(now)
        return event

    async def after(self, session: str, event_id: str) -> Replay | None:
        """Returns all that followed an event in its stream, or ``None``; see `EventLog.after`. Never waits."""
        return self.replay(session, event_id)

    def replay(self, session: str, event_id: str) -> Replay | None:
        """Does what `after` does."""
        self._drop_old(self._clock())
        own = self._sessions.get(session)
        if own is None:
            return None
        tag, _, name_and_number = event_id.partition("-")
        name, _, digits = name_and_number.rpartition("-")
        number = _number(digits)
        entry = own.streams.get(name)
        if entry is None or entry.broken or number is None:
            return None
        events = [each for each in own.events if each.stream is entry]
        if (tag, number) != entry.dropped:
            # The event is held, or a later one was dropped, or it was never an event of this stream.
            place = next(
                (at for at, each in enumerate(events) if (each.tag, each.number) == (tag, number)), None
            )
            if place is None:
                return None
            del events[: place + 1]
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

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        """Does nothing: see `EventLog.leave`. All that was appended can be replayed."""

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        """Does nothing: see `EventLog.go_on`. Streams go on where their events are."""

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
        entry.dropped = event.tag, event.number
        self._tidy(own, entry)

    def _tidy(self, own: _StoredSession, entry: _StoredStream) -> None:
        if entry.ended and not entry.held:
            del own.streams[entry.name]
            if not own.streams:
                del self._sessions[own.key]


def make_event_id(tag: str, stream: str, number: int) -> str:
    """Returns the id of an event: a tag, which has no ``-`` and no other process or session has, and what it counts."""
    return f"{tag}-{stream}-{number}"


def _number(digits: str) -> int | None:
    """Returns the number if ``digits`` is its canonical form, else ``None``: no id is known in two forms."""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS) or digits[0] == "0":
        return None
    return int(digits)


# -- tasks -------------------------------------------------------------------------------------------------------------

# Dropped tasks whose place in the list of their owner is remembered, for clients in the middle of their pages: about
# 200 bytes each.
MAX_REMEMBERED = 4096


class _TasksOfOwner(msgspec.Struct):
    numbers: list[int] = msgspec.field(default_factory=list)
    """The numbers of the tasks, which grow in the order of creation."""
    weight: int = 0


class MemoryTaskStore:
    """A `mcp_actors.abc.TaskStore` in memory. Tasks whose time is over are dropped at the next call.

    A call costs the same however many tasks there are, but for the tasks that it drops; to drop one takes a time that
    grows with the logarithm of their number. Memory is that of the records, and about 600 bytes for each.

    Args:
        clock: Returns seconds since the epoch, to which the times of the records are compared.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tasks: dict[str, TaskRecord] = {}
        self._owners: dict[str, _TasksOfOwner] = {}
        self._weight = 0
        # The id of each task by its number, and the other way round.
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._last = 0
        # The end of each task's time, soonest first. An entry that no longer agrees with its task is passed over.
        self._ends: list[tuple[float, str]] = []
        # Owner and number of dropped tasks, oldest first.
        self._dropped: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MemoryTaskStore {len(self._tasks)} tasks, {self._weight} bytes>"

    @property
    def spans_processes(self) -> bool:
        """False: the tasks are those of one process."""
        return False

    @property
    def survives(self) -> bool:
        """False: the tasks end with the process."""
        return False

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """See `mcp_actors.abc.TaskStore.create`.

        Raises:
            ValueError: There is a task with this id.
        """
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        if record.id in self._tasks:
            raise ValueError("there is a task with this id: ids must be unguessable, and used once")
        owner = self._owners.get(record.owner) or _TasksOfOwner()
        if len(owner.numbers) >= bounds.of_owner or owner.weight + record.weight > bounds.bytes_of_owner:
            return "owner"
        if len(self._tasks) >= bounds.of_all or self._weight + record.weight > bounds.bytes_of_all:
            return "all"
        self._owners[record.owner] = owner
        self._last += 1
        self._ids[self._last] = record.id
        self._numbers[record.id] = self._last
        owner.numbers.append(self._last)
        self._keep(None, record)
        return None

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        return {id: self._tasks[id] for id in ids if id in self._tasks}

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        current = self._tasks.get(record.id)
        if current is None or current.is_terminal or current.revision != record.revision - 1:
            return False
        self._keep(current, record)
        return True

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. The page behind an unknown task, or another owner's, is empty.

        The places of the last 4,096 dropped tasks are known.
        """
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        tasks = self._owners.get(owner)
        begin = 0 if after is None else self._number_of(owner, after)
        if tasks is None or begin is None:
            return []
        first = bisect_right(tasks.numbers, begin)
        numbers = islice(tasks.numbers, first, first + limit)
        return [self._tasks[self._ids[number]] for number in numbers]

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`. Always empty, because the tasks end with their node."""
        await trio.lowlevel.checkpoint()
        return []

    def _number_of(self, owner: str, id: str) -> int | None:
        record = self._tasks.get(id)
        if record is not None:
            return self._numbers[id] if record.owner == owner else None
        dropped_owner, number = self._dropped.get(id, (owner, None))
        return number if dropped_owner == owner else None

    def _keep(self, before: TaskRecord | None, record: TaskRecord) -> None:
        change = record.weight - (0 if before is None else before.weight)
        self._owners[record.owner].weight += change
        self._weight += change
        self._tasks[record.id] = record
        end = _end_of(record)
        if end is not None and (before is None or _end_of(before) != end):
            heapq.heappush(self._ends, (end, record.id))

    def _drop_expired(self) -> None:
        if not self._ends:
            return
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            end, id = heapq.heappop(self._ends)
            record = self._tasks.get(id)
            if record is not None and _end_of(record) == end:
                self._drop(record)

    def _drop(self, record: TaskRecord) -> None:
        del self._tasks[record.id]
        number = self._numbers.pop(record.id)
        del self._ids[number]
        owner = self._owners[record.owner]
        del owner.numbers[bisect_right(owner.numbers, number) - 1]
        owner.weight -= record.weight
        self._weight -= record.weight
        if not owner.numbers:
            del self._owners[record.owner]
        self._dropped[record.id] = (record.owner, number)
        if len(self._dropped) > MAX_REMEMBERED:
            self._dropped.popitem(last=False)


def _end_of(record: TaskRecord) -> float | None:
    return None if record.ttl is None else record.created + record.ttl


# -- the other roles, and all of them together -------------------------------------------------------------------------

# Names that are remembered so that each is used once: about 10 MB.
MAX_NAMES = 50_000
_NODE_BYTES = 9


def new_node_name() -> str:
    """Returns a name that no node has had."""
    return secrets.token_urlsafe(_NODE_BYTES)


class MemorySessionDirectory:
    """A `mcp_actors.abc.SessionDirectory` of sessions that no other process can hold."""

    spans_processes = False

    def __init__(self) -> None:
        self._places: dict[str, SessionPlace] = {}
        self._records: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<MemorySessionDirectory {len(self._places)}>"

    async def register(self, session: str, owner: str, address: str) -> None:
        await trio.lowlevel.checkpoint()
        self._places[session] = SessionPlace(address, owner, True)

    async def find(self, session: str) -> SessionPlace | None:
        await trio.lowlevel.checkpoint()
        return self._places.get(session)

    def forget(self, session: str) -> None:
        self._places.pop(session, None)
        self._records.pop(session, None)

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        """Keeps them for as long as this process lives."""
        await trio.lowlevel.checkpoint()
        for session in records.keys() & self._places.keys():
            self._places[session] = self._places[session]._replace(is_free=True)
            self._records[session] = records[session]

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        await trio.lowlevel.checkpoint()
        record = self._records.pop(session, None)
        if record is not None:
            self._places[session] = SessionPlace(address, owner, True)
        return record


class MemoryBus:
    """A `mcp_actors.abc.Bus` of a node that is alone."""

    spans_processes = False

    def __init__(self, node: str) -> None:
        self._node = node
        self._mailboxes: dict[str, Callable[[bytes], None]] = {}
        self._opened = 0
        self._shut: set[str] = set()

    def __repr__(self) -> str:
        return f"<MemoryBus {len(self._mailboxes)} mailboxes>"

    def publish(self, topic: str, key: str = "") -> None:
        """Does nothing, because there is no other node."""

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    position = ""

    async def since(self, position: str) -> Sequence[tuple[str, str]]:
        await trio.lowlevel.checkpoint()
        return ()

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        await trio.lowlevel.checkpoint()
        if begins and address in self._shut:
            return False
        take = self._mailboxes.get(address)
        if take is not None:
            take(message)
        return address.startswith(f"{self._node}/")

    async def shut(self, address: str) -> None:
        await trio.lowlevel.checkpoint()
        self._shut.add(address)

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self._opened += 1
        address = f"{self._node}/{self._opened}"
        self._mailboxes[address] = take
        return address, lambda: self._mailboxes.pop(address, None) and None


class MemoryReplayGuard:
    """A `mcp_actors.abc.ReplayGuard` of one process. With too many names to remember it takes no further ones.

    Args:
        max_names: The number of names that are remembered.
        clock: Returns seconds that never go back.
    """

    spans_processes = False

    def __init__(self, *, max_names: int = MAX_NAMES, clock: Callable[[], float] = trio.current_time) -> None:
        self._max_names = max_names
        self._clock = clock
        self._until: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return f"<MemoryReplayGuard {len(self._until)}/{self._max_names}>"

    async def first_use(self, name: bytes, seconds: float) -> bool:
        """Returns whether ``name`` is used for the first time in so many seconds.

        Raises:
            SharedStateUnavailable: Too many names are remembered.
        """
        await trio.lowlevel.checkpoint()
        return self.use(name, seconds)

    def use(self, name: bytes, seconds: float) -> bool:
        """Does what `first_use` does, and does not wait.

        Raises:
            SharedStateUnavailable: Too many names are remembered.
        """
        now = self._clock()
        if self._until.get(name, now) > now:
            return False
        if len(self._until) >= self._max_names:
            self._until = {each: until for each, until in self._until.items() if until > now}
            if len(self._until) >= self._max_names:
                raise SharedStateUnavailable("replays", f"{self._max_names} names are remembered")
        self._until[name] = now + seconds
        return True


MAX_VALUES = 100_000
"""Values that are kept."""
MAX_VALUE_BYTES = 64 * 1024 * 1024
"""Bytes of the values of all keys together."""
# What an entry takes beside its value, about.
_VALUE_OVERHEAD = 256


class MemoryValueStore:
    """A `mcp_actors.abc.ValueStore` of one process. With too much to remember it takes no further keys.

    Args:
        max_values: The number of keys.
        max_bytes: The bytes of all values.
        clock: Returns seconds since the epoch.
    """

    spans_processes = False

    def __init__(
        self,
        *,
        max_values: int = MAX_VALUES,
        max_bytes: int = MAX_VALUE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_values = max_values
        self._max_bytes = max_bytes
        self._clock = clock
        self._values: dict[str, tuple[bytes, float]] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<MemoryValueStore {len(self._values)}/{self._max_values}>"

    async def load(self, key: str) -> bytes | None:
        """See `mcp_actors.abc.ValueStore.load`."""
        await trio.lowlevel.checkpoint()
        return self.found(key)

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        """See `mcp_actors.abc.ValueStore.replace`.

        Raises:
            SharedStateUnavailable: Too many values, or bytes of them, are remembered.
        """
        await trio.lowlevel.checkpoint()
        return self.put(key, before, after, seconds)

    def put(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        """Does what `replace` does, and does not wait; raises as that does."""
        if self.found(key) != before:
            return False
        if after is not None:
            self._make_room(key, len(after))
        self._drop(key)
        if after is not None:
            self._values[key] = (after, self._clock() + seconds)
            self._bytes += len(after) + _VALUE_OVERHEAD
        return True

    def found(self, key: str) -> bytes | None:
        """Does what `load` does, and does not wait."""
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._clock() else None

    def _make_room(self, key: str, size: int) -> None:
        if self._fits(key, size):
            return
        now = self._clock()
        for each in [each for each, (_, until) in self._values.items() if until <= now]:
            self._drop(each)
        if not self._fits(key, size):
            raise SharedStateUnavailable("values", f"{len(self._values)} values are kept")

    def _fits(self, key: str, size: int) -> bool:
        own = self._values.get(key)
        number = len(self._values) + (own is None)
        freed = 0 if own is None else len(own[0]) + _VALUE_OVERHEAD
        return number <= self._max_values and self._bytes - freed + size + _VALUE_OVERHEAD <= self._max_bytes

    def _drop(self, key: str) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._bytes -= len(found[0]) + _VALUE_OVERHEAD


class MemoryState:
    """The state that `MemoryShared` opens: a node that is alone. A `mcp_actors.abc.OpenState`.

    Args:
        events: The log of events; by default a `MemoryEventLog` with its defaults.
        clock: Returns seconds since the epoch, for the times of tasks.
        values: The values; by default a `MemoryValueStore` with its defaults.
    """

    def __init__(
        self,
        events: EventLog | None = None,
        clock: Callable[[], float] = time.time,
        values: MemoryValueStore | None = None,
    ) -> None:
        self.node = new_node_name()
        self.sessions = MemorySessionDirectory()
        self.events = MemoryEventLog() if events is None else events
        self.bus = MemoryBus(self.node)
        self.tasks = MemoryTaskStore(clock=clock)
        self.replays = MemoryReplayGuard()
        self.values = MemoryValueStore(clock=clock) if values is None else values
        self.failure = None

    def __repr__(self) -> str:
        return f"<MemoryState {self.node}>"


class MemoryShared:
    """State in the memory of this process, for servers that are one process. A `mcp_actors.abc.SharedState`.

    Servers of one name that are given the same object have the values in common; all else is one server's own.

    Args:
        events: The log of events; by default a `MemoryEventLog` with its defaults.
        clock: Returns seconds since the epoch, for the times of tasks.
    """

    def __init__(self, *, events: EventLog | None = None, clock: Callable[[], float] = time.time) -> None:
        self._events = events
        self._clock = clock
        # They outlive a `serve`, by the name of the server.
        self._stores: dict[str, MemoryValueStore] = {}

    def __repr__(self) -> str:
        return "<MemoryShared>"

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[MemoryState]:
        """See `mcp_actors.abc.SharedState.open`."""
        if name not in self._stores:
            self._stores[name] = MemoryValueStore(clock=self._clock)
        yield MemoryState(self._events, self._clock, self._stores[name])


def from_url(url: str) -> MemoryShared:
    """Returns the state for the URL ``memory:``.

    Raises:
        ValueError: It has anything behind the colon.
    """
    if url.partition(":")[2]:
        raise ValueError("the URL of shared state in memory is 'memory:', without anything behind it")
    return MemoryShared()
