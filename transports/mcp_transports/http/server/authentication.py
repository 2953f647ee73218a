"""The part of a listener that knows its callers: asked about every request before it is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from inspect import isawaitable
from typing import Protocol

from mcp_actors.errors import InsufficientScope
from mcp_actors.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.error_responses import Header, Refusal

__all__ = ["Authenticate", "Authentication", "HookAuthentication", "Identity"]

Authenticate = Callable[
    [Request], "str | Principal | Refusal | Awaitable[str | Principal | Refusal | None] | None"
]

# The caller, a refusal, or ``None`` for a caller that is served without being anybody.
Identity = Principal | Refusal | None

# Names whose principals are remembered, so that a request of a known name makes none.
_MOST_NAMES = 1024


class Authentication(Protocol):
    """The part of a listener that knows its callers."""

    @property
    def documents(self) -> Mapping[str, bytes]:
        """JSON documents by path, which everybody may read."""

    def identify(self, request: Request) -> Identity | Awaitable[Identity]:
        """Returns who sent a request, or what is awaited for that."""

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        """Returns what the answer to a request of ``principal`` carries."""

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        """Returns the answer to a caller without all ``needed`` scopes.

        ``repeats_granted`` says that clients of this revision ask for no more than the answer names, so that it names
        the scopes that they have too.
        """


class HookAuthentication:
    """The callers that a program's own function knows.

    Args:
        authenticate: ``authenticate`` of `HttpServerTransport`.
    """

    documents: Mapping[str, bytes] = {}

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    def identify(self, request: Request) -> Identity | Awaitable[Identity]:
        """Calls the function. Raises what it raises, and `TypeError` if it returns something else."""
        found = self._authenticate(request)
        if isinstance(found, str):
            return _named(found)
        return _later(found) if isawaitable(found) else _identity(found)

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        return ()

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        error = InsufficientScope(needed)
        return Refusal(403, error.message, error.code)


async def _later(waiting: Awaitable[str | Principal | Refusal | None]) -> Identity:
    return _identity(await waiting)


def _identity(found: object) -> Identity:
    if found is None or isinstance(found, Principal | Refusal):
        return found
    if isinstance(found, str):
        return _named(found)
    raise TypeError(
        f"authenticate returned a {type(found).__name__}: return a name, a Principal, a Refusal or None"
    )


@lru_cache(_MOST_NAMES)
def _named(name: str) -> Principal:
    return Principal(name)
