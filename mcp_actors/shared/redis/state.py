"""Shared state in Redis: the parts, opened together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.memory import new_node_name
from mcp_actors.shared.redis import bus, directory, events, stored_tasks
from mcp_actors.shared.redis.address import SCHEMES, Redis
from mcp_actors.shared.redis.bus import RedisBus
from mcp_actors.shared.redis.directory import RENEW, NodeLease, RedisSessionDirectory
from mcp_actors.shared.redis.events import RedisEventLog
from mcp_actors.shared.redis.link import CONNECTING, LAST_PAUSE, Keys, RedisLink, Script
from mcp_actors.shared.redis.stored_tasks import RedisTaskStore
from mcp_actors.supervision.containment import outliving, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import SHARED_STATE, STORE_UPKEEP

__all__ = ["RedisReplayGuard", "RedisShared", "RedisState", "RedisValueStore"]

# Seconds. The others believe for so long that a node is there which they do not hear of.
DEFAULT_LEASE = 10.0
# Seconds for which an answer of Redis is waited for: longer than a pause of its process or a lost packet takes.
DEFAULT_TIMEOUT = 2.0


class RedisReplayGuard:
    """A `mcp_actors.abc.ReplayGuard` in Redis: a key that ends by itself for each name that was used.

    Args:
        link: The connection.
        keys: The names of the keys.
    """

    spans_processes = True

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def __repr__(self) -> str:
        return "<RedisReplayGuard>"

    async def first_use(self, name: bytes, seconds: float) -> bool:
        """See `mcp_actors.abc.ReplayGuard.first_use`. After an error, ``name`` may count as used."""
        milliseconds = max(1, int(seconds * 1000))
        key = self._keys.used(name)
        return await self._link.request("replays", b"SET", key, b"1", b"NX", b"PX", milliseconds) is not None


_REPLACE_VALUE = Script("""
local key, before, after = ARGV[1], ARGV[2], ARGV[3]
if (redis.call('GET', key) or '') ~= before then return 0 end
if after == '' then redis.call('DEL', key) else redis.call('SET', key, after, 'PX', ARGV[4]) end
return 1
""")


class RedisValueStore:
    """A `mcp_actors.abc.ValueStore` in Redis: a key that ends by itself for each value.

    Args:
        link: The connection.
        keys: The names of the keys.
    """

    spans_processes = True

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def __repr__(self) -> str:
        return "<RedisValueStore>"

    async def load(self, key: str) -> bytes | None:
        """See `mcp_actors.abc.ValueStore.load`."""
        found: bytes | None = await self._link.request("values", b"GET", self._keys.value(key))
        return found

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        """See `mcp_actors.abc.ValueStore.replace`."""
        milliseconds = max(1, int(seconds * 1000))
        arguments = (self._keys.value(key), before or b"", after or b"", milliseconds)
        weight = len(before or b"") + len(after or b"")
        return bool(await self._link.run_script("values", _REPLACE_VALUE, *arguments, weight=weight))


class RedisState:
    """The state that `RedisShared` opens. A `mcp_actors.abc.OpenState`.

    Args:
        redis: The server.
        keys: The names of the keys.
        lease: Seconds of this node's lease.
    """

    def __init__(self, redis: Redis, keys: Keys, lease: float) -> None:
        self.node = new_node_name()
        name = f"mcp-{self.node}"
        # Long events must not hold up the lease and the requests of others; a reader that waits holds up everything.
        self._links = (
            RedisLink(
                redis,
                name,
                keys.root,
                (RENEW, *directory.SCRIPTS, *bus.SCRIPTS, *stored_tasks.SCRIPTS, _REPLACE_VALUE),
            ),
            RedisLink(redis, name, keys.root, events.SCRIPTS),
            RedisLink(redis, name, keys.root),
        )
        link, writing, reading = self._links
        self.sessions = RedisSessionDirectory(link, keys, self.node)
        self.events = RedisEventLog(writing, keys, redis.timeout)
        self.bus = RedisBus(link, reading, keys, self.node)
        self.tasks = RedisTaskStore(link, keys, lease)
        self.replays = RedisReplayGuard(link, keys)
        self.values = RedisValueStore(link, keys)
        # Two attempts that take all the time they have, and the pauses between them.
        found_within = 2 * (CONNECTING * redis.timeout + LAST_PAUSE)
        self._lease = NodeLease(link, keys, self.node, lease, found_within)
        self._lease.on_lost += [self.sessions.lost, self.events.lost, self.bus.lost]
        self._place = redis.place
        self._has_begun = self._was_lost = False
        for each in self._links:
            each.on_change = self._look
        link.on_change = self._look_and_renew
        link.on_replaced, writing.on_replaced = self._lease.replaced, self._lease.mark_return

    @property
    def failure(self) -> str | None:
        """See `mcp_actors.abc.OpenState.failure`."""
        return next((each.failure for each in self._links if each.failure is not None), None)

    def __repr__(self) -> str:
        return f"<RedisState {self.node}>"

    def _look_and_renew(self) -> None:
        if self._links[0].is_up:
            self._lease.wake()
        self._look()

    def _look(self) -> None:
        """Logs one line when the first connection was lost, and one when all are there again."""
        lost = next((each for each in self._links if not each.is_up), None)
        if lost is not None and not self._was_lost and self._has_begun:
            log.warning(
                "redis was lost: calls that need it are refused", redis=self._place, cause=lost.failure
            )
            self._was_lost = True
        elif lost is None and self._was_lost:
            log.warning("redis is connected again", redis=self._place)
            self._was_lost = False

    async def begin(self, nursery: trio.Nursery) -> None:
        """Makes this process a node, and keeps it one as long as ``nursery`` is there.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """
        link, writing, reading = self._links
        start_again(nursery, STORE_UPKEEP, link.run, about="connection for requests")
        start_again(nursery, STORE_UPKEEP, writing.run, about="connection for events")
        start_again(nursery, STORE_UPKEEP, reading.run, about="connection for reading")
        await self._lease.take()
        await self.bus.begin()
        start_again(nursery, STORE_UPKEEP, self._lease.run, about="lease")
        start_again(nursery, STORE_UPKEEP, self.sessions.run, about="sessions")
        start_again(nursery, STORE_UPKEEP, self.bus.run, about="published events")
        start_again(nursery, STORE_UPKEEP, self.bus.read, about="reader")
        start_again(nursery, STORE_UPKEEP, self.events.run, about="log of events")
        start_again(nursery, STORE_UPKEEP, self.events.refresh, about="heads of streams")
        self._has_begun = True

    async def end(self) -> None:
        """Ends this node for the others: what waits is sent, then its lease ends.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the lease ends by itself.
        """
        await self.events.flush()
        await self.sessions.end()
        await self.bus.end()
        await self._lease.end()


class RedisShared:
    """State in a Redis server that the processes of one server share. A `mcp_actors.abc.SharedState`.

    It needs the extra ``redis``.

    Args:
        url: ``redis://[user:password@]host[:port][/database]``, ``rediss://…`` for TLS, or ``unix:///path``;
            ``redis+sentinel://[user:password@]host[:port],…/name[/database]`` with the hosts of Sentinels and the name
            that they have for the primary; or ``redis+cluster://[user:password@]host[:port],…`` with some servers of a
            Cluster. The last two are with TLS as ``rediss+…``. A URL is never shown with its password, and
            ``?password_file=PATH`` names a file with it, which is read again for each connection;
            ``?sentinel_username=…&sentinel_password_file=PATH`` is for the Sentinels. With TLS the server's certificate
            and its name are verified by the authorities of the system, or by those in ``?ssl_ca_certs=PATH``;
            ``?ssl_certfile=…&ssl_keyfile=…`` is a certificate of this side, and ``?ssl_check_hostname=false`` leaves
            the name out.
        lease: Seconds for which a node that is not heard of counts as there.
        timeout: Seconds for which an answer is waited for, and a connection.
        prefix: What every key begins with.

    Raises:
        ValueError: The URL is not one of Redis, or has a part that cannot be, or a number is not positive.
    """

    def __init__(
        self, url: str, *, lease: float = DEFAULT_LEASE, timeout: float = DEFAULT_TIMEOUT, prefix: str = "mcp"
    ) -> None:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            *others, last = (f"{each}://" for each in SCHEMES)
            raise ValueError(f"a URL of Redis begins with {', '.join(others)} or {last}, not with {scheme!r}")
        if min(lease, timeout) <= 0:
            raise ValueError("the lease and the timeout are seconds, and more than 0")
        self._redis = Redis(url, timeout)
        self._redis.check()
        if self._redis.is_cluster and {*"{}"} & {*prefix}:
            raise ValueError("in a cluster, the prefix is a part of the hash tag and has no braces")
        self._lease = lease
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<RedisShared {self._redis.place}>"

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[RedisState]:
        """See `mcp_actors.abc.SharedState.open`."""
        keys = Keys(self._prefix, name, is_cluster=self._redis.is_cluster)
        state = RedisState(self._redis, keys, self._lease)
        async with outliving(SHARED_STATE) as nursery:
            try:
                await state.begin(nursery)
                yield state
            finally:
                with trio.move_on_after(self._redis.timeout, shield=True):
                    try:
                        await state.end()
                    except SharedStateUnavailable as unavailable:
                        log.debug("a node ends without telling the others", cause=unavailable.cause)
