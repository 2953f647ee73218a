"""The codes and tokens that the authorization server issues, and the grants and keys behind them.

A `Grant` is one decision of a person: which client may use which resource with which scopes. A code and every refresh
token name their grant and a number, 0 for the code, under a MAC. Each number is good once, and the next one takes its
place. So one that comes again is noticed without a list of all that were used, and it ends the grant with everything
that came from it: somebody else has it too (OAuth 2.1 sections 4.1.3 and 4.3.1).

Access tokens are JWTs (RFC 9068), about which servers need not ask. They cannot be taken back, so they live for five
minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from joserfc.jwk import ECKey

from mcp_actors.auth.jose import JoseRejected, is_signed_by, public_jwk, read_claims, read_jws, sign
from mcp_actors.examples.issuer.bounded import ExpiringTable, OAuthError

__all__ = ["ACCESS_LIFETIME", "Grant", "GrantTable", "SigningKeys"]

# Seconds for which a code is good: the client redeems it at once.
CODE_LIFETIME = 60.0
# Grants, and seconds for which one can be refreshed.
MAX_GRANTS = 1000
GRANT_LIFETIME = 24 * 3600.0
# Seconds for which an access token is good, and for which a key signs new ones. A key is published for as long as a
# token that it signed may be good, with a minute for clocks that differ.
ACCESS_LIFETIME = 300.0
KEY_LIFETIME = 3600.0
KEY_PUBLISHED = ACCESS_LIFETIME + 60.0
# Keys that are published; more than two are there only where a clock jumps.
MAX_KEYS = 3

_ALGORITHM = "ES256"
_TOKEN = re.compile(r"([A-Za-z0-9_-]{22})\.(0|[1-9][0-9]{0,8})\.([A-Za-z0-9_-]{43})")
# RFC 7636 section 4.1 and 4.2.
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


# -- Codes and refresh tokens ----------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class Grant:
    """The decision of one person about one client, and how often it was used.

    Args:
        client_id: The client.
        user: The person.
        scopes: What was granted.
        resource: The server that it was granted for, verbatim.
        redirect_uri: Where the code was sent.
        challenge: The S256 challenge that the code is bound to.
        thumbprint: The key that the code, and then the refresh token of a public client, is bound to.
        code_until: The end of the code, in seconds since the epoch.
        name: A random name.
        number: The number of the one token of it that is good: 0 is the code.
    """

    client_id: str
    user: str
    scopes: tuple[str, ...]
    resource: str
    redirect_uri: str
    challenge: str = attrs.field(repr=False)
    thumbprint: str | None
    code_until: float
    name: str = attrs.field(factory=lambda: secrets.token_urlsafe(16), repr=False)
    number: int = 0


class GrantTable:
    """The grants that are good, and their codes and refresh tokens.

    Args:
        now: Returns the seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._key = secrets.token_bytes(32)
        self._grants = ExpiringTable[Grant](MAX_GRANTS, GRANT_LIFETIME, now)

    def __repr__(self) -> str:
        return f"<GrantTable {len(self._grants)} of {MAX_GRANTS}>"

    def __len__(self) -> int:
        return len(self._grants)

    def begin(
        self,
        *,
        client_id: str,
        user: str,
        scopes: tuple[str, ...],
        resource: str,
        redirect_uri: str,
        challenge: str,
        thumbprint: str | None,
    ) -> str:
        """Keeps a new grant and returns its code; the arguments are those of `Grant`."""
        grant = Grant(
            client_id=client_id,
            user=user,
            scopes=scopes,
            resource=resource,
            redirect_uri=redirect_uri,
            challenge=challenge,
            thumbprint=thumbprint,
            code_until=self._now() + CODE_LIFETIME,
        )
        self._grants.put(grant.name, grant)
        return self._token(grant)

    def redeem(
        self, code: str, *, client_id: str, redirect_uri: str, verifier: str, thumbprint: str | None
    ) -> Grant:
        """Returns the grant of a code, which `advance` uses up. A code that somebody else presents ends its grant.

        Args:
            code: The code.
            client_id: The client that presents it, proven.
            redirect_uri: The redirect URI of its request, which must be that of the authorization request.
            verifier: The PKCE verifier.
            thumbprint: The key of its proof, if it sent one.

        Raises:
            OAuthError: The code is not good, or not for this request.
        """
        grant = self._current(code, is_code=True)
        faults = {
            "the code is older than a minute": self._now() >= grant.code_until,
            "the code is that of another client": client_id != grant.client_id,
            "redirect_uri is another one than that of the login": redirect_uri != grant.redirect_uri,
            "code_verifier does not belong to the code_challenge of the login": not _is_verified(
                verifier, grant.challenge
            ),
            "the code is bound to another key than that of the proof (dpop_jkt)": grant.thumbprint
            not in (None, thumbprint),
        }
        self._end_for(grant, faults)
        grant.thumbprint = thumbprint
        return grant

    def refresh(self, token: str, *, client_id: str, thumbprint: str | None, is_public: bool) -> Grant:
        """Returns the grant of a refresh token, which `advance` uses up. One of somebody else ends its grant.

        Args:
            token: The refresh token.
            client_id: The client that presents it, proven.
            thumbprint: The key of its proof, if it sent one.
            is_public: Whether the client has nothing but that key to prove itself (RFC 9449 section 5).

        Raises:
            OAuthError: The token is not good, or not for this request.
        """
        grant = self._current(token, is_code=False)
        faults = {
            "the refresh token is that of another client": client_id != grant.client_id,
            "the refresh token is bound to another key than that of the proof": is_public
            and grant.thumbprint not in (None, thumbprint),
        }
        self._end_for(grant, faults)
        return grant

    def advance(self, grant: Grant) -> str:
        """Uses up the token of a grant that was good, and returns the refresh token that takes its place."""
        grant.number += 1
        return self._token(grant)

    def of_refresh_token(self, token: str) -> Grant | None:
        """Returns the grant of a refresh token, used or not, without using it; ``None`` if it is not one of ours."""
        found = self._read(token)
        return None if found is None or found[1] == 0 else self._grants.get(found[0])

    def named(self, name: str) -> Grant | None:
        """Returns the grant of a name, ``None`` if it has ended."""
        return self._grants.get(name)

    def end(self, grant: Grant) -> None:
        """Ends a grant: neither its code nor any refresh token of it is good from now on."""
        self._grants.pop(grant.name)

    def _token(self, grant: Grant) -> str:
        return f"{grant.name}.{grant.number}.{self._mac(grant.name, grant.number)}"

    def _current(self, token: str, *, is_code: bool) -> Grant:
        """Returns the grant of a token that was not used before."""
        what = "code" if is_code else "refresh token"
        found = self._read(token)
        grant = None if found is None else self._grants.get(found[0])
        if found is None or grant is None or is_code != (found[1] == 0):
            raise OAuthError("invalid_grant", f"the {what} is not one of this server, or its login has ended")
        if found[1] != grant.number:
            self.end(grant)
            raise OAuthError(
                "invalid_grant",
                f"the {what} was used before, so everything that came of this login is revoked",
            )
        return grant

    def _end_for(self, grant: Grant, faults: Mapping[str, bool]) -> None:
        for fault, is_there in faults.items():
            if is_there:
                self.end(grant)
                raise OAuthError("invalid_grant", f"{fault}, so this login is over")

    def _read(self, token: str) -> tuple[str, int] | None:
        found = _TOKEN.fullmatch(token)
        if found is None or not hmac.compare_digest(self._mac(found[1], int(found[2])), found[3]):
            return None
        return found[1], int(found[2])

    def _mac(self, name: str, number: int) -> str:
        return _base64url(hmac.digest(self._key, f"{name}.{number}".encode(), hashlib.sha256))


def _is_verified(verifier: str, challenge: str) -> bool:
    if not _VERIFIER.fullmatch(verifier):
        return False
    return hmac.compare_digest(_base64url(hashlib.sha256(verifier.encode("ascii")).digest()), challenge)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


# -- Access tokens ---------------------------------------------------------------------------------


class SigningKeys:
    """The keys that access tokens are signed with: a new one each hour, and the one before for as long as it is needed.

    Args:
        issuer: The URL of the authorization server.
        now: Returns the seconds since the epoch.
    """

    def __init__(self, issuer: str, now: Callable[[], float]) -> None:
        self._issuer = issuer
        self._now = now
        self._keys: list[tuple[float, ECKey]] = []
        """Each with the time at which it began to sign; the last one signs."""

    def __repr__(self) -> str:
        return f"<SigningKeys {len(self._keys)}>"

    def access_token(
        self,
        *,
        subject: str,
        client_id: str,
        resource: str,
        scopes: tuple[str, ...],
        thumbprint: str | None,
        grant: str,
    ) -> str:
        """Returns a new access token (RFC 9068), which is good for `ACCESS_LIFETIME` seconds.

        Args:
            subject: The person, or the client for one with access of its own.
            client_id: The client.
            resource: The server that the token is for.
            scopes: Its scopes.
            thumbprint: The key that it is bound to, ``None`` for none.
            grant: The name of its grant, which a later revocation finds it by; empty without one.
        """
        key = self._signing_key()
        now = int(self._now())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "sub": subject,
            "aud": resource,
            "client_id": client_id,
            "scope": " ".join(scopes),
            "iat": now,
            "exp": now + int(ACCESS_LIFETIME),
            "jti": f"{grant}.{secrets.token_urlsafe(8)}",
        }
        if thumbprint is not None:
            claims["cnf"] = {"jkt": thumbprint}
        return sign({"alg": _ALGORITHM, "typ": "at+jwt", "kid": key.kid}, claims, key)

    def grant_of(self, token: str) -> str | None:
        """Returns the name of the grant that an access token came of; ``None`` if it is not one of ours."""
        try:
            jws = read_jws(token)
            claims = read_claims(jws)
        except JoseRejected:
            return None
        if not any(is_signed_by(jws, key, (_ALGORITHM,)) for _, key in self._keys):
            return None
        return str(claims["jti"]).partition(".")[0]

    def document(self) -> dict[str, Any]:
        """Returns the public keys (RFC 7517): those that a good token may be signed with."""
        self._signing_key()
        return {
            "keys": [
                {**public_jwk(key), "kid": key.kid, "alg": _ALGORITHM, "use": "sig"} for _, key in self._keys
            ]
        }

    def _signing_key(self) -> ECKey:
        now = self._now()
        if not self._keys or not 0 <= now - self._keys[-1][0] < KEY_LIFETIME:
            self._keys.append((now, ECKey.generate_key("P-256", {"kid": secrets.token_urlsafe(8)})))
        # A key has signed until the next one began, or its own hour was over.
        self._keys = [
            each
            for each, (following, _) in zip(self._keys, [*self._keys[1:], (now, None)], strict=True)
            if now - min(following, each[0] + KEY_LIFETIME) < KEY_PUBLISHED
        ][-MAX_KEYS:]
        return self._keys[-1][1]
