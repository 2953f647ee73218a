"""A protected server at a URL, whose tokens are known from the start, and its callers."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors import Context
from mcp_actors.auth import Expected, Fetching, ResourceServer, TokenInvalid, VerifierUnavailable
from mcp_actors.supervision.principal import Principal
from tests.transports.http.site import Site, site

RESOURCE = "https://mcp.example.org/mcp"
ISSUER = "https://as.example.org"
METADATA = 'resource_metadata="https://mcp.example.org/.well-known/oauth-protected-resource/mcp"'


WELL_KNOWN = "/.well-known/oauth-protected-resource"
NO_TOKEN = f'Bearer {METADATA}, scope="mcp:use"'
INVALID = (
    'Bearer error="invalid_token", error_description="The access token is not valid for this server.", '
    f'{METADATA}, scope="mcp:use"'
)
MALFORMED = (
    'Bearer error="invalid_request", '
    f'error_description="The Authorization header must have exactly one access token.", {METADATA}'
)


def lacking(scope: str) -> str:
    return (
        'Bearer error="insufficient_scope", error_description="The access token lacks a scope that this needs.", '
        f'{METADATA}, scope="{scope}"'
    )


def caller(subject: str, *scopes: str, client: str = "an app", lasts: float = 3600.0) -> Principal:
    return Principal(subject, ISSUER, client, {"mcp:use", *scopes}, expires_at=time.time() + lasts)


PRINCIPALS = {
    "ann": caller("ann", "files:read"),
    "ann-renewed": caller("ann", "files:read"),
    "ann-more": caller("ann", "files:read", "files:write"),
    "bob": caller("bob", "files:read"),
    "ann-elsewhere": caller("ann", "files:read", client="another app"),
    "ann-useless": Principal("ann", ISSUER, "an app"),
}


@attrs.define
class Tokens:
    """A `Verifier` that knows its tokens; ``down`` is its authorization server out of order."""

    remembered_for: float = 60.0
    down: bool = False
    asked: int = 0
    principals: dict[str, Principal] = attrs.field(factory=lambda: dict(PRINCIPALS))

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.down:
            raise VerifierUnavailable(retry_after=7)
        if token not in self.principals:
            raise TokenInvalid("unknown")
        return self.principals[token]


def resource_server(tokens: Tokens | None = None, **settings: Any) -> ResourceServer:
    return ResourceServer(
        **{
            "resource": RESOURCE,
            "issuer": ISSUER,
            "scopes": ["mcp:use"],
            "verifier": tokens or Tokens(),
            **settings,
        }
    )


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def protected_site(tokens: Tokens | None = None, **options: Any) -> AsyncIterator[Site]:
    """A `Site` with tools that need scopes, and one that says what it sees of its request."""
    async with site(**{"auth": resource_server(tokens), **options}) as at:

        @at.server.tool(scopes=["files:write"])
        async def store() -> str:
            at.ends.append("stored")
            return "stored"

        @at.server.tool
        async def sees(ctx: Context) -> str:
            assert ctx.request is not None
            assert ctx.principal is ctx.request.principal
            principal = ctx.principal
            assert principal is not None
            return json.dumps(
                {
                    "caller": [principal.subject, principal.issuer, principal.client],
                    "scopes": sorted(principal.scopes),
                    "headers": dict(ctx.request.headers),
                    "shown": repr(ctx.request),
                }
            )

        yield at
