"""The metadata that a protected server publishes (RFC 9728), and its places."""

from __future__ import annotations

from typing import Any

import msgspec

from mcp_actors.auth.server.settings import ResourceServer

__all__ = ["MIRROR_PATH", "PROOF_ALGORITHMS_ACCEPTED", "metadata_document", "metadata_paths", "metadata_url"]

MIRROR_PATH = "/.well-known/oauth-authorization-server"
# RFC 9449 section 11.6 wants asymmetric ones only.
PROOF_ALGORITHMS_ACCEPTED = ("ES256", "ES384", "PS256", "RS256", "Ed25519")

_WELL_KNOWN = "/.well-known/oauth-protected-resource"


def metadata_document(settings: ResourceServer) -> bytes:
    """Returns the metadata of a resource as JSON. Members without values are left out (RFC 9728 section 3.2)."""
    document: dict[str, Any] = {
        "resource": settings.resource,
        "authorization_servers": settings.issuer,
        "scopes_supported": settings.scopes,
        "bearer_methods_supported": ["header"],
        "resource_name": settings.name,
    }
    if settings.dpop != "no":
        document["dpop_signing_alg_values_supported"] = PROOF_ALGORITHMS_ACCEPTED
        document["dpop_bound_access_tokens_required"] = settings.dpop == "required"
    return msgspec.json.encode(
        {name: value for name, value in document.items() if value is not None and value != ()}
    )


def metadata_url(resource: str) -> str:
    """Returns where the metadata of a resource is: between its host and its path (RFC 9728 section 3.1)."""
    origin, path, query = _taken_apart(resource)
    return f"{origin}{_WELL_KNOWN}{path}{query}"


def metadata_paths(resource: str) -> list[str]:
    """Returns the paths at which the metadata is served: that of the RFC, without a slash at its end, and the root."""
    _, path, _ = _taken_apart(resource)
    return list(dict.fromkeys([_WELL_KNOWN + path, _WELL_KNOWN + path.rstrip("/"), _WELL_KNOWN]))


def _taken_apart(resource: str) -> tuple[str, str, str]:
    """Returns origin, path and query as they are written; a lone slash is no path."""
    scheme, _, rest = resource.partition("://")
    whole, mark, query = rest.partition("?")
    host, slash, path = whole.partition("/")
    return f"{scheme}://{host}", slash + path if path else "", mark + query
