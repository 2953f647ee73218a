"""Equal requests of many tasks: one of them makes the request, and the others wait for its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed

__all__ = ["JoinedFetches"]

# Requests to authorization servers at a time: tokens that nobody knows cannot make us a tool against these.
MAX_FETCHES = 32
# Seconds that a request may wait for its turn and its answer. One request takes 10 s at most.
PATIENCE = 20.0

_BUSY = FetchFailed("the authorization server has too many requests of ours to answer at once")

Answer = Fetched | FetchFailed
_Key = tuple[str, str, tuple[tuple[str, str], ...], bytes | None]


@attrs.define(eq=False)
class _Flight:
    """A request that is being made."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Answer | None = None


class JoinedFetches:
    """Carries out the `Fetch` effects of a resource server: equal ones at one time are one, and only some are made at a
    time.

    This holds for ``POST`` too, because a resource server asks by it, about a token, and changes nothing.

    Args:
        fetch: Makes one request.
    """

    def __init__(self, fetch: Callable[[Fetch], Awaitable[Answer]]) -> None:
        self._fetch = fetch
        self._flights: dict[_Key, _Flight] = {}
        self._places = trio.CapacityLimiter(MAX_FETCHES)

    def __repr__(self) -> str:
        return f"<JoinedFetches {len(self._flights)} in flight>"

    async def __call__(self, fetch: Fetch) -> Answer:
        """Returns the answer to a request, within `PATIENCE` seconds.

        Cancelled, it leaves a request that others wait for to one of them, who makes it anew.
        """
        with trio.move_on_after(PATIENCE):
            return await self._joined(fetch)
        return _BUSY

    async def _joined(self, fetch: Fetch) -> Answer:
        key = (fetch.method, fetch.url, tuple(fetch.headers), fetch.body)
        while (flight := self._flights.get(key)) is not None:
            await flight.done.wait()
            if flight.answer is not None:
                return flight.answer
        flight = self._flights[key] = _Flight()
        try:
            async with self._places:
                flight.answer = await self._fetch(fetch)
            return flight.answer
        finally:
            del self._flights[key]
            flight.done.set()
