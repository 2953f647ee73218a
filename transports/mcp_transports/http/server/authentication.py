"""The part of a listener that knows its callers: asked about every request before it is served."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import lru_cache, partial
from inspect import isawaitable
from typing import Any, Protocol

import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import InsufficientScope
from mcp_actors.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.error_responses import Header, Refusal

__all__ = [
    "Authenticate",
    "Authentication",
    "HookAuthentication",
    "Identity",
    "IdentityLater",
    "Protection",
    "access_scope",
    "authentication_of",
]

Authenticate = Callable[
    [Request], "str | Principal | Refusal | Awaitable[str | Principal | Refusal | None] | None"
]

# The caller, a refusal, or ``None`` for a caller that is served without being anybody.
Identity = Principal | Refusal | None

# Called and awaited for an identity. A `partial`, so that it is distinguished by its class.
IdentityLater = partial[Coroutine[Any, Any, Identity]]

# Names whose principals are remembered, so that a request of a known name makes none.
_MOST_NAMES = 1024


class Protection(Protocol):
    """The settings of a protected server: a `mcp_actors.auth.ResourceServer`."""

    @property
    def resource(self) -> str:
        """The URL of the server for its clients."""


class Authentication(Protocol):
    """The part of a listener that knows its callers."""

    @property
    def documents(self) -> Collection[str]:
        """The paths of JSON documents that everybody may read."""

    def begin(self, handler: ServerHandler) -> None:
        """Is called before the first request of each serve."""

    def document(self, path: str) -> bytes | Awaitable[bytes | Refusal]:
        """Returns the document at one of the paths, or what is awaited for it."""

    def identify(self, request: Request) -> Identity | IdentityLater:
        """Returns who sent a request, or a function that waits for that."""

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

    documents: Collection[str] = ()

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    def begin(self, handler: ServerHandler) -> None:
        """Does nothing: the function knows what it needs."""

    def document(self, path: str) -> bytes:
        """Raises `KeyError`: there is none."""
        raise KeyError(path)

    def identify(self, request: Request) -> Identity | IdentityLater:
        """Calls the function. Raises what it raises, and `TypeError` if it returns something else."""
        found = self._authenticate(request)
        if isinstance(found, str):
            return _named(found)
        return partial(_later, found) if isawaitable(found) else _identity(found)

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        return ()

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        error = InsufficientScope(needed)
        return Refusal(403, error.message, error.code)


def authentication_of(authenticate: Authenticate | None, auth: Protection | None) -> Authentication | None:
    """Returns what knows the callers of a listener, ``None`` if nobody has to be known.

    Args:
        authenticate: The function of a program that does it itself.
        auth: The settings of a resource server.

    Raises:
        ValueError: Both are given.
        TypeError: ``auth`` is no `ResourceServer`.
        ImportError: The extra ``auth`` is missing, and the settings need it.
    """
    if authenticate is not None and auth is not None:
        raise ValueError("give auth= or authenticate=, not both: one of them has to say who sent a request")
    if auth is not None:
        # A server without it imports none of it.
        guarding: Any = importlib.import_module("mcp_transports.auth.guarding")
        made: Authentication = guarding.TokenAuthentication(auth)
        return made
    return None if authenticate is None else HookAuthentication(authenticate)


def access_scope(principal: Principal | None) -> trio.CancelScope:
    """Returns a scope that is cancelled some time after the access of ``principal``: see `Principal.seconds_left`."""
    if principal is None or principal.expires_at is None:
        return trio.CancelScope()
    return trio.CancelScope(deadline=trio.current_time() + principal.seconds_left(time.time()))


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
