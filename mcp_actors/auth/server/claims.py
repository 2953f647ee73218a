"""The claims of a token: what is asked of all of them, and the principal that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mcp_actors.auth.server.verifier import Expected, TokenInvalid
from mcp_actors.principal import Principal

__all__ = ["check_audience", "check_times", "key_thumbprint", "principal_of"]

# Entries of a list in a token that are read, characters of a subject, and seconds since the epoch in the year 5138.
MAX_ENTRIES = 1000
MAX_NAME = 1024
_LAST_SECOND = 1e11


def check_audience(claims: Mapping[str, Any], expected: Expected) -> None:
    """Raises `TokenInvalid` unless ``aud`` names this server, character by character (RFC 9068 section 4)."""
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not any(each in expected.audiences for each in named[:MAX_ENTRIES]):
        raise TokenInvalid("another audience")


def check_times(claims: Mapping[str, Any], expected: Expected, now: float) -> float | None:
    """Returns the time at which the token ends, ``None`` without one; raises `TokenInvalid` outside of its times."""
    ends = _seconds(claims, "exp")
    if ends is not None and ends + expected.leeway <= now:
        raise TokenInvalid("expired")
    for name in ("nbf", "iat"):
        begins = _seconds(claims, name)
        if begins is not None and begins - expected.leeway > now:
            raise TokenInvalid("not valid yet")
    return ends


def principal_of(claims: Mapping[str, Any], issuer: str, expires_at: float | None) -> Principal:
    """Returns the principal of verified claims; raises `TokenInvalid` if they name nobody."""
    subject = _name(claims, "sub")
    if subject is None:
        # A client alone is no subject: all its users would be one.
        raise TokenInvalid("no subject")
    client = _name(claims, "client_id") or _name(claims, "azp")
    # Functions of the program see the claims, and the next request with the same token sees the same ones.
    return Principal(subject, issuer, client, _scopes(claims), MappingProxyType(dict(claims)), expires_at)


def key_thumbprint(principal: Principal) -> str | None:
    """Returns the key that a token is bound to (RFC 9449 section 6), ``None`` if it is a bearer token.

    Raises:
        TokenInvalid: It is bound in a way that cannot be checked here.
    """
    bound = principal.claims.get("cnf")
    if bound is None:
        return None
    thumbprint = bound.get("jkt") if isinstance(bound, Mapping) else None
    if not isinstance(thumbprint, str) or not thumbprint:
        raise TokenInvalid("bound in an unknown way")
    return thumbprint


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_SECOND:
        raise TokenInvalid("malformed times")
    return float(value)


def _name(claims: Mapping[str, Any], claim: str) -> str | None:
    """Returns a claim that names somebody. A control character could make two principals of one key."""
    value = claims.get(claim)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or any(each < " " for each in value):
        raise TokenInvalid("malformed names")
    return value


def _scopes(claims: Mapping[str, Any]) -> Iterable[str]:
    value = claims.get("scope", claims.get("scp"))
    named = value.split(" ") if isinstance(value, str) else value
    if not isinstance(named, list):
        return frozenset()
    return frozenset(each for each in named[:MAX_ENTRIES] if isinstance(each, str) and each)
