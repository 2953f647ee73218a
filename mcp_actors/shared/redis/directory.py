"""The nodes and their leases in Redis, and the sessions that they hold: a key for each node and each session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import trio
from coredis.connection import BaseConnection

from mcp_actors.abc.shared import SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.redis.link import Keys, RedisLink, Script
from mcp_actors.supervision.logging import log

__all__ = ["MAY_RETURN", "RENEW", "SCRIPTS", "NodeLease", "RedisSessionDirectory"]


# -- the lease of a node: a key that ends by itself when the node does not renew it ------------------------------------

# Renewals in the time of a lease: two may fail.
RENEWALS = 3
# Seconds for which it is known that a node has ended, and was not only away.
ENDED = 3600

# For other scripts: whether a node or session that is not there may be about to be written again. Either this node is
# not there itself, or another has found that it was not. The keys of this node's lease and `Keys.returning`.
MAY_RETURN = (
    "local function may_return(own, returning) "
    "return redis.call('EXISTS', own) == 0 or redis.call('EXISTS', returning) == 1 "
    "end "
)


# Lease, milliseconds; `Keys.returning`, its milliseconds or 0; whether this node has heard that its lease was missing.
# Returns 1 if it was missing, again and again until the node says that it has heard it: an answer may be lost.
RENEW = Script(
    "local before = redis.call('GET', ARGV[1]) "
    "local missing = not before or before == 'new' and ARGV[5] == '0' "
    "redis.call('SET', ARGV[1], missing and 'new' or 'known', 'PX', ARGV[2]) "
    "if not before and ARGV[4] ~= '0' and redis.call('PTTL', ARGV[3]) < tonumber(ARGV[4]) then "
    "redis.call('SET', ARGV[3], '1', 'PX', ARGV[4]) end "
    "return missing and 1 or 0"
)


class NodeLease:
    """Tells all nodes that this one is there.

    Args:
        link: The connection.
        keys: The names of the keys.
        node: The node's name.
        seconds: The time for which the others believe it without hearing of it.
        found_within: Seconds in which each node has found a Redis that took over from another.
    """

    def __init__(self, link: RedisLink, keys: Keys, node: str, seconds: float, found_within: float) -> None:
        self._found_within = found_within
        self._link = link
        self._key = keys.node(node)
        self._ended = keys.ended(node)
        self._returning = keys.returning
        # In half a lease, every node that is there has renewed its own and what belongs to it.
        self._returning_milliseconds = int(seconds * 1000 / 2) or 1
        self._seconds = seconds
        self._wake = trio.Event()
        self._was_missing = False
        # One request about the lease at a time: a renewal behind the end would bring the node back.
        self._asking = trio.Lock()
        self._is_over = False
        self.on_lost: list[Callable[[], object]] = []
        """Are called in the event loop when the lease had ended, or Redis had lost it: everything else may be lost."""

    def __repr__(self) -> str:
        return f"<NodeLease {self._seconds} s>"

    def wake(self) -> None:
        """Has the lease renewed at once: the connection is new."""
        self._wake.set()

    async def take(self) -> None:
        """Makes this node known.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """
        await self._renew(0)
        self._was_missing = True

    async def run(self) -> None:
        """Renews the lease until it ends."""
        while True:
            with trio.move_on_after(self._seconds / RENEWALS):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                async with self._asking:
                    if self._is_over:
                        return
                    was_missing = await self._renew(self._returning_milliseconds)
            except SharedStateUnavailable as error:
                log.debug("a lease is not renewed", cause=error.cause)
                continue
            self._was_missing = was_missing
            if was_missing:
                log.warning("the lease of this node was lost in redis, and is taken again")
                for each in self.on_lost:
                    each()

    async def _renew(self, returning: int) -> bool:
        """Returns whether the lease was missing."""
        arguments = self._key, int(self._seconds * 1000), self._returning, returning, int(self._was_missing)
        return bool(await self._link.run_script("bus", RENEW, *arguments))

    async def mark_return(self, connection: BaseConnection) -> None:
        """Says to all nodes that another process of Redis serves now, until all had the time to find it.

        It may lack what the one before confirmed in its last moments, also where the lease itself is there.
        """
        milliseconds = int(self._found_within * 1000)
        await connection.create_request(b"SET", self._returning, b"1", b"PX", milliseconds, decode=False)

    async def replaced(self, connection: BaseConnection) -> None:
        """As `mark_return`, and has all parts of this node written again."""
        await self.mark_return(connection)
        log.warning("redis is another process than before, which may have lost what was confirmed last")
        for each in self.on_lost:
            each()

    async def end(self) -> None:
        """Ends this node for all others at once.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the lease ends by itself.
        """
        async with self._asking:
            self._is_over = True
            await self._link.request("bus", b"SET", self._ended, b"1", b"EX", ENDED)
            await self._link.request("bus", b"DEL", self._key)


# -- sessions ----------------------------------------------------------------------------------------------------------

# Seconds for which a session is known without being written again: longer than a node that died had kept events for its
# clients (`DEFAULT_MAX_AGE`), so that a client which comes back late learns that its session has ended.
KEPT = 900.0
# Times that a session is written again in those seconds.
# Sessions that one request is about.
BATCH = 500
# Sessions that have ended, and are not known to be taken out. Those beyond it end by themselves.
MAX_FORGOTTEN = 100_000
# Seconds before what could not be taken out is tried again.
PAUSE = 0.5

KEEP = Script("for i = 2, #ARGV, 2 do redis.call('SET', ARGV[i], ARGV[i + 1], 'PX', ARGV[1]) end")
FORGET = Script("for i = 1, #ARGV do redis.call('DEL', ARGV[i]) end")
# Session, its record, what the keys of nodes begin with, those of `MAY_RETURN`. -1: the session or its node may be
# written again. The value begins with the address of a mailbox, which begins with the name of its node.
FIND = Script(
    MAY_RETURN + "local place = redis.call('GET', ARGV[1]) "
    "local free = redis.call('EXISTS', ARGV[2]) "
    "local alive = place and redis.call('EXISTS', ARGV[3] .. string.match(place, '^[^/]*')) "
    "if alive ~= 1 and free ~= 1 and may_return(ARGV[4], ARGV[5]) then return -1 end "
    "return place and {place, alive, free}"
)
# Milliseconds, then session, place, key of the record and record of each.
HAND_OVER = Script(
    "for i = 2, #ARGV, 4 do "
    "redis.call('SET', ARGV[i], ARGV[i + 1], 'PX', ARGV[1]) "
    "redis.call('SET', ARGV[i + 2], ARGV[i + 3], 'PX', ARGV[1]) "
    "end"
)
# Session, its record, place, milliseconds.
TAKE_OVER = Script(
    "local record = redis.call('GET', ARGV[2]) "
    "if not record then return false end "
    "redis.call('DEL', ARGV[2]) "
    "redis.call('SET', ARGV[1], ARGV[3], 'PX', ARGV[4]) "
    "return record"
)
SCRIPTS = (KEEP, FORGET, FIND, HAND_OVER, TAKE_OVER)
# Bytes of records that one request carries, about.
HANDED_BYTES = 1024 * 1024


class RedisSessionDirectory:
    """A `mcp_actors.abc.SessionDirectory` in Redis.

    Args:
        link: The connection.
        keys: The names of the keys.
        node: The name of this node.
    """

    spans_processes = True

    def __init__(self, link: RedisLink, keys: Keys, node: str) -> None:
        self._link = link
        self._keys = keys
        self._returning = keys.node(node), keys.returning
        self._held: dict[str, bytes] = {}
        self._forgotten: dict[str, None] = {}
        self._wake = trio.Event()
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<RedisSessionDirectory {len(self._held)} held here>"

    async def register(self, session: str, owner: str, address: str) -> None:
        """See `mcp_actors.abc.SessionDirectory.register`."""
        key = self._keys.session(session)
        place = _place(address, owner)
        self._held[key] = place
        self._forgotten.pop(key, None)
        try:
            await self._link.run_script("sessions", KEEP, _milliseconds(), key, place)
        except BaseException:
            self.forget(session)
            raise

    async def find(self, session: str) -> SessionPlace | None:
        """See `mcp_actors.abc.SessionDirectory.find`.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or nodes that it had forgotten may be coming back.
        """
        key = self._keys.session(session)
        arguments = key, self._keys.record(session), self._keys.node(""), *self._returning
        found = await self._link.run_script("sessions", FIND, *arguments)
        if found == -1:
            raise SharedStateUnavailable("sessions", "redis had forgotten nodes, which are coming back")
        if found is None:
            return None
        address, _, owner = found[0].decode("utf-8", "surrogatepass").partition("\n")
        return SessionPlace(address, owner, found[1] == 1, found[2] == 1)

    def forget(self, session: str) -> None:
        """See `mcp_actors.abc.SessionDirectory.forget`."""
        key = self._keys.session(session)
        self._held.pop(key, None)
        if len(self._forgotten) < MAX_FORGOTTEN:
            self._forgotten[key] = None
        self._wake.set()

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        """See `mcp_actors.abc.SessionDirectory.hand_over`."""
        batch: list[bytes | str] = []
        size = 0
        for session, record in records.items():
            key = self._keys.session(session)
            # It must not be written again, behind the node that takes it.
            place = self._held.pop(key, None)
            if place is None:
                continue
            batch += [key, place, self._keys.record(session), record]
            size += len(record)
            if size >= HANDED_BYTES or len(batch) >= 4 * BATCH:
                await self._hand_over(batch, seconds, size)
                batch, size = [], 0
        if batch:
            await self._hand_over(batch, seconds, size)

    async def _hand_over(self, batch: list[bytes | str], seconds: float, size: int) -> None:
        arguments = int(seconds * 1000), *batch
        await self._link.run_script("sessions", HAND_OVER, *arguments, weight=size)

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        """See `mcp_actors.abc.SessionDirectory.take_over`."""
        key, place = self._keys.session(session), _place(address, owner)
        arguments = key, self._keys.record(session), place, _milliseconds()
        record: bytes | None = await self._link.run_script("sessions", TAKE_OVER, *arguments)
        if record is not None:
            self._held[key] = place
            self._forgotten.pop(key, None)
        return record

    def lost(self) -> None:
        """Has every session written again: Redis may have lost them."""
        self._is_lost = True
        self._wake.set()

    async def run(self) -> None:
        """Takes sessions out, and writes the others again, until it is cancelled."""
        due = trio.current_time() + KEPT / RENEWALS
        while True:
            with trio.move_on_at(due):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                await self._take_out()
                if self._is_lost or trio.current_time() >= due:
                    self._is_lost = False
                    await self._write_again()
                    due = trio.current_time() + KEPT / RENEWALS
            except SharedStateUnavailable:
                await trio.sleep(PAUSE)
                self._wake.set()

    async def _take_out(self) -> None:
        while self._forgotten:
            keys = list(islice(self._forgotten, BATCH))
            await self._link.run_script("sessions", FORGET, *keys)
            for key in keys:
                self._forgotten.pop(key, None)

    async def _write_again(self) -> None:
        held = list(self._held)
        try:
            for start in range(0, len(held), BATCH):
                # Those that ended while the others were written are not written any more.
                pairs = [(key, self._held[key]) for key in held[start : start + BATCH] if key in self._held]
                await self._link.run_script(
                    "sessions", KEEP, _milliseconds(), *(x for pair in pairs for x in pair)
                )
        except SharedStateUnavailable:
            self._is_lost = True
            raise

    async def end(self) -> None:
        """Takes all sessions out whose end is not known yet.

        Raises:
            SharedStateUnavailable: The state cannot be reached; they end by themselves.
        """
        await self._take_out()


def _place(address: str, owner: str) -> bytes:
    return f"{address}\n{owner}".encode("utf-8", "surrogatepass")


def _milliseconds() -> int:
    return int(KEPT * 1000)
