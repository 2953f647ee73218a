"""Access tokens that are JWTs (RFC 9068), verified with the keys of their issuer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mcp_actors.auth.extra import signatures
from mcp_actors.auth.server.claims import check_audience, check_times, principal_of
from mcp_actors.auth.server.verifier import Expected, Fetching, TokenInvalid
from mcp_actors.principal import Principal

__all__ = ["JwtVerifier"]

# An ID token is a JWT of the same issuer, with the same keys. These members are in none but those.
_OF_ID_TOKENS = frozenset({"at_hash", "c_hash"})


class JwtVerifier:
    """Verifies JWTs with the keys that their issuer publishes. Needs the extra ``auth``. A `Verifier`.

    The keys are found by the metadata of the issuer, kept, and fetched again when a token names an unknown one, but
    never more often than once in ``interval``: until then such a token is refused. While they cannot be fetched, the
    known ones are used.

    Args:
        algorithms: The algorithms that are accepted, asymmetric ones only.
        types: The ``typ`` that are accepted, without ``application/``. Add ``"JWT"`` for authorization servers that
            say nothing more exact; it also stands for tokens without any.
        interval: Seconds between two fetches of keys.
        remembered_for: Seconds for which a token counts as verified, unless it expires before: the longest time that
            a withdrawn key is believed beyond the keys' own time of 10 minutes.

    Raises:
        ImportError: The extra ``auth`` is missing.
        ValueError: An algorithm is unknown or symmetric.
    """

    def __init__(
        self,
        *,
        algorithms: Collection[str] = ("RS256", "PS256", "ES256", "Ed25519"),
        types: Collection[str] = ("at+jwt",),
        interval: float = 30.0,
        remembered_for: float = 60.0,
    ) -> None:
        self._jose = signatures("mcp_actors.auth.jose")
        unknown = set(algorithms) - self._jose.ALGORITHMS
        if unknown or not algorithms:
            raise ValueError(
                f"algorithms are some of {', '.join(sorted(self._jose.ALGORITHMS))}, not {sorted(unknown)}"
            )
        self._algorithms = frozenset(algorithms)
        self._types = frozenset(each.lower() for each in types)
        self._interval = interval
        self.remembered_for = remembered_for
        self._keys: dict[str, Any] = {}

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token.

        Raises:
            TokenInvalid: The token must not be served.
            VerifierUnavailable: The keys of its issuer cannot be had.
        """
        try:
            jws = self._jose.read_jws(token)
            claims = self._jose.read_claims(jws)
        except self._jose.JoseRejected:
            raise TokenInvalid("no signed JWT") from None
        self._check_header(jws.header)
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in expected.issuers:
            raise TokenInvalid("another issuer")
        if _OF_ID_TOKENS & claims.keys():
            raise TokenInvalid("an ID token")
        check_audience(claims, expected)
        expires_at = check_times(claims, expected, now)
        if expires_at is None:
            raise TokenInvalid("no expiry")
        keys = await self._keys_of(issuer).find(jws.header.get("kid"), fetch, now)
        if not keys:
            raise TokenInvalid("unknown key")
        if not any(self._jose.is_signed_by(jws, key, self._algorithms) for key in keys):
            raise TokenInvalid("bad signature")
        return principal_of(claims, issuer, expires_at)

    def _check_header(self, header: Any) -> None:
        # ``jku``, ``jwk`` and ``x5u`` are never read: the sender would choose the key.
        kind = header.get("typ", "JWT")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise TokenInvalid("another algorithm")
        if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in self._types:
            raise TokenInvalid("another typ")
        if not (key_id is None or isinstance(key_id, str)):
            raise TokenInvalid("malformed kid")

    def _keys_of(self, issuer: str) -> Any:
        """Returns the keys of an issuer that is configured: there are no more of them than settings name."""
        found = self._keys.get(issuer)
        if found is None:
            module = signatures("mcp_actors.auth.server.issuer_keys")
            found = self._keys[issuer] = module.IssuerKeys(issuer, self._interval)
        return found
