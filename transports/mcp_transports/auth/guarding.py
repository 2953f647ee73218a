"""The driver of a resource server: it asks the checks of `mcp_actors.auth` for a listener over HTTP or WebSocket.

The checks fetch metadata and keys, or ask about tokens. Equal requests of many tasks are made once, by one of them, and
the others wait for its answer (`JoinedFetches`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from urllib.parse import urlsplit

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.auth import AccessGuard, Denial, ResourceServer
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.supervision.principal import Principal
from mcp_transports.auth.fetcher import Fetcher
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.responses import Header, Identity, IdentityLater, Refusal

__all__ = ["JoinedFetches", "TokenAuthentication"]

# After the check they are not needed, and a function that passes on the headers of its request passes on no token.
_SECRETS = ("authorization", "dpop")

# Requests to authorization servers at a time: unknown tokens cannot make us a tool against these servers.
MAX_FETCHES = 32
# Seconds that a request may wait for its turn and its answer. One request takes 10 s at most.
PATIENCE = 20.0

_BUSY = FetchFailed("the authorization server has too many requests of ours to answer at once")

Answer = Fetched | FetchFailed
_Key = tuple[str, str, tuple[tuple[str, str], ...], bytes | None]


class TokenAuthentication:
    """The callers of one listener, by their access tokens.

    Args:
        settings: A `ResourceServer`.

    Raises:
        TypeError: ``settings`` is something else.
        ImportError: The extra ``auth`` is missing, and the settings need it.
    """

    def __init__(self, settings: object) -> None:
        if not isinstance(settings, ResourceServer):
            raise TypeError(
                f"auth is a {type(settings).__name__}: write auth=ResourceServer(resource=…, issuer=…), which is in "
                "mcp_actors.auth"
            )
        self._guard = AccessGuard(settings)
        self._required = frozenset(settings.scopes)
        self._fetchers = {
            urlsplit(issuer).netloc: Fetcher(settings.url_policy, issuer) for issuer in settings.issuer
        }
        # A host of none of several issuers is in the network of none.
        only = settings.issuer[0] if len(settings.issuer) == 1 else None
        self._others = Fetcher(settings.url_policy, only)
        self._joined = JoinedFetches(self._fetch)
        mirror = self._guard.mirror_path
        self.documents: Collection[str] = [*self._guard.documents, *([] if mirror is None else [mirror])]

    def __repr__(self) -> str:
        return f"<TokenAuthentication {self._guard!r}>"

    def begin(self, handler: ServerHandler) -> None:
        """Shares the memory of used proofs with the other processes of the server that is served from now on."""
        replays = handler.shared.replays
        self._guard.share(replays if replays.spans_processes else None, handler.key_for("DPoP nonces"))

    def document(self, path: str) -> bytes | Awaitable[bytes | Refusal]:
        """Returns a document, or what is awaited for it."""
        known = self._guard.documents.get(path)
        return self._mirror() if known is None else known

    async def _mirror(self) -> bytes | Refusal:
        found = await self._guard.mirror(self._joined)
        return _refusal(found) if isinstance(found, Denial) else found

    def identify(self, request: Request) -> Identity | IdentityLater:
        """Returns who sent a request; without waiting if its token was verified not long ago."""
        found = self._guard.known(request)
        return partial(self._check, request) if found is None else _identity(request, found)

    async def _check(self, request: Request) -> Identity:
        return _identity(request, await self._guard.check(request, self._joined))

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        return self._guard.response_headers(principal)

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        assert principal is not None
        # Every operation needs the scopes of the listener too, and a challenge names all that it needs (SEP-2350).
        return _refusal(
            self._guard.lacking(principal, needed | self._required, repeats_granted=repeats_granted)
        )

    async def _fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        """Makes a request for one of the issuers: what leads to its network may stay in its network."""
        return await self._fetchers.get(urlsplit(fetch.url).netloc, self._others).fetch(fetch)


def _identity(request: Request, found: Principal | Denial) -> Principal | Refusal:
    if isinstance(found, Denial):
        return _refusal(found)
    for name in _SECRETS:
        request.headers.pop(name, None)
    return found


def _refusal(denial: Denial) -> Refusal:
    # The type of every answer's body is JSON, and is sent with it.
    headers = [each for each in denial.headers if each[0].lower() != "content-type"]
    return Refusal(denial.status, headers=headers, body=denial.body)


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
