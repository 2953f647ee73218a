"""A server made with FastMCP, protected by an authorization server that issues JWTs.

Usage: fastmcp_server.py ISSUER RESOURCE

Runs in an environment of its own that has the package ``fastmcp`` and nothing of ours. It listens at the port of
RESOURCE, which it demands as the audience. Everything needs the scope ``mcp:read``, and one tool ``mcp:write``.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from urllib.parse import urlsplit

from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider, require_scopes
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token

ISSUER, RESOURCE = sys.argv[1:]


def key_set_url() -> str:
    with urllib.request.urlopen(f"{ISSUER}/.well-known/openid-configuration", timeout=10) as response:
        return str(json.load(response)["jwks_uri"])


verifier = JWTVerifier(
    jwks_uri=key_set_url(), issuer=ISSUER, audience=RESOURCE, algorithm="ES256", required_scopes=["mcp:read"]
)
server = FastMCP(
    "protected-fastmcp",
    auth=RemoteAuthProvider(verifier, authorization_servers=[ISSUER], base_url=RESOURCE.removesuffix("/mcp")),
)


@server.tool
async def whoami() -> dict[str, object]:
    """Tells who calls."""
    token = get_access_token()
    assert token is not None
    return {"subject": token.claims["sub"], "client": token.client_id, "scopes": sorted(token.scopes)}


@server.tool(auth=require_scopes("mcp:write"))
async def write() -> str:
    """Needs a scope of its own."""
    return "written"


if __name__ == "__main__":
    server.run("http", host="127.0.0.1", port=urlsplit(RESOURCE).port, path="/mcp", show_banner=False)
