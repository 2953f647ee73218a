"""The client's response cache: answers stay good for as long as the server said.

MCP 2026-07-28, Caching: ``ttlMs`` of a result, and what invalidates it earlier.
"""

from __future__ import annotations

from typing import Any

from mcp_actors._wire.codec import decode_value, encode_value

__all__ = ["ResponseCache"]

# Which answers a change notification makes stale, whatever their time to live.
_STALE = {
    "tools": ("tools/list",),
    "prompts": ("prompts/list",),
    "resources": ("resources/list", "resources/templates/list"),
    "resource_updated": ("resources/read",),
}

# Enough for the lists and resources a program works with; beyond it the oldest answer goes.
MAX_ENTRIES = 256
# Seconds. What a server calls good for longer is asked for again after a day.
MAX_AGE = 24 * 3600.0


class ResponseCache:
    """Answers by method and params; the oldest are dropped. Times are those of the caller's clock, in seconds.

    Answers are kept as bytes, which are what ``max_bytes`` bounds: as objects they take many times that.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[tuple[str, bytes], tuple[float, bytes]] = {}
        self.changes = 0

    def __repr__(self) -> str:
        return f"<ResponseCache {len(self._entries)}/{MAX_ENTRIES} {self._bytes}/{self._max_bytes} bytes>"

    def get(self, method: str, params: dict[str, Any], now: float) -> dict[str, Any] | None:
        """Returns the answer if it is still fresh."""
        if not self._entries:
            return None
        key = (method, encode_value(params))
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] <= now:
            self._drop(key)
            return None
        answer: dict[str, Any] = decode_value(entry[1])
        return answer

    def put(
        self, method: str, params: dict[str, Any], result: dict[str, Any], now: float, changes: int
    ) -> None:
        """Keeps an answer that says how long it is good for; without ``ttlMs``, or with 0, it is not kept.

        ``changes`` is what this object's was when the question was sent: an answer that was overtaken by a change
        may be an old one, and is not kept either. It takes the place of an older one that was refreshed.
        """
        key = (method, encode_value(params))
        self._drop(key)
        ttl = result.get("ttlMs")
        # Compared before it is divided: an integer of a peer may be too large for a float.
        if (
            changes != self.changes
            or not isinstance(ttl, int | float)
            or isinstance(ttl, bool)
            or not ttl > 0
        ):
            return
        answer = encode_value(result)
        size = len(key[1]) + len(answer)
        if size > self._max_bytes:
            return
        while len(self._entries) >= MAX_ENTRIES or self._bytes + size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = (now + min(ttl, MAX_AGE * 1000) / 1000, answer)
        self._bytes += size

    def _drop(self, key: tuple[str, bytes]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(key[1]) + len(entry[1])

    def invalidate(self, kind: str, uri: str | None) -> None:
        """Drops what a change on the server makes stale.

        An update may be of something below the URI, so all resources that were read are dropped.
        """
        self.discard(*_STALE[kind])

    def discard(self, *methods: str) -> None:
        """Drops every answer to these methods, all pages of a list."""
        self.changes += 1
        for key in [key for key in self._entries if key[0] in methods]:
            self._drop(key)

    def clear(self) -> None:
        """Drops everything: the server is another one, or was started anew."""
        self.changes += 1
        self._entries.clear()
        self._bytes = 0
