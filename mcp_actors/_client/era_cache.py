"""The era that the server at each URL speaks, as far as this process knows, so that the next client need not probe."""

from __future__ import annotations

from mcp_actors._eras.era import Era

__all__ = ["ERA_CACHE", "EraCache"]

MAX_ENTRIES = 1024


class EraCache:
    """Eras by URL; the oldest entry is dropped when there are more than ``max_entries``.

    An entry may be wrong, because a server can be replaced: it only says what to try first.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._eras: dict[str, Era] = {}

    def __repr__(self) -> str:
        return f"<EraCache {len(self._eras)}/{self._max_entries}>"

    def get(self, url: str) -> Era | None:
        """Returns the era that the server at ``url`` spoke last."""
        return self._eras.get(url)

    def put(self, url: str, era: Era) -> None:
        """Remembers an era; the entry is the newest then."""
        self._eras.pop(url, None)
        self._eras[url] = era
        if len(self._eras) > self._max_entries:
            del self._eras[next(iter(self._eras))]


ERA_CACHE = EraCache()
"""The cache that all clients of a process share."""
