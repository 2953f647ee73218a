"""Proofs of possession of a key (RFC 9449), as a client makes them. Needs the extra ``auth``."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from mcp_actors.auth.jose import import_private_key, public_jwk, sign

__all__ = ["PROOF_ALGORITHMS", "DpopKey", "token_hash"]

# In the order of preference: what every server can, and then what is small.
PROOF_ALGORITHMS = ("ES256", "Ed25519", "ES384", "PS256", "RS256")


def token_hash(token: str) -> str:
    """Returns the ``ath`` of a token (RFC 9449 section 4.2)."""
    digest = hashlib.sha256(token.encode("utf-8")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


class DpopKey:
    """A key pair that tokens are bound to, and the proofs that it makes. Its ``repr`` shows the algorithm only.

    Args:
        key: The private key.
        algorithm: One of `PROOF_ALGORITHMS`.
    """

    def __init__(self, key: Key, algorithm: str) -> None:
        self._key = key
        self.algorithm = algorithm
        self._header = {"typ": "dpop+jwt", "alg": algorithm, "jwk": public_jwk(key)}
        self.thumbprint: str = key.thumbprint()
        """The ``jkt`` of the tokens that are bound to this key (RFC 7638)."""

    def __repr__(self) -> str:
        return f"<DpopKey {self.algorithm}>"

    @classmethod
    def generate(cls, algorithm: str = PROOF_ALGORITHMS[0]) -> DpopKey:
        """Returns a new key pair for an algorithm.

        Raises:
            ValueError: There is no such algorithm in `PROOF_ALGORITHMS`.
        """
        _check_algorithm(algorithm)
        if algorithm.startswith("ES"):
            return cls(ECKey.generate_key("P-384" if algorithm == "ES384" else "P-256"), algorithm)
        if algorithm == "Ed25519":
            return cls(OKPKey.generate_key("Ed25519"), algorithm)
        return cls(RSAKey.generate_key(2048), algorithm)

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, Any]) -> DpopKey:
        """Returns the key that `as_jwk` wrote.

        Raises:
            ValueError: It is no private JWK with the ``alg`` of a proof. The text says nothing of the key.
        """
        algorithm = jwk.get("alg")
        _check_algorithm(algorithm)
        return cls(import_private_key(jwk, str(algorithm)), str(algorithm))

    def as_jwk(self) -> dict[str, Any]:
        """Returns the private key as a JWK, for a token store."""
        return {**self._key.as_dict(private=True), "alg": self.algorithm}

    def proof(
        self, method: str, url: str, *, now: float, nonce: str | None = None, token: str | None = None
    ) -> str:
        """Returns a new proof, good for one sending of one request: the ``DPoP`` header of it.

        Args:
            method: The HTTP method of the request.
            url: Its URL; query and fragment are left out.
            now: Seconds since the epoch.
            nonce: The last ``DPoP-Nonce`` of the origin that the request goes to.
            token: The access token that the request carries; ``None`` at a token endpoint.
        """
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("#")[0].partition("?")[0],
            "iat": int(now),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if token is not None:
            claims["ath"] = token_hash(token)
        return sign(self._header, claims, self._key)


def _check_algorithm(algorithm: object) -> None:
    if algorithm not in PROOF_ALGORITHMS:
        raise ValueError(f"the algorithm of a proof must be one of {', '.join(PROOF_ALGORITHMS)}")
