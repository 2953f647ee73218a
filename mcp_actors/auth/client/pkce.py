"""Proof Key for Code Exchange (RFC 7636), with S256 only."""

from __future__ import annotations

import base64
import hashlib
import secrets

from mcp_actors.auth.metadata import AuthorizationServer, shown
from mcp_actors.errors import DiscoveryFailed

__all__ = ["code_challenge", "new_secret", "require_pkce"]

# Random bytes of a verifier and of a state: more than OAuth 2.1 section 4.1.1 asks for.
SECRET_BYTES = 32
METHOD = "S256"


def new_secret() -> str:
    """Returns a new code verifier, or state."""
    return secrets.token_urlsafe(SECRET_BYTES)


def code_challenge(verifier: str) -> str:
    """Returns the S256 challenge of a verifier."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def require_pkce(server: AuthorizationServer) -> None:
    """Checks that the authorization server verifies S256 (MCP 2026-07-28, Authorization Code Protection).

    Raises:
        DiscoveryFailed: Its metadata does not say so.
    """
    if METHOD not in (server.code_challenge_methods_supported or ()):
        raise DiscoveryFailed(
            f"the metadata of the authorization server {shown(server.issuer)} does not list {METHOD} in "
            "code_challenge_methods_supported, so a login there would not be protected, and is not begun"
        )
