"""Assertions that authenticate a client by its private key (RFC 7523). Needs the extra ``auth``."""

from __future__ import annotations

import secrets

from mcp_actors.auth.jose import import_private_key, sign

__all__ = ["client_assertion"]

# Seconds. An assertion is made for one request, and the clocks of two machines may differ by some.
ASSERTION_LIFETIME = 60


def client_assertion(
    private_key: str,
    algorithm: str,
    client_id: str,
    audience: str,
    now: float,
    key_id: str | None = None,
) -> str:
    """Returns a new ``client_assertion`` for one request to a token endpoint (``private_key_jwt``).

    Args:
        private_key: The private key in PEM.
        algorithm: The algorithm that the client is registered with, such as ``"ES256"``.
        client_id: The client id, which is the ``iss`` and the ``sub``.
        audience: The ``aud``: the issuer of the authorization server.
        now: Seconds since the epoch; the assertion is valid for 60 seconds from then.
        key_id: The ``kid`` of the key, for authorization servers that need it.

    Raises:
        ValueError: It is no private key for the algorithm. The text says nothing of the key.
    """
    key = import_private_key(private_key, algorithm)
    header = {"alg": algorithm, "typ": "JWT"} | ({} if key_id is None else {"kid": key_id})
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": int(now),
        "exp": int(now) + ASSERTION_LIFETIME,
        "jti": secrets.token_urlsafe(16),
    }
    return sign(header, claims, key)
