"""A bound on the requests of each caller in a second."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import trio

from mcp_actors.errors import Overloaded
from mcp_actors.middleware.callers import caller_of
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.logging import log

__all__ = ["RateLimit"]

# Tokens in a second: one in eleven days, and more than any processor spends.
LOWEST_RATE = 1e-6
HIGHEST_RATE = 1e9
# Callers of whom something is kept; beyond it the one is forgotten that has called least recently.
MAX_CALLERS = 100_000
# Callers that are looked at with each request, whether anything has to be kept of them still: with more than one,
# those that are gone are forgotten faster than others come.
_LOOKED_AT = 2


class RateLimit:
    """Middleware of a server: each caller has a bucket of tokens, which fills, and a request takes one.

    A request that finds no token is refused with `Overloaded`, which says when there is one; a notification for which
    there is a function is dropped. Everything counts but ``ping`` and ``initialize``, which pass no middleware. Nothing
    waits. Of a caller whose bucket is full again nothing is kept. `caller_of` says who is a caller.

    Args:
        rate: Tokens that a bucket gets in a second.
        burst: Tokens that it holds; by default those of one second, and at least 1.

    Raises:
        ValueError: A number is out of range.
        TypeError: One of them is not a number.
    """

    for_side: ClassVar = "server"

    def __init__(self, rate: float, *, burst: int | None = None) -> None:
        require_number("RateLimit(rate=)", rate, LOWEST_RATE, HIGHEST_RATE)
        holds = max(1, math.ceil(rate)) if burst is None else burst
        require_number("RateLimit(burst=)", holds, 1, HIGHEST_RATE, whole=True)
        self.rate = rate
        self.burst = holds
        # Seconds after which a bucket is full at the latest, with some more for rounding errors.
        self._longest = holds / rate * 1.01 + 1.0
        self.refused = 0
        """Requests and notifications that were refused since the start."""
        # The times at which the buckets are full, by caller; the one that has called least recently is the first.
        self._full_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<RateLimit {self.rate:g}/s burst={self.burst} callers={len(self)}>"

    def __len__(self) -> int:
        """The number of callers of whom something is kept."""
        return len(self._full_at)

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Lets a request pass if its caller has a token.

        Raises:
            Overloaded: It has none.
        """
        wait = self._take(caller_of(ctx))
        if wait > 0:
            raise Overloaded.for_caller("requests in a second", self.rate, wait)
        return await call_next()

    async def notification(self, ctx: Context, call_next: CallNext, /) -> None:
        """Lets a notification pass if its caller has a token, and drops it if not."""
        if self._take(caller_of(ctx)) > 0:
            log.debug("notification dropped: its caller sends too many", method=ctx.method)
        else:
            await call_next()

    def _take(self, caller: str) -> float:
        """Takes a token; returns 0, or the seconds until there is one."""
        now = trio.current_time()
        self._forget(now)
        full_at = self._full_at.pop(caller, now)
        if not now <= full_at <= now + self._longest:
            # It was full some time ago, or is of another event loop, whose clock began elsewhere.
            full_at = now
        # An empty bucket is full after burst / rate seconds; one with a token is nearer to it.
        wait = full_at - now - (self.burst - 1) / self.rate
        # The rest of a rounding error is not waited for.
        if wait > 1e-9:
            self.refused += 1
            self._full_at[caller] = full_at
            return wait
        self._full_at[caller] = full_at + 1 / self.rate
        return 0.0

    def _forget(self, now: float) -> None:
        latest = now + self._longest
        for _ in range(_LOOKED_AT):
            if not self._full_at:
                return
            first = next(iter(self._full_at))
            if now < self._full_at[first] <= latest and len(self._full_at) < MAX_CALLERS:
                return
            del self._full_at[first]
