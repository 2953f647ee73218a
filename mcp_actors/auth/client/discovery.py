"""Discovery: from a server's URL to its resource and its authorization server (MCP 2026-07-28, Discovery; RFC 9728)."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

import attrs

from mcp_actors.auth.client.settings import OAuth
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed, Steps
from mcp_actors.auth.metadata import (
    AuthorizationServer,
    ProtectedResource,
    guessed_authorization_server,
    read_authorization_server,
    read_protected_resource,
    shown,
)
from mcp_actors.auth.urls import (
    authorization_server_urls,
    canonical_resource,
    origin,
    protected_resource_urls,
    require_usable,
    same_origin,
)
from mcp_actors.errors import AuthorizationUnavailable, DiscoveryFailed, UrlRefused

__all__ = ["Discovered", "discover"]

# Redirections of a request for metadata.
REDIRECTS = 3


@attrs.frozen
class Discovered:
    """The resource that tokens are for, and the authorization server that issues them."""

    resource: str
    named: str
    """The issuer as the metadata of the resource has it."""
    server: AuthorizationServer
    scopes: tuple[str, ...] = ()
    dpop_required: bool = False
    dpop_algorithms: tuple[str, ...] = ()


def discover(
    settings: OAuth, server_url: str, hint: str | None, known: Collection[str], protocol_version: str | None
) -> Steps[Discovered]:
    """Finds the authorization server of an MCP server. Nothing is remembered: a server may have moved to another one.

    Args:
        settings: The settings.
        server_url: The URL that the user configured.
        hint: The ``resource_metadata`` of the challenge; without one the well-known places are tried.
        known: Issuers that tokens or a client are known of, which are preferred among several.
        protocol_version: The revision of the connection, if that is known already.

    Raises:
        DiscoveryFailed: There is no usable metadata.
        MetadataMismatch: A document speaks for another resource or issuer.
        UrlRefused: A URL must not be used.
        AuthorizationUnavailable: The authorization server cannot be reached or is out of order.
    """
    headers = [("accept", "application/json")]
    if protocol_version is not None:
        headers.append(("mcp-protocol-version", protocol_version))
    found = yield from _protected_resource(settings, server_url, hint, headers)
    if found is None:
        return (yield from _without_resource_metadata(settings, server_url, headers))
    named = _choose(settings, found, known)
    server = yield from _authorization_server(settings, named, headers)
    if server is None:
        raise DiscoveryFailed(
            f"the authorization server {shown(named)}, which {server_url} names, has no metadata at any of the places "
            "where it may be"
        )
    return Discovered(
        found.resource, named, server, found.scopes_supported, found.dpop_required, found.dpop_algorithms
    )


def _protected_resource(
    settings: OAuth, server_url: str, hint: str | None, headers: list[tuple[str, str]]
) -> Steps[ProtectedResource | None]:
    for url in protected_resource_urls(server_url) if hint is None else [hint]:
        # The server that the user configured is asked in the way that they chose.
        require_usable(url, "resource_metadata", plain=same_origin(url, server_url))
        fetched: Fetched | FetchFailed = yield Fetch("GET", url, headers, redirects=REDIRECTS)
        if isinstance(fetched, FetchFailed):
            if fetched.refused:
                raise UrlRefused(f"the metadata of {server_url} cannot be read: {fetched.reason}")
            continue
        found = read_protected_resource(fetched, server_url, resource=settings.resource)
        if found is not None:
            return found
    if hint is not None:
        raise DiscoveryFailed(
            f"{server_url} demands authorization, but its metadata is not where it says: {shown(hint)}"
        )
    return None


def _without_resource_metadata(
    settings: OAuth, server_url: str, headers: list[tuple[str, str]]
) -> Steps[Discovered]:
    """The server is its own authorization server (MCP 2025-03-26, Authorization Base URL)."""
    base = origin(server_url)
    require_usable(base, "authorization server")
    resource = settings.resource or canonical_resource(server_url)
    url = authorization_server_urls(base)[0]
    fetched: Fetched | FetchFailed = yield Fetch("GET", url, headers, redirects=REDIRECTS)
    if isinstance(fetched, FetchFailed):
        error = UrlRefused if fetched.refused else AuthorizationUnavailable
        raise error(f"no metadata for the authorization of {server_url} could be read: {fetched.reason}")
    expected = settings.trusted_issuers.get(base)
    server = read_authorization_server(fetched, base, expected=expected)
    return Discovered(resource, base, server or guessed_authorization_server(base))


def _choose(settings: OAuth, found: ProtectedResource, known: Collection[str]) -> str:
    listed = found.authorization_servers
    for named in listed:
        if named in known or settings.trusted_issuers.get(named) in known:
            return named
    if settings.choose_issuer is None or len(listed) == 1:
        return listed[0]
    chosen = settings.choose_issuer(listed)
    if chosen not in listed:
        raise DiscoveryFailed(f"choose_issuer= chose none of the authorization servers of {found.resource}")
    return chosen


def _authorization_server(
    settings: OAuth, named: str, headers: list[tuple[str, str]]
) -> Steps[AuthorizationServer | None]:
    require_usable(named, "authorization server")
    if urlsplit(named).query:
        raise UrlRefused(f"authorization server {shown(named)} is not used: an issuer has no query")
    failures: list[str] = []
    for url in authorization_server_urls(named):
        fetched: Fetched | FetchFailed = yield Fetch("GET", url, headers, redirects=REDIRECTS)
        if isinstance(fetched, FetchFailed):
            if fetched.refused:
                raise UrlRefused(f"the authorization server {shown(named)} is not asked: {fetched.reason}")
            failures.append(fetched.reason)
            continue
        found = read_authorization_server(fetched, named, expected=settings.trusted_issuers.get(named))
        if found is not None:
            return found
    if failures:
        raise AuthorizationUnavailable(
            f"the authorization server {shown(named)} does not answer: {failures[0]}"
        )
    return None
