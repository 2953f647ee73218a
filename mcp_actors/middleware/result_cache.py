"""Answers of a server that are given again while they are good."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import attrs
import trio

from mcp_actors._eras.era import EventKind
from mcp_actors._server.server_extension import has_asked
from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.middleware.callers import as_json
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.arguments import require_number

__all__ = ["ResultCache"]

# The requests whose results may be kept, with the kinds of changes after which they are old (MCP 2026-07-28, Caching).
# A resource that was removed, or replaced, is reported as a change of the list.
_KEPT: dict[str, tuple[EventKind, ...]] = {
    "tools/list": ("tools",),
    "prompts/list": ("prompts",),
    "resources/list": ("resources",),
    "resources/templates/list": ("resources",),
    "resources/read": ("resources", "resource_updated"),
}
# Claims that differ between two tokens of the same authorization (RFC 7519, section 4.1).
_OF_ONE_TOKEN = frozenset({"exp", "iat", "nbf", "jti", "auth_time"})
# Seconds. What is called good for longer is made again after a day, as clients do it.
MAX_AGE = 24 * 3600.0
# What a program may ask for: 1 TiB, and ten million results.
MOST_BYTES = 1 << 40
MOST_ENTRIES = 10_000_000
# Results that are looked at when another one is kept, whether they are good still.
_LOOKED_AT = 2

Key = tuple[str | bytes, ...]
Changes = tuple[int, ...]


@attrs.frozen
class _CachedResult:
    until: float
    changes: Changes
    result: bytes
    server: object
    """Is held so that its identity, which is part of the key, is not that of another server later."""


class ResultCache:
    """Middleware of a server: answers lists and reads again from memory, for as long as their hints say.

    MCP 2026-07-28, Caching: ``ttl_ms`` and ``cache_scope`` of the result, or else those of the `Server`. A ``private``
    result, which is the default, is given again to the same principal with the same scopes and claims only, and without
    a principal in the same session only. A result is old earlier when the server says that its list or any resource has
    changed. Clients of stateless revisions get the time that is left. Errors are not kept, and neither is the
    result of a call that has asked the client. Of calls that ask for the same at once, and find nothing, each one runs.
    What the middleware inside of it does is kept, too; a check of rights is added before it.

    Args:
        max_bytes: Bytes of all results together, 16 MiB by default; beyond it the oldest go.
        max_entries: Results that are kept.

    Raises:
        ValueError: A number is out of range.
        TypeError: One of them is not a number.
    """

    for_side: ClassVar = "server"

    def __init__(self, *, max_bytes: int = 16 * 1024 * 1024, max_entries: int = 4096) -> None:
        require_number("ResultCache(max_bytes=)", max_bytes, 1, MOST_BYTES, whole=True)
        require_number("ResultCache(max_entries=)", max_entries, 1, MOST_ENTRIES, whole=True)
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.hits = 0
        """Requests that were answered from memory, since the start."""
        self.held = 0
        """Bytes that are kept."""
        self._entries: dict[Key, _CachedResult] = {}
        self._loop: trio.lowlevel.TrioToken | None = None

    def __repr__(self) -> str:
        return f"<ResultCache {len(self._entries)} {self.held}/{self.max_bytes} bytes hits={self.hits}>"

    def __len__(self) -> int:
        """The number of results that are kept."""
        return len(self._entries)

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Answers from memory, or lets the call pass and keeps its result."""
        kinds = _KEPT.get(ctx.method)
        if kinds is None or has_asked(ctx):
            return await call_next()
        loop = trio.lowlevel.current_trio_token()
        if self._loop is not loop:
            # Another event loop has another clock, and its sessions have the same names.
            self.clear()
            self._loop = loop
        bus = ctx.server.bus
        public: Key = (ctx.era.version, ctx.method, str(id(bus)), encode_value(ctx.params))
        private = _owner(ctx)
        changes = tuple(bus.changes[kind] for kind in kinds)
        for key in (public, None if private is None else (*public, *private)):
            body = None if key is None else self._fresh(key, changes)
            if body is not None:
                self.hits += 1
                # The middleware round this one has to see what it would see without it.
                return ctx.era.structure(body, ctx.call.invocation.method.result)
        result = await call_next()
        if tuple(bus.changes[kind] for kind in kinds) == changes and not has_asked(ctx):
            self._keep(ctx, result, public, private, changes)
        return result

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self.held = 0

    def _fresh(self, key: Key, changes: Changes) -> dict[str, Any] | None:
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

    def _keep(self, ctx: Context, result: Any, public: Key, private: Key | None, changes: Changes) -> None:
        stamp = ctx.call.owner.responder.stamp
        ttl, scope = getattr(result, "ttl_ms", None), getattr(result, "cache_scope", None)
        ttl = stamp.get("ttl_ms", 0) if ttl is None else ttl
        scope = stamp.get("cache_scope", "private") if scope is None else scope
        key = public if scope == "public" else None if private is None else (*public, *private)
        if key is None or not ttl > 0 or not issubclass(type(result), ctx.call.invocation.method.result):
            return
        # Compared before it is divided: an integer may be too large for a float.
        ttl = min(ttl, int(MAX_AGE * 1000))
        self._drop(key)
        self._forget()
        written = as_json(ctx, attrs.evolve(result, ttl_ms=ttl, cache_scope=scope))
        size = len(written) + sum(map(len, key))
        if size > self.max_bytes:
            return
        while len(self._entries) >= self.max_entries or self.held + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _CachedResult(trio.current_time() + ttl / 1000, changes, written, ctx.server.bus)
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
    """Returns the texts that distinguish private results, ``None`` where it is unknown whose they are."""
    principal = ctx.principal
    if principal is None:
        return None if ctx.session is None else (f"session {ctx.session.name}",)
    try:
        claims = sorted(
            (name, value) for name, value in principal.claims.items() if name not in _OF_ONE_TOKEN
        )
        known = hashlib.sha256(encode_value(claims)).digest()
    except (TypeError, ValueError):
        # JSON cannot hold what a program's own check has put there.
        return None
    return (f"principal {principal.key}", known, *sorted(principal.scopes))
