"""The settings of a protected server, and the metadata that it publishes (RFC 9728).

Scopes form a hierarchy: a broad one implies narrow ones (MCP 2026-07-28, Authorization, Step-Up Authorization).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs
import msgspec

from mcp_actors.auth.server.verifiers import Expected, JwtVerifier, Verifier
from mcp_actors.auth.urls import UrlPolicy

__all__ = [
    "MIRROR_PATH",
    "PROOF_ALGORITHMS_ACCEPTED",
    "ResourceServer",
    "checked_scopes",
    "closure_of",
    "closures",
    "metadata_document",
    "metadata_paths",
    "metadata_url",
]

# RFC 6749 section 3.3.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

_RESOURCE = re.compile(r"https?://[^/?#@\s\"\\]+(/[^?#\s\"\\]*)?(\?[^#\s\"\\]*)?", re.ASCII)

MIRROR_PATH = "/.well-known/oauth-authorization-server"
# RFC 9449 section 11.6 wants asymmetric ones only.
PROOF_ALGORITHMS_ACCEPTED = ("ES256", "ES384", "PS256", "RS256", "Ed25519")

_WELL_KNOWN = "/.well-known/oauth-protected-resource"


# -- Scopes ----------------------------------------------------------------------------------------


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Returns the scopes, each once, in their order.

    Raises:
        ValueError: One has characters that no scope has, or is ``offline_access``, which is between a client and its
            authorization server (MCP 2026-07-28, Authorization, Refresh Tokens).
        TypeError: They are one text: give a set or a list.
    """
    if isinstance(scopes, str):
        raise TypeError(f"scopes is the text {scopes!r}: give a set or a list of scopes")
    found = tuple(dict.fromkeys(scopes))
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"{scope!r} is no scope: it has characters that no scope has")
        if scope == "offline_access":
            raise ValueError("offline_access is no scope of a server: its authorization server grants it")
    return found


def closures(implies: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Returns everything that each scope implies, over any number of steps, itself included. Circles do no harm."""
    found = {}
    for scope in implies:
        reached, waiting = {scope}, [scope]
        while waiting:
            new = set(implies.get(waiting.pop(), ())) - reached
            reached |= new
            waiting += new
        found[scope] = frozenset(reached)
    return found


def closure_of(scopes: Iterable[str], implied: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Returns the scopes and everything that they imply; ``implied`` is what `closures` returned."""
    granted = frozenset(scopes)
    return granted.union(*(implied[each] for each in granted & implied.keys()))


# -- The settings ----------------------------------------------------------------------------------


def _issuers(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _checked_resource(settings: ResourceServer, _: object, resource: str) -> None:
    if not _RESOURCE.fullmatch(resource) or not resource.isascii():
        raise ValueError(
            f"resource is {resource!r}: give the public URL of this server, with https:// and no fragment"
        )


def _checked_issuers(settings: ResourceServer, _: object, issuers: tuple[str, ...]) -> None:
    if not issuers:
        raise ValueError("issuer is empty: give the URL that the authorization server calls itself")
    wrong = [each for each in issuers if not each.startswith(("https://", "http://"))]
    if wrong:
        raise ValueError(
            f"issuer is {wrong[0]!r}: give the URL that the authorization server calls itself, with https://"
        )


def _checked_dpop(settings: ResourceServer, _: object, dpop: str) -> None:
    if dpop not in ("no", "allowed", "required"):
        raise ValueError(f"dpop is {dpop!r}: give 'no', 'allowed' or 'required'")


@attrs.frozen(kw_only=True, eq=False)
class ResourceServer:
    """A server that is protected by the access tokens of an authorization server (MCP 2026-07-28, Authorization).

    Args:
        resource: The public URL of this server as its clients have it, such as ``https://host/mcp``. It is published
            verbatim, and a token has to have it as its audience. ``Host`` and forwarded headers are never asked.
        issuer: The issuer that the tokens have, verbatim, or several; its metadata is found by this URL.
        scopes: Scopes that every request needs. They are published, and asked for in the challenge.
        verifier: How tokens are verified. By default they are JWTs (needs the extra ``auth``).
        implies: Maps a scope to those that it includes, over any number of steps.
        audiences: More audiences that a token may have in place of ``resource``.
        dpop: Whether tokens that are bound to a key (RFC 9449) are served: ``"no"``, ``"allowed"`` beside others, or
            ``"required"``. The two need the extra ``auth``.
        dpop_nonces: Whether each proof must have a nonce of this server, so that none can be made in advance, and none
            is good after a restart.
        name: The name of this server, for the persons who log in.
        mirror_metadata: Whether the metadata of the first issuer is served here as well, where the clients of MCP
            2025-03-26 look for it.
        leeway: Seconds by which the clocks of the authorization server and of this machine may differ.
        url_policy: Which URLs in the metadata of the issuer may be used.

    Raises:
        ValueError: ``resource`` or ``issuer`` are not such URLs, ``dpop`` has another value, or a scope has
            characters that no scope has.
        TypeError: ``scopes`` is one text.
        ImportError: The extra ``auth`` is missing, and the verifier needs it.
    """

    resource: str = attrs.field(validator=_checked_resource)
    issuer: tuple[str, ...] = attrs.field(converter=_issuers, validator=_checked_issuers)
    scopes: tuple[str, ...] = attrs.field(default=(), converter=checked_scopes)
    verifier: Verifier = attrs.field(factory=JwtVerifier)
    implies: Mapping[str, Collection[str]] = attrs.field(factory=dict)
    audiences: tuple[str, ...] = attrs.field(default=(), converter=_issuers)
    dpop: Literal["no", "allowed", "required"] = attrs.field(default="no", validator=_checked_dpop)
    dpop_nonces: bool = False
    name: str | None = None
    mirror_metadata: bool = False
    leeway: float = 30.0
    url_policy: UrlPolicy = attrs.field(factory=UrlPolicy)

    @property
    def expected(self) -> Expected:
        """The issuers and audiences that a token has to have."""
        return Expected(self.issuer, (self.resource, *self.audiences), self.leeway)


# -- The metadata, and where it is served ----------------------------------------------------------


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
    """Returns origin, path and query as they are written; a lone slash does not count as a path."""
    scheme, _, rest = resource.partition("://")
    whole, mark, query = rest.partition("?")
    host, slash, path = whole.partition("/")
    return f"{scheme}://{host}", slash + path if path else "", mark + query
