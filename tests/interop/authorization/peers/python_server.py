"""A server made with the official Python SDK, protected by an authorization server that issues JWTs.

Usage: python_server.py ISSUER RESOURCE

Runs in an environment of its own that has the package ``mcp`` and nothing of ours. It listens at the port of RESOURCE,
which it demands as the audience, and it demands the scope ``mcp:read`` for everything, which is all that it can demand.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from urllib.parse import urlsplit

import jwt
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

ISSUER, RESOURCE = sys.argv[1:]


def key_set_url() -> str:
    with urllib.request.urlopen(f"{ISSUER}/.well-known/openid-configuration", timeout=10) as response:
        return str(json.load(response)["jwks_uri"])


class Verifier:
    """Checks a JWT as the SDK leaves it to its users."""

    def __init__(self) -> None:
        self._keys = jwt.PyJWKClient(key_set_url())

    async def verify_token(self, token: str) -> AccessToken | None:
        return await asyncio.to_thread(self._verify, token)

    def _verify(self, token: str) -> AccessToken | None:
        try:
            key = self._keys.get_signing_key_from_jwt(token)
            claims = jwt.decode(token, key, algorithms=["ES256"], audience=RESOURCE, issuer=ISSUER)
        except jwt.PyJWTError:
            return None
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims["scope"].split(),
            expires_at=claims["exp"],
            resource=RESOURCE,
            subject=claims["sub"],
        )


server = MCPServer(
    "protected-python",
    token_verifier=Verifier(),
    auth=AuthSettings(
        issuer_url=ISSUER,
        resource_server_url=RESOURCE,
        required_scopes=["mcp:read"],
        validate_token_resource=True,
    ),
)


@server.tool()
async def whoami() -> dict[str, object]:
    """Tells who calls."""
    token = get_access_token()
    assert token is not None
    return {"subject": token.subject, "client": token.client_id, "scopes": sorted(token.scopes)}


if __name__ == "__main__":
    server.run("streamable-http", port=urlsplit(RESOURCE).port, streamable_http_path="/mcp")
