"""The lease of a node: a key that ends by itself when the node does not renew it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.shared.redis.keys import Keys
from mcp_actors.shared.redis.link import RedisLink, Script

__all__ = ["MAY_RETURN", "RENEW", "NodeLease"]

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
    "if not before and ARGV[4] ~= '0' then redis.call('SET', ARGV[3], '1', 'PX', ARGV[4]) end "
    "return missing and 1 or 0"
)


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
        self._returning = keys.returning
        self._seconds = seconds
        self._wake = trio.Event()
        self._was_missing = False
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
        """Renews the lease until it is cancelled."""
        # In half a lease, every node that is there has renewed its own and what belongs to it.
        returning = int(self._seconds * 1000 / 2) or 1
        while True:
            with trio.move_on_after(self._seconds / RENEWALS):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                was_missing = await self._renew(returning)
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

    async def end(self) -> None:
        """Ends this node for all others at once.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the lease ends by itself.
        """
        await self._link.request("bus", b"SET", self._ended, b"1", b"EX", ENDED)
        await self._link.request("bus", b"DEL", self._key)
