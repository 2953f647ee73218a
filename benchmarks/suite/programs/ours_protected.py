"""This package, protected by access tokens: ``ours_protected URL``. Each request has the same JWT."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from benchmarks.suite.programs.access_token import ISSUER, PUBLIC_KEY, RESOURCE, SCOPE
from benchmarks.suite.programs.ours import MOST_CONNECTIONS, server
from mcp_actors.auth import Expected, Fetching, JwtVerifier, ResourceServer
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.server import HttpServerTransport

KEYS = f"{ISSUER}/keys"
DOCUMENTS: dict[str, dict[str, Any]] = {
    f"{ISSUER}/.well-known/oauth-authorization-server": {"issuer": ISSUER, "jwks_uri": KEYS},
    KEYS: {"keys": [PUBLIC_KEY]},
}


async def fetch_here(fetch: Fetch) -> Fetched | FetchFailed:
    """The authorization server, without a network."""
    document = DOCUMENTS.get(fetch.url)
    if document is None:
        return Fetched(404, (), b"")
    return Fetched(200, (), msgspec.json.encode(document))


class WithoutNetwork(JwtVerifier):
    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        return await super().verify(token, expected, fetch_here, now)


if __name__ == "__main__":
    protected = ResourceServer(resource=RESOURCE, issuer=ISSUER, scopes=[SCOPE], verifier=WithoutNetwork())
    # All clients have one address here, which by default has half of the connections.
    limits = HttpLimits(connections=2 * MOST_CONNECTIONS)
    server.run(HttpServerTransport(sys.argv[1], auth=protected, limits=limits))
