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
from mcp_actors.auth.server.guard import AccessGuard, Denial, ProtectedRequest
from mcp_actors.auth.server.settings import ResourceServer
from mcp_actors.auth.server.verifiers import (
    Expected,
    Fetching,
    IntrospectionVerifier,
    JwtVerifier,
    StaticVerifier,
    TokenInvalid,
    Verifier,
    VerifierUnavailable,
)
from mcp_actors.auth.store import MemoryTokenStore, StoredRecord, TokenStore
from mcp_actors.auth.urls import UrlPolicy
from mcp_actors.supervision.principal import Principal

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
