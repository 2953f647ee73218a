"""The keys that an issuer signs tokens with: kept, rotated, and never fetched as often as somebody likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joserfc.jwk import Key

from mcp_actors.auth.jose import JoseRejected, import_public_key
from mcp_actors.auth.metadata import json_object
from mcp_actors.auth.server.issuer_metadata import RETRY_AFTER, IssuerMetadata, fetch_body
from mcp_actors.auth.server.verifier import Fetching, VerifierUnavailable
from mcp_actors.logging import log

__all__ = ["IssuerKeys"]

# Seconds after which the keys are fetched anew although no token needs others: one may have been withdrawn.
KEPT_FOR = 600.0
# Keys of a set that are read, and keys that one signature is tried with if its token does not name one.
MAX_KEYS = 100
MAX_TRIES = 16


class IssuerKeys:
    """The key set of one issuer (RFC 7517 section 5). The keys of another issuer are never tried.

    Args:
        issuer: The issuer, verbatim.
        interval: Seconds between two fetches, whatever tokens arrive.
    """

    def __init__(self, issuer: str, interval: float) -> None:
        self._metadata = IssuerMetadata(issuer)
        self._interval = interval
        self._keys: list[Key] | None = None
        self._body: bytes | None = None
        self._fetched_at = 0.0
        self._next_fetch_at = 0.0
        self._fetches = 0
        self._failed = False

    async def find(self, key_id: str | None, fetch: Fetching, now: float) -> list[Key]:
        """Returns the keys that a token may be signed with; none if the issuer has no key of this name.

        Raises:
            VerifierUnavailable: The keys cannot be had, and those that are known are not enough.
        """
        if self._keys is None or now >= self._fetched_at + KEPT_FOR:
            await self._fetch_again(fetch, now)
        found = self._named(key_id)
        if not found:
            await self._fetch_again(fetch, now)
            found = self._named(key_id)
        if not found and (self._failed or self._keys is None):
            # The token may be signed with a new key: its owner must not throw it away.
            raise VerifierUnavailable(max(self._next_fetch_at - now, 1.0))
        return found

    def _named(self, key_id: str | None) -> list[Key]:
        keys = self._keys or []
        return keys[:MAX_TRIES] if key_id is None else [key for key in keys if key.kid == key_id][:MAX_TRIES]

    async def _fetch_again(self, fetch: Fetching, now: float) -> None:
        """Fetches the keys, if it is time for that or another task is doing it, whose fetch is ours then."""
        if now < self._next_fetch_at and not self._fetches:
            return
        self._next_fetch_at = now + self._interval
        self._fetches += 1
        try:
            keys = await self._fetched(fetch, now)
        except VerifierUnavailable:
            keys = None
        finally:
            self._fetches -= 1
        self._failed = keys is None
        if keys is None:
            self._next_fetch_at = now + RETRY_AFTER
            self._metadata.forget()
            log.warning("the keys of an issuer cannot be fetched", issuer=self._metadata.issuer)
        else:
            self._keys, self._fetched_at = keys, now

    async def _fetched(self, fetch: Fetching, now: float) -> list[Key] | None:
        url = await self._metadata.url("jwks_uri", fetch, now)
        body = await fetch_body(url, fetch)
        if self._keys is not None and body == self._body:
            # A thousand tasks may have waited for this one document.
            return self._keys
        document = json_object(body or b"")
        listed = None if document is None else document.get("keys")
        if not isinstance(listed, list):
            return None
        self._body = body
        return [key for each in listed[:MAX_KEYS] if (key := _imported(each)) is not None]


def _imported(jwk: Any) -> Key | None:
    """Returns a key of a set; one for another use, or of a kind that we do not know, is passed over."""
    try:
        key = import_public_key(jwk)
    except JoseRejected:
        return None
    return key if isinstance(jwk, Mapping) and jwk.get("use", "sig") == "sig" else None
