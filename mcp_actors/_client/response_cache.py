"""The client's response cache: answers stay good for as long as the server said.

MCP 2026-07-28, Caching: ``ttlMs`` of a result, and what invalidates it earlier.
"""

from __future__ import annotations

from typing import Any

from mcp_actors._wire.codec import encode_value

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


class ResponseCache:
    """Answers by method and params; the oldest are dropped. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, bytes], tuple[float, dict[str, Any]]] = {}
        self.changes = 0

    def __repr__(self) -> str:
        return f"<ResponseCache {len(self._entries)}/{MAX_ENTRIES}>"

    def get(self, method: str, params: dict[str, Any], now: float) -> dict[str, Any] | None:
        """Returns the answer if it is still fresh."""
        if not self._entries:
            return None
        key = (method, encode_value(params))
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] <= now:
            del self._entries[key]
            return None
        return entry[1]

    def put(
        self, method: str, params: dict[str, Any], result: dict[str, Any], now: float, changes: int
    ) -> None:
        """Keeps an answer that says how long it is good for; without ``ttlMs``, or with 0, it is not kept.

        ``changes`` is what this object's was when the question was sent: an answer that was overtaken by a change
        may be an old one, and is not kept either.
        """
        ttl = result.get("ttlMs")
        if changes != self.changes or not isinstance(ttl, int | float) or isinstance(ttl, bool) or ttl <= 0:
            return
        if len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[method, encode_value(params)] = (now + ttl / 1000, result)

    def invalidate(self, kind: str, uri: str | None) -> None:
        """Drops what a change on the server makes stale.

        An update may be of something below the URI, so all resources that were read are dropped.
        """
        self.discard(*_STALE[kind])

    def discard(self, *methods: str) -> None:
        """Drops every answer to these methods, all pages of a list."""
        self.changes += 1
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] not in methods}

    def clear(self) -> None:
        """Drops everything: the server is another one, or was started anew."""
        self.changes += 1
        self._entries.clear()
