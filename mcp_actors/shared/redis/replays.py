"""The memory of names that were used, in Redis: a key that ends by itself for each."""

from __future__ import annotations

from mcp_actors.shared.redis.keys import Keys
from mcp_actors.shared.redis.link import RedisLink

__all__ = ["RedisReplayGuard"]


class RedisReplayGuard:
    """A `mcp_actors.abc.ReplayGuard` in Redis.

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
