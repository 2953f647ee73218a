"""The metadata of an authorization server, as a protected server needs it: kept, and asked for again with patience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_actors.auth.effects import Fetch, Fetched
from mcp_actors.auth.metadata import json_object, shown
from mcp_actors.auth.server.verifier import Fetching, VerifierUnavailable
from mcp_actors.auth.urls import authorization_server_urls, require_usable
from mcp_actors.errors import UrlRefused
from mcp_actors.logging import log

__all__ = ["IssuerMetadata", "fetch_body"]

# Seconds between two attempts while the authorization server cannot be reached, and for which metadata is kept.
RETRY_AFTER = 5.0
KEPT_FOR = 3600.0
# RFC 9728 section 7.7 and MCP 2026-07-28, Security Best Practices: few hops, each of them checked.
MAX_REDIRECTS = 3
_OK = 200
_ACCEPT = (("accept", "application/json"),)


class IssuerMetadata:
    """The metadata of one issuer (RFC 8414).

    Args:
        issuer: The issuer, verbatim.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._document: dict[str, Any] | None = None
        self._fetched_at = 0.0
        self._retry_at = 0.0

    def forget(self) -> None:
        """Has the metadata fetched anew when it is needed: what it led to did not answer."""
        self._document = None

    async def document(self, fetch: Fetching, now: float) -> Mapping[str, Any]:
        """Returns the metadata, which was fetched at most an hour ago, and names this very issuer.

        Raises:
            VerifierUnavailable: It cannot be had.
        """
        found = self._document
        if found is not None and now < self._fetched_at + KEPT_FOR:
            return found
        if now < self._retry_at:
            raise VerifierUnavailable(self._retry_at - now)
        found = await self._fetched(fetch)
        if found is None:
            self._retry_at = now + RETRY_AFTER
            raise VerifierUnavailable(RETRY_AFTER)
        self._document, self._fetched_at = found, now
        return found

    async def url(self, name: str, fetch: Fetching, now: float) -> str:
        """Returns a URL of the metadata, such as ``jwks_uri``.

        Raises:
            VerifierUnavailable: It cannot be had, or must not be used.
        """
        found = (await self.document(fetch, now)).get(name)
        try:
            if isinstance(found, str):
                return require_usable(found, name)
            reason = "it is missing"
        except UrlRefused as refused:
            reason = str(refused)
        log.warning("metadata of an issuer is of no use", issuer=self.issuer, member=name, reason=reason)
        raise VerifierUnavailable(RETRY_AFTER)

    async def _fetched(self, fetch: Fetching) -> dict[str, Any] | None:
        for url in authorization_server_urls(self.issuer):
            found = json_object(await fetch_body(url, fetch) or b"")
            if found is None:
                continue
            if found.get("issuer") == self.issuer:
                return found
            # RFC 8414 section 3.3: such a document must not be used, and no other one is tried in its place.
            log.warning(
                "metadata speaks for another issuer", issuer=self.issuer, found=shown(found.get("issuer"))
            )
            return None
        log.warning("no metadata of an issuer was found", issuer=self.issuer)
        return None


async def fetch_body(url: str, fetch: Fetching) -> bytes | None:
    """Returns the document at a URL, ``None`` if there is none."""
    answer = await fetch(Fetch("GET", url, _ACCEPT, redirects=MAX_REDIRECTS))
    return answer.body if isinstance(answer, Fetched) and answer.status == _OK else None
