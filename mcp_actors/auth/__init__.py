"""Authorization of HTTP and WebSocket, both sides: OAuth for clients, access tokens for servers. Nothing here does I/O.

MCP 2026-07-28, Authorization. Everything waits for the outside world through `mcp_actors.auth.effects` or a function
that is passed in; `mcp_transports.auth` drives it under Trio.
"""

from __future__ import annotations

from mcp_actors.auth.client.settings import (
    AuthorizationCode,
    AuthorizationCounts,
    BearerToken,
    ClientAuth,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    WorkloadIdentity,
)
from mcp_actors.auth.server.answers import Denial
from mcp_actors.auth.server.guard import AccessGuard, ProtectedRequest
from mcp_actors.auth.server.introspection import IntrospectionVerifier
from mcp_actors.auth.server.jwt_verifier import JwtVerifier
from mcp_actors.auth.server.settings import ResourceServer
from mcp_actors.auth.server.verifier import (
    Expected,
    Fetching,
    StaticVerifier,
    TokenInvalid,
    Verifier,
    VerifierUnavailable,
)
from mcp_actors.auth.store import MemoryTokenStore, StoredRecord, TokenStore
from mcp_actors.auth.url_policy import UrlPolicy
from mcp_actors.principal import Principal

__all__ = [
    "AccessGuard",
    "AuthorizationCode",
    "AuthorizationCounts",
    "BearerToken",
    "ClientAuth",
    "ClientCredentials",
    "Denial",
    "EnterpriseManaged",
    "Expected",
    "Fetching",
    "IntrospectionVerifier",
    "JwtVerifier",
    "MemoryTokenStore",
    "OAuth",
    "Principal",
    "ProtectedRequest",
    "ResourceServer",
    "StaticVerifier",
    "StoredRecord",
    "TokenInvalid",
    "TokenStore",
    "UrlPolicy",
    "Verifier",
    "VerifierUnavailable",
    "WorkloadIdentity",
]
