"""The lease of a node: a key that ends by itself when the node does not renew it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.shared.redis.keys import Keys
from mcp_actors.shared.redis.link import RedisLink, Script

__all__ = ["MAY_RETURN", "SCRIPTS", "NodeLease", "time_to_return"]

# Renewals in the time of a lease: two may fail.
RENEWALS = 3
# Seconds for which it is known that a node has ended, and was not only away.
ENDED = 3600

# For other scripts: whether nodes and sessions that are not there may be written again, as Redis has forgotten them.
# The keys `Keys.known` and `Keys.returning`, milliseconds.
MAY_RETURN = (
    "local function may_return(known, returning, milliseconds) "
    "if redis.call('EXISTS', known) == 0 then "
    "redis.call('SET', known, '1') redis.call('SET', returning, '1', 'PX', milliseconds) end "
    "return redis.call('EXISTS', returning) == 1 "
    "end "
)
NOTICE = Script(MAY_RETURN + "may_return(ARGV[1], ARGV[2], ARGV[3])")
SCRIPTS = (NOTICE,)


def time_to_return(lease: float) -> int:
    """Returns the milliseconds in which every node that is there has renewed its lease, and what belongs to it."""
    return max(1, int(lease * 1000 / 2))


class NodeLease:
    """Tells all nodes that this one is there.

    Args:
        link: The connection.
        keys: The names of the keys.
        node: The node's name.
        seconds: The time for which the others believe it without hearing of it.
    """

    def __init__(self, link: RedisLink, keys: Keys, node: str, seconds: float) -> None:
        self._link = link
        self._key = keys.node(node)
        self._ended = keys.ended(node)
        self._known = keys.known
        self._returning = keys.returning
        self._seconds = seconds
        self._wake = trio.Event()
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
        await self._link.request("bus", b"SET", self._known, b"1", b"NX")
        await self._renew()

    async def run(self) -> None:
        """Renews the lease until it is cancelled."""
        while True:
            with trio.move_on_after(self._seconds / RENEWALS):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                was_there = await self._renew()
            except SharedStateUnavailable as error:
                log.debug("a lease is not renewed", cause=error.cause)
                continue
            if not was_there:
                log.warning("the lease of this node was lost in redis, and is taken again")
                for each in self.on_lost:
                    each()

    async def _renew(self) -> bool:
        milliseconds = int(self._seconds * 1000)
        before = await self._link.request("bus", b"SET", self._key, b"1", b"PX", milliseconds, b"GET")
        if before is None:
            milliseconds = time_to_return(self._seconds)
            await self._link.run_script("bus", NOTICE, self._known, self._returning, milliseconds)
        return before is not None

    async def end(self) -> None:
        """Ends this node for all others at once.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the lease ends by itself.
        """
        await self._link.request("bus", b"SET", self._ended, b"1", b"EX", ENDED)
        await self._link.request("bus", b"DEL", self._key)
