"""The bus in Redis: a stream of events that all nodes read, and a stream of messages for each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.redis.directory import MAY_RETURN
from mcp_actors.shared.redis.link import Keys, RedisLink, Script
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.task_kinds import STORE_UPKEEP

__all__ = ["MAX_MESSAGE", "SCRIPTS", "RedisBus"]

# Bytes of one message to a mailbox. Longer ones would hold up all others on the connection: divide them.
MAX_MESSAGE = 1024 * 1024
# Bytes of messages that wait in Redis for one node.
MAX_MAIL = 64 * 1024 * 1024
# Entries of the stream of events, each of up to `BATCH` events, about.
MAX_ENTRIES = 10_000
# Events that wait to be sent, and the bytes of their keys.
MAX_PENDING = 10_000
MAX_PENDING_BYTES = 4 * 1024 * 1024
BATCH = 64
# Entries that are read again in one request.
ENTRIES_AT_ONCE = 500
# Seconds that Redis waits with the answer of a reader for which nothing has come.
BLOCK = 5.0
# Messages, and their bytes, that were read and are still in Redis.
READ_MESSAGES = 256
READ_BYTES = 1024 * 1024
# Seconds after which streams that are not written to any more are dropped.
STREAM_KEPT = 3600
PAUSE = 0.2

# Key, entries, seconds, then the pairs.
PUBLISH = Script(
    "redis.call('XADD', ARGV[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4)) "
    "redis.call('EXPIRE', ARGV[1], ARGV[3])"
)
# Lease, mailbox, bytes at most, seconds, number, message, `MAY_RETURN`, the mark of a mailbox that is shut, or nothing.
# 0: the node is gone, or the mailbox is shut; -1: there is no room; -2: the node is not there, and may come back.
SEND = Script(
    MAY_RETURN + "if redis.call('EXISTS', ARGV[1]) == 0 then "
    "return may_return(ARGV[7], ARGV[8]) and -2 or 0 end "
    "if ARGV[9] ~= '' and redis.call('EXISTS', ARGV[9]) == 1 then return 0 end "
    "local size, weight = #ARGV[6] + 100, ARGV[2] .. ':bytes' "
    "if tonumber(redis.call('GET', weight) or '0') + size > tonumber(ARGV[3]) then return -1 end "
    "redis.call('INCRBY', weight, size) "
    "redis.call('EXPIRE', weight, ARGV[4]) "
    "redis.call('XADD', ARGV[2], '*', ARGV[5], ARGV[6]) "
    "redis.call('EXPIRE', ARGV[2], ARGV[4]) "
    "return 1"
)
# Mailbox, the last entry that was read, bytes of those that were read.
TRIM = Script(
    "local weight = ARGV[1] .. ':bytes' "
    "redis.call('XTRIM', ARGV[1], 'MINID', ARGV[2]) "
    "redis.call('XDEL', ARGV[1], ARGV[2]) "
    "if redis.call('XLEN', ARGV[1]) == 0 then redis.call('DEL', weight) "
    "else redis.call('DECRBY', weight, ARGV[3]) end"
)
SCRIPTS = (PUBLISH, SEND, TRIM)


class RedisBus:
    """A `mcp_actors.abc.Bus` in Redis.

    Args:
        link: The connection for what is sent.
        reading: The connection that waits for what comes.
        keys: The names of the keys.
        node: The name of this node.
    """

    spans_processes = True

    def __init__(self, link: RedisLink, reading: RedisLink, keys: Keys, node: str) -> None:
        self._link = link
        self._returning = keys.node(node), keys.returning
        self._reader = _RedisReader(link, reading, keys, node)
        self._keys = keys
        self._node = node
        self._pending: dict[tuple[str, str], None] = {}
        self._pending_bytes = 0
        self._wake = trio.Event()

    def __repr__(self) -> str:
        return f"<RedisBus {len(self._pending)} events wait>"

    def publish(self, topic: str, key: str = "") -> None:
        """See `mcp_actors.abc.Bus.publish`."""
        event = topic, key
        if event not in self._pending:
            self._put(event)
            self._wake.set()

    def _put(self, event: tuple[str, str]) -> None:
        self._pending[event] = None
        self._pending_bytes += len(event[1])
        if len(self._pending) > MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES:
            # An event without a topic says that others were dropped.
            self._pending = {("", ""): None}
            self._pending_bytes = 0

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        """See `mcp_actors.abc.Bus.subscribe`."""
        return self._reader.subscribe(take, missed)

    @property
    def position(self) -> str:
        """See `mcp_actors.abc.Bus.position`."""
        return self._reader.position

    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        """See `mcp_actors.abc.Bus.since`."""
        while self._pending:
            await self.flush()
        return await self._reader.since(position)

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        """See `mcp_actors.abc.Bus.send`.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or too much waits for the other node.
            ValueError: The message is longer than `MAX_MESSAGE`.
        """
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(message)} bytes: divide it in parts of {MAX_MESSAGE}")
        node, _, number = address.partition("/")
        lease, mailbox = self._keys.node(node), self._keys.mailbox(node)
        shut = self._keys.shut(node, number) if begins else ""
        arguments = lease, mailbox, MAX_MAIL, STREAM_KEPT, number, message, *self._returning, shut
        outcome = await self._link.run_script("bus", SEND, *arguments, weight=len(message))
        if outcome == -2:
            raise SharedStateUnavailable("bus", "redis had forgotten nodes, which are coming back")
        if outcome == -1:
            raise SharedStateUnavailable("bus", f"{MAX_MAIL} bytes wait for another node")
        return bool(outcome)

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        """See `mcp_actors.abc.Bus.open_mailbox`."""
        number, close = self._reader.open_mailbox(take)
        return f"{self._node}/{number}", close

    async def shut(self, address: str) -> None:
        """See `mcp_actors.abc.Bus.shut`.

        Raises:
            SharedStateUnavailable: Redis cannot be reached, or does not bring what was sent before in time.
        """
        node, _, number = address.partition("/")
        await self._link.request("bus", b"SET", self._keys.shut(node, number), b"1", b"EX", STREAM_KEPT)
        # What this node sends to itself now is read behind all that was sent before.
        behind = trio.Event()
        mark, close = self.open_mailbox(lambda message: behind.set())
        try:
            await self.send(mark, b"")
            with trio.move_on_after(BLOCK):
                await behind.wait()
                return
        finally:
            close()
        raise SharedStateUnavailable("bus", f"a message to this node itself did not come within {BLOCK:g} s")

    def lost(self) -> None:
        """Tells the subscribers that Redis may have lost events."""
        self._reader.missed()

    async def begin(self) -> None:
        """Begins with the events that come from now on.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """
        await self._reader.begin()

    async def read(self) -> None:
        """Hands over what comes, until it is cancelled."""
        await self._reader.run()

    async def run(self) -> None:
        """Sends what was published, until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._pending:
                try:
                    await self.flush()
                except SharedStateUnavailable:
                    await trio.sleep(PAUSE)

    async def flush(self) -> None:
        """Sends some of what was published. What may not have been sent is sent again: twice does no harm.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """
        events = list(islice(self._pending, BATCH))
        for event in events:
            del self._pending[event]
            self._pending_bytes -= len(event[1])
        pairs = ["", self._node]
        for event in events:
            pairs += event
        data = [each.encode("utf-8", "surrogatepass") for each in pairs]
        try:
            await self._link.run_script("bus", PUBLISH, self._keys.bus, MAX_ENTRIES, STREAM_KEPT, *data)
        except BaseException:
            for event in events:
                if event not in self._pending:
                    self._put(event)
            raise

    async def end(self) -> None:
        """Sends what waits to be sent, and drops the mailbox.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """
        while self._pending:
            await self.flush()
        mailbox = self._keys.mailbox(self._node)
        await self._link.request("bus", b"DEL", mailbox, f"{mailbox}:bytes")


class _RedisReader:
    """Reads the events of all nodes and the messages to this one."""

    def __init__(self, link: RedisLink, reading: RedisLink, keys: Keys, node: str) -> None:
        self._link = link
        self._reading = reading
        self._node = node.encode()
        self._streams = (keys.bus.encode(), keys.mailbox(node).encode())
        # The last entries that were read of the two streams.
        self._positions = [b"0-0", b"0-0"]
        self._subscribers: dict[object, tuple[Callable[[str, str], None], Callable[[], None]]] = {}
        self._mailboxes: dict[str, Callable[[bytes], None]] = {}
        self._opened = 0
        # Messages that are read and not taken out, and their bytes.
        self._read = (0, 0)

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = take, missed
        return lambda: self._subscribers.pop(key, None) and None

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self._opened += 1
        number = str(self._opened)
        self._mailboxes[number] = take
        return number, lambda: self._mailboxes.pop(number, None) and None

    def hand_over(self, number: str, message: bytes) -> None:
        take = self._mailboxes.get(number)
        if take is not None:
            with Containment(STORE_UPKEEP):
                take(message)

    @property
    def position(self) -> str:
        return self._positions[0].decode()

    async def since(self, position: str) -> list[tuple[str, str]] | None:
        stream = self._streams[0]
        oldest = await self._link.request("bus", b"XRANGE", stream, b"-", b"+", b"COUNT", 1)
        behind = _number_of(position.encode())
        if behind == (0, 0):
            if await self._link.request("bus", b"XLEN", stream) >= MAX_ENTRIES:
                return None
        elif not oldest or _number_of(oldest[0][0]) > behind:
            return None
        found: list[tuple[str, str]] = []
        after = position
        while True:
            entries = await self._link.request(
                "bus", b"XRANGE", stream, f"({after}", b"+", b"COUNT", ENTRIES_AT_ONCE
            )
            for id, pairs in entries:
                after = id.decode()
                for topic, key in zip(pairs[2::2], pairs[3::2], strict=True):
                    if not topic:
                        return None
                    found.append(
                        (topic.decode("utf-8", "surrogatepass"), key.decode("utf-8", "surrogatepass"))
                    )
            if len(entries) < ENTRIES_AT_ONCE:
                return found

    def missed(self) -> None:
        for _, missed in list(self._subscribers.values()):
            with Containment(STORE_UPKEEP):
                missed()

    async def begin(self) -> None:
        newest = await self._link.request("bus", b"XREVRANGE", self._streams[0], b"+", b"-", b"COUNT", 1)
        if newest:
            self._positions[0] = newest[0][0]

    async def run(self) -> None:
        is_sure, before = True, self._positions[0]
        while True:
            try:
                if not is_sure:
                    await self._look_for_a_gap(before)
                before = self._positions[0]
                is_sure = await self._read_once()
            except SharedStateUnavailable:
                is_sure = False
                await trio.sleep(PAUSE)

    async def _read_once(self) -> bool:
        """Returns whether nothing can have been dropped before it was read.

        Nothing is dropped before `MAX_ENTRIES` are behind it, which is more than one answer has.
        """
        answer = await self._reading.read(
            "bus", BLOCK, b"XREAD", b"COUNT", BATCH, b"BLOCK", int(BLOCK * 1000), b"STREAMS",
            *self._streams, *self._positions,
        )  # fmt: skip
        found: dict[bytes, Any] = answer or {}
        events, messages = (found.get(each, ()) for each in self._streams)
        for id, pairs in messages:
            self._positions[1] = id
            self._read = self._read[0] + 1, self._read[1] + len(pairs[1]) + 100
            self.hand_over(pairs[0].decode(), pairs[1])
        for id, pairs in events:
            self._positions[0] = id
            if pairs[1] != self._node:
                self._take(pairs[2:])
        count, size = self._read
        if count >= READ_MESSAGES or size >= READ_BYTES or (count and not found):
            await self._link.run_script("bus", TRIM, self._streams[1], self._positions[1], size)
            self._read = 0, 0
        return len(events) < BATCH

    def _take(self, pairs: list[bytes]) -> None:
        for topic, key in zip(pairs[::2], pairs[1::2], strict=True):
            if not topic:
                self.missed()
                continue
            for take, _ in list(self._subscribers.values()):
                with Containment(STORE_UPKEEP):
                    take(topic.decode("utf-8", "surrogatepass"), key.decode("utf-8", "surrogatepass"))

    async def _look_for_a_gap(self, before: bytes) -> None:
        """Looks whether entries behind the one with the id ``before`` were dropped unread, or the whole stream was."""
        stream, position = self._streams[0], _number_of(before)
        oldest = await self._link.request("bus", b"XRANGE", stream, b"-", b"+", b"COUNT", 1)
        newest = await self._link.request("bus", b"XREVRANGE", stream, b"+", b"-", b"COUNT", 1)
        if position == (0, 0):
            # There was nothing to read yet; what has been dropped since can be known by the number alone.
            if await self._link.request("bus", b"XLEN", stream) >= MAX_ENTRIES:
                self.missed()
        elif not newest or _number_of(newest[0][0]) < position:
            # What is in the stream now is another one.
            self._positions = [b"0-0", b"0-0"]
            self.missed()
        elif _number_of(oldest[0][0]) > position:
            self.missed()


def _number_of(id: bytes) -> tuple[int, int]:
    milliseconds, _, number = id.partition(b"-")
    return int(milliseconds), int(number)
