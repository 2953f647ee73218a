"""The callers that may look at a server: asked about every request but that for the page, which is no secret."""

from __future__ import annotations

import math
import secrets
import time
from functools import partial
from typing import NamedTuple, Protocol

from mcp_actors.logging import log
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Authentication
from mcp_transports.http.server.error_responses import Refusal

__all__ = ["SHORTEST_TOKEN", "AdminAccess", "AuthenticatedAccess", "Caller", "OwnerAccess", "TokenAccess"]

SHORTEST_TOKEN = 16
"""Characters of a token that somebody has chosen."""

_NO_TOKEN = Refusal(
    401,
    "the live view needs its token: Authorization: Bearer TOKEN",
    headers=(("www-authenticate", 'Bearer realm="mcp-actors admin"'),),
)
_NOBODY = Refusal(403, "the live view is for authenticated callers")


class Caller(NamedTuple):
    """Somebody who may look."""

    name: str
    """In words for the log."""
    seconds_left: float = math.inf
    """Seconds for which a stream of theirs may stay open."""


class AdminAccess(Protocol):
    """Knows who may look."""

    async def caller(self, request: Request) -> Caller | Refusal:
        """Returns who asks, or the answer to somebody who may not look."""


class OwnerAccess:
    """Everybody who gets as far as this: `OwnedListener` lets in the right users alone."""

    async def caller(self, request: Request) -> Caller:
        return Caller(request.peer)


class TokenAccess:
    """Whoever has the token.

    Args:
        token: The secret.

    Raises:
        ValueError: It is shorter than `SHORTEST_TOKEN`, or no ASCII text.
    """

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST_TOKEN or not token.isascii():
            raise ValueError(f"a token has at least {SHORTEST_TOKEN} characters, of ASCII")
        self._token = token.encode()

    def __repr__(self) -> str:
        return "<TokenAccess>"

    async def caller(self, request: Request) -> Caller | Refusal:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, and in the same way whatever was sent.
        equal = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and equal:
            return Caller(f"token from {request.peer}")
        log.info("a caller without the token was refused at the admin endpoint", peer=request.peer)
        return _NO_TOKEN


class AuthenticatedAccess:
    """Whoever a program's own check, or an authorization server, vouches for.

    Args:
        authentication: What knows the callers.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    async def caller(self, request: Request) -> Caller | Refusal:
        found = self._authentication.identify(request)
        identity = await found() if isinstance(found, partial) else found
        if identity is None:
            return _NOBODY
        if isinstance(identity, Refusal):
            return identity
        return Caller(f"{identity.subject} from {request.peer}", identity.seconds_left(time.time()))
