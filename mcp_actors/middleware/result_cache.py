"""Answers of a server that are given again while they are good."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from mcp_actors._eras.changes import EventKind
from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.context import Context
from mcp_actors.middleware.callers import as_json
from mcp_actors.server import CallNext

__all__ = ["ResultCache"]

# The requests whose results may be kept, with the kind of change after which they are old (MCP 2026-07-28, Caching).
_KEPT: dict[str, EventKind] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resource_updated",
}
# Seconds. What is called good for longer is made again after a day, as clients do it.
MAX_AGE = 24 * 3600.0
# Results that are looked at when another one is kept, whether they are good still.
_LOOKED_AT = 2

Key = tuple[str, ...]


@attrs.frozen
class _CachedResult:
    until: float
    changes: int
    result: bytes


class ResultCache:
    """Middleware of a server: answers lists and reads again from memory, for as long as their hints say.

    MCP 2026-07-28, Caching: ``ttl_ms`` and ``cache_scope`` of the result, or else those of the `Server`. A ``private``
    result, which is the default, is given again to the same principal with the same scopes only, and without a
    principal in the same session only. A result is old earlier when the server says that its list or any resource has
    changed. Clients of stateless revisions are told the time that is left. Answers to questions are part of a call that
    is never kept. What the middleware inside of it does is kept, too; a check of rights is added before it.

    Args:
        max_bytes: Bytes of all results together, 16 MiB by default; beyond it the oldest go.
        max_entries: Results that are kept.

    Raises:
        ValueError: A number is less than 1.
    """

    def __init__(self, *, max_bytes: int = 16 * 1024 * 1024, max_entries: int = 4096) -> None:
        if max_bytes < 1 or max_entries < 1:
            raise ValueError(f"ResultCache(max_bytes={max_bytes}, max_entries={max_entries}): at least 1")
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.hits = 0
        """Requests that were answered from memory, since the start."""
        self.held = 0
        """Bytes that are kept."""
        self._entries: dict[Key, _CachedResult] = {}

    def __repr__(self) -> str:
        return f"<ResultCache {len(self._entries)} {self.held}/{self.max_bytes} bytes hits={self.hits}>"

    def __len__(self) -> int:
        """The number of results that are kept."""
        return len(self._entries)

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Answers from memory, or lets the call pass and keeps its result."""
        kind = _KEPT.get(ctx.method)
        invocation = ctx.call.invocation
        if kind is None or invocation.answers is not None or invocation.state is not None:
            return await call_next()
        asked = encode_value(ctx.params).decode()
        public: Key = (ctx.era.version, ctx.method, asked)
        private = _owner(ctx)
        changes = ctx.server.bus.changes[kind]
        for key in (public, None if private is None else (*public, *private)):
            body = None if key is None else self._fresh(key, changes)
            if body is not None:
                self.hits += 1
                return body
        result = await call_next()
        if ctx.server.bus.changes[kind] == changes:
            self._keep(ctx, result, public, private, changes)
        return result

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self.held = 0

    def _fresh(self, key: Key, changes: int) -> dict[str, Any] | None:
        kept = self._entries.get(key)
        if kept is None:
            return None
        left = kept.until - trio.current_time()
        if left <= 0 or kept.changes != changes:
            self._drop(key)
            return None
        body: dict[str, Any] = decode_value(kept.result)
        if "ttlMs" in body:
            body["ttlMs"] = int(left * 1000)
        return body

    def _keep(self, ctx: Context, result: Any, public: Key, private: Key | None, changes: int) -> None:
        stamp = ctx.call.owner.responder.stamp
        ttl, scope = getattr(result, "ttl_ms", None), getattr(result, "cache_scope", None)
        ttl = stamp.get("ttl_ms", 0) if ttl is None else ttl
        scope = stamp.get("cache_scope", "private") if scope is None else scope
        key = public if scope == "public" else None if private is None else (*public, *private)
        if key is None or not ttl > 0 or not attrs.has(type(result)):
            return
        self._drop(key)
        self._forget()
        written = as_json(ctx, attrs.evolve(result, ttl_ms=ttl, cache_scope=scope))
        size = len(written) + sum(map(len, key))
        if size > self.max_bytes:
            return
        while len(self._entries) >= self.max_entries or self.held + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _CachedResult(trio.current_time() + min(ttl / 1000, MAX_AGE), changes, written)
        self.held += size

    def _forget(self) -> None:
        """Drops the oldest results if they are good no longer: faster than others come, so that none stays for ever."""
        now = trio.current_time()
        for _ in range(_LOOKED_AT):
            oldest = next(iter(self._entries), None)
            if oldest is None or self._entries[oldest].until > now:
                return
            self._drop(oldest)

    def _drop(self, key: Key) -> None:
        kept = self._entries.pop(key, None)
        if kept is not None:
            self.held -= len(kept.result) + sum(map(len, key))


def _owner(ctx: Context) -> Key | None:
    """Returns the texts by which private results are told apart, ``None`` where nobody knows whose they are."""
    principal = ctx.principal
    if principal is not None:
        return (f"principal {principal.key}", *sorted(principal.scopes))
    return None if ctx.session is None else (f"session {ctx.session.name}",)
