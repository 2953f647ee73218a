"""The log of events in Redis: a stream for each session, written behind in order.

A session has two keys: a stream of its events, of all its streams, in the order in which they came, and a hash of its
open streams' last ids. An event has its stream's name, its id, the id of the event before it in its stream, its size
and its data: so that what follows an id is known exactly, also if the event with that id was dropped. Each step is
atomic in Redis.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import trio

from mcp_actors.abc.shared import Replay
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.memory import DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_MAX_EVENTS, EVENT_OVERHEAD
from mcp_actors.shared.redis.link import Keys, RedisLink, Script
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import STORE_UPKEEP

__all__ = ["AFTER", "APPEND", "BREAK", "BROKEN", "CLOSE", "DROP", "HEADS", "SCRIPTS", "RedisEventLog"]


# -- steps -------------------------------------------------------------------------------------------------------------

BROKEN = "!"
"""In place of the last id of a stream with an event that was not kept."""

# The sum of the sizes of a session's events is kept among its last ids, under a name that no stream has, and so is the
# number of the last event of each node that has appended to it: a step that is made twice appends once.
# Events, heads; node's tag, number, stream, id, id before, size, data; events, bytes, milliseconds.
APPEND = Script("""
local events, heads, writer = ARGV[1], ARGV[2], '#' .. ARGV[3]
if redis.call('HGET', heads, ARGV[5]) == '!' then return 0 end
local last = redis.call('HGET', heads, writer)
if last and tonumber(ARGV[4]) <= tonumber(last) then return 1 end
local at = redis.call('XADD', events, '*', 's', ARGV[5], 'i', ARGV[6], 'b', ARGV[7], 'n', ARGV[8], 'd', ARGV[9])
redis.call('HSET', heads, ARGV[5], ARGV[6], writer, ARGV[4])
local size = redis.call('HINCRBY', heads, '=', ARGV[8])
local count = redis.call('XLEN', events)
local oldest = tonumber(string.match(at, '%d+')) - tonumber(ARGV[12])
while count > 0 do
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  if count <= tonumber(ARGV[10]) and size <= tonumber(ARGV[11])
    and tonumber(string.match(first[1], '%d+')) >= oldest then break end
  redis.call('XDEL', events, first[1])
  size = redis.call('HINCRBY', heads, '=', -tonumber(first[2][8]))
  count = count - 1
end
redis.call('PEXPIRE', events, ARGV[12])
redis.call('PEXPIRE', heads, ARGV[12])
return 1
""")

# Events, heads, id, stream, oldest milliseconds, `Keys.returning`. Returns ids and data in turn, or nothing: also where
# one is missing that was there, because another server has taken over before it had everything. -1: nodes may be
# writing again what the last events were.
AFTER = Script("""
if redis.call('EXISTS', ARGV[6]) == 1 then return -1 end
local head = redis.call('HGET', ARGV[2], ARGV[4])
if head == '!' then return false end
if head == ARGV[3] then return {} end
local rest, last = {}, nil
for _, entry in ipairs(redis.call('XRANGE', ARGV[1], ARGV[5], '+')) do
  local fields = entry[2]
  if fields[2] == ARGV[4] then
    if fields[4] == ARGV[3] then
      last = ARGV[3]
    elseif last or fields[6] == ARGV[3] then
      if last and fields[6] ~= last then return false end
      last = fields[4]
      rest[#rest + 1] = fields[4]
      rest[#rest + 1] = fields[10]
    end
  end
end
if not last or head and head ~= last then return false end
return rest
""")

# Heads, stream, milliseconds.
BREAK = Script("""
redis.call('HSET', ARGV[1], ARGV[2], '!')
redis.call('PEXPIRE', ARGV[1], ARGV[3])
""")

# Heads, stream.
CLOSE = Script("""
if redis.call('HGET', ARGV[1], ARGV[2]) ~= '!' then redis.call('HDEL', ARGV[1], ARGV[2]) end
""")

DROP = Script("redis.call('DEL', ARGV[1], ARGV[2])")

# Heads, milliseconds, streams and their last ids.
HEADS = Script("""
for i = 3, #ARGV, 2 do
  if redis.call('HGET', ARGV[1], ARGV[i]) ~= '!' then redis.call('HSET', ARGV[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', ARGV[1], ARGV[2])
""")

SCRIPTS = (APPEND, AFTER, BREAK, CLOSE, DROP, HEADS)


# -- the log -----------------------------------------------------------------------------------------------------------

# Events, and their bytes, that wait to be written by this node, of all its sessions.
MAX_WAITING = 50_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
# Events, and their bytes, that are written at once.
BATCH = 256
BATCH_BYTES = 1024 * 1024
# Times that the last ids of open streams are written again while events are kept.
RENEWALS = 3
PAUSE = 0.1
_MAX_ID = 200


@attrs.define(eq=False)
class _LoggedSession:
    """A session to whose streams this node appends."""

    events: str
    heads: str
    tag: str = attrs.field(factory=lambda: secrets.token_hex(4))
    last: int = 0
    milliseconds: int = 0
    streams: dict[str, str] = attrs.field(factory=dict)
    """The last id of each open stream."""
    broken: set[str] = attrs.field(factory=set)
    """Streams with an event that was not kept."""
    is_left: bool = False
    """Whether another node has the session, but for the streams that are open here."""


@attrs.frozen
class _Event:
    """The part of an event that is needed once it is written, or never will be."""

    session: _LoggedSession
    stream: str
    size: int
    kept: Callable[[bool], None] | None

    def report(self, is_kept: bool) -> None:
        if self.kept is not None:
            with Containment(STORE_UPKEEP):
                self.kept(is_kept)


_Step = tuple[Script, tuple[Any, ...], _Event | None]


class RedisEventLog:
    """A `mcp_actors.abc.EventLog` in Redis, with the bounds of a session that `MemoryEventLog` has by default.

    An event is kept within the timeout of the connection, or never: then its stream is broken, and goes on without
    being replayable.

    Args:
        link: The connection.
        keys: The names of the keys.
        timeout: Seconds after which an event that is not kept is given up.
        max_events: Events of one session.
        max_bytes: Bytes of one session.
        max_age: Seconds for which an event is replayed.
    """

    spans_processes = True

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        timeout: float,
        *,
        max_events: int = DEFAULT_MAX_EVENTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age: float = DEFAULT_MAX_AGE,
    ) -> None:
        self._link = link
        self._keys = keys
        self._timeout = timeout
        self._bounds = (max_events, max_bytes, int(max_age * 1000))
        self._sessions: dict[str, _LoggedSession] = {}
        self._waiting: deque[_Step] = deque()
        self._waiting_bytes = 0
        self._writing = trio.Lock()
        self._wake = trio.Event()
        self._stale = trio.Event()

    def __repr__(self) -> str:
        return f"<RedisEventLog {len(self._sessions)} sessions, {len(self._waiting)} writes wait>"

    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        """See `mcp_actors.abc.EventLog.append`."""
        own = self._sessions.get(session)
        if own is None:
            own = _LoggedSession(self._keys.events(session), self._keys.heads(session))
            self._sessions[session] = own
        own.last += 1
        own.milliseconds = max(own.milliseconds, int(time.time() * 1000))
        id = f"{own.tag}-{stream}-{own.milliseconds}-{own.last}"
        event = _Event(own, stream, len(data) + EVENT_OVERHEAD, kept)
        is_full = len(self._waiting) >= MAX_WAITING or self._waiting_bytes + event.size > MAX_WAITING_BYTES
        if is_full or stream in own.broken:
            self._refuse(event)
            return id
        before = own.streams.get(stream, "")
        own.streams[stream] = id
        numbered = own.events, own.heads, own.tag, own.last
        arguments = *numbered, stream, id, before, event.size, data, *self._bounds
        self._waiting_bytes += event.size
        self._put(APPEND, arguments, event)
        return id

    def _refuse(self, event: _Event) -> None:
        """Reports that an event is not kept: after those that wait, because events are reported in their order."""
        self._break(event)
        if self._waiting:
            self._put(BREAK, (event.session.heads, event.stream, self._bounds[2]), event)
        else:
            event.report(False)

    async def after(self, session: str, event_id: str) -> Replay | None:
        """See `mcp_actors.abc.EventLog.after`.

        Raises:
            SharedStateUnavailable: Redis cannot be reached, or another one has just taken its place.
        """
        parts = event_id.split("-") if len(event_id) <= _MAX_ID and event_id.isascii() else []
        if len(parts) != 4 or not parts[2].isdigit() or not parts[3].isdigit():
            await trio.lowlevel.checkpoint()
            return None
        stream = parts[1]
        oldest = int(time.time() * 1000) - self._bounds[2]
        keys = self._keys
        arguments = (
            keys.events(session),
            keys.heads(session),
            event_id,
            stream,
            max(oldest, 0),
            keys.returning,
        )
        found = await self._link.run_script("events", AFTER, *arguments)
        if found == -1:
            raise SharedStateUnavailable(
                "events", "redis may have lost events, and nodes say which were the last"
            )
        if found is None:
            return None
        return Replay(stream, [(id.decode(), data) for id, data in zip(found[::2], found[1::2], strict=True)])

    def end(self, session: str, stream: str) -> None:
        """See `mcp_actors.abc.EventLog.end`."""
        own = self._sessions.get(session)
        if own is not None and own.streams.pop(stream, None) is not None:
            self._put(CLOSE, (own.heads, stream))
            self._tidy(session, own)

    def forget(self, session: str) -> None:
        """See `mcp_actors.abc.EventLog.forget`."""
        self._sessions.pop(session, None)
        self._put(DROP, (self._keys.events(session), self._keys.heads(session)))

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        """See `mcp_actors.abc.EventLog.leave`."""
        for session, streams in sessions.items():
            own = self._sessions.get(session)
            if own is not None:
                own.is_left = True
                for stream in streams:
                    own.streams.pop(stream, None)
                self._tidy(session, own)
        # An event is kept in that time, or never.
        with trio.move_on_after(self._timeout):
            while self._waiting_bytes:
                if not await self.flush():
                    await trio.sleep(PAUSE)

    def _tidy(self, session: str, own: _LoggedSession) -> None:
        """Forgets a session that another node has, once no stream of it is left here."""
        if own.is_left and not own.streams:
            self._sessions.pop(session, None)

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        """See `mcp_actors.abc.EventLog.go_on`."""
        own = _LoggedSession(self._keys.events(session), self._keys.heads(session))
        own.streams.update(last)
        self._sessions[session] = own

    def lost(self) -> None:
        """Has the last id of every open stream written again: Redis may have lost them."""
        self._stale.set()

    async def refresh(self) -> None:
        """Keeps the last ids of silent streams from being dropped, until it is cancelled."""
        while True:
            with trio.move_on_after(self._bounds[2] / 1000 / RENEWALS):
                await self._stale.wait()
            self._stale = trio.Event()
            for number, own in enumerate(list(self._sessions.values())):
                heads = {**own.streams, **dict.fromkeys(own.broken, BROKEN)}
                if heads:
                    pairs = (each for pair in heads.items() for each in pair)
                    self._put(HEADS, (own.heads, self._bounds[2], *pairs))
                if number % BATCH == 0:
                    # Else nothing would be written before all of them are.
                    await trio.sleep(PAUSE)

    async def run(self) -> None:
        """Writes what waits, in order, until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._waiting:
                if not await self.flush():
                    await trio.sleep(PAUSE)

    async def flush(self) -> bool:
        """Writes some of what waits, and gives events up that cannot be written within the timeout.

        It tries twice, for a connection that is lost and comes back: each step may be made twice.

        Returns:
            Whether all was written that was tried.
        """
        async with self._writing:
            return await self._flush()

    async def _flush(self) -> bool:
        batch = self._batch()
        steps = [(script, arguments) for script, arguments, _ in batch]
        answers: Sequence[Any] | None = None
        with trio.move_on_after(self._timeout):
            for _ in range(2):
                try:
                    answers = await self._link.run_scripts("events", steps)
                    break
                except SharedStateUnavailable as unavailable:
                    log.debug("events are not written", cause=unavailable.cause)
        if answers is None:
            self._give_up()
            return False
        again: list[_Step] = []
        for step, answer in zip(batch, answers, strict=True):
            self._waiting.popleft()
            event = step[2]
            if event is not None:
                self._waiting_bytes -= event.size if step[0] is APPEND else 0
                is_kept = step[0] is APPEND and answer == 1 and event.stream not in event.session.broken
                event.report(is_kept)
                if not is_kept:
                    self._break(event)
            elif isinstance(answer, Exception):
                log.debug("redis refuses to write", cause=str(answer))
                again.append(step)
        self._waiting.extend(again)
        return not again

    def _batch(self) -> list[_Step]:
        """Returns the first steps of those that wait; they stay there until they are answered."""
        batch: list[_Step] = []
        size = 0
        for step in self._waiting:
            event = step[2]
            size += 0 if event is None else event.size
            if batch and (size > BATCH_BYTES or len(batch) >= BATCH):
                break
            batch.append(step)
        return batch

    def _give_up(self) -> None:
        """Reports of every event that waits that it is not kept. Other steps go on waiting."""
        steps, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for step in steps:
            event = step[2]
            if event is None:
                self._waiting.append(step)
            else:
                event.report(False)
                self._break(event)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()

    def _break(self, event: _Event) -> None:
        """Has nothing of an event's stream replayed any more."""
        own = event.session
        if event.stream not in own.broken:
            own.broken.add(event.stream)
            own.streams.pop(event.stream, None)
            self._put(BREAK, (own.heads, event.stream, self._bounds[2]))

    def _put(self, script: Script, arguments: tuple[Any, ...], event: _Event | None = None) -> None:
        self._waiting.append((script, arguments, event))
        self._wake.set()
