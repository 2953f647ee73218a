"""Proofs of possession (RFC 9449 section 4.3), and the nonces that they carry. Needs the extra ``auth``.

A token that is bound to a key is served only with a proof: a small JWT for one request, signed with that key. A server
may want each proof to contain a nonce of its own (section 9). It keeps no table of nonces: they are signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
import struct
from collections import OrderedDict
from typing import Any

from joserfc.jwk import Key

from mcp_actors.auth.jose import (
    JoseRejected,
    import_public_key,
    is_signed_by,
    read_claims,
    read_jws,
    token_hash,
)
from mcp_actors.auth.server.settings import PROOF_ALGORITHMS_ACCEPTED
from mcp_actors.auth.urls import origin

__all__ = ["NonceWanted", "Nonces", "ProofInvalid", "Proofs"]


# Seconds between the clocks of the two sides, and the time for which a proof can be used.
WINDOW = 300.0
# Proofs that are remembered so that each is used once: about 10 MB.
MAX_PROOFS = 50_000
# Keys of clients that are remembered, so that each is read once.
MOST_PROOF_KEYS = 1000
# Characters of the name of a proof.
MAX_JTI = 256
MAX_PROOF = 16 * 1024

_DIGEST_BYTES = 16
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile("[A-Za-z0-9._~-]")

# Seconds for which a nonce is good, and for which the same one is given out.
NONCE_LIFETIME = 300.0
SAME_NONCE_FOR = 60.0
_TAG_BYTES = 16
_TIME = struct.Struct(">d")
# 24 bytes in base64 need no padding.
_NONCE_CHARACTERS = (_TIME.size + _TAG_BYTES) * 4 // 3


class ProofInvalid(Exception):
    """A proof is invalid, or made for another request. The caller never learns why: the text is for our log."""


class NonceWanted(Exception):
    """A proof is good but for its nonce: the caller shall make another one with ours."""


class Proofs:
    """Verifies proofs, each of which is good for one request.

    The names of proofs are remembered for as long as the proofs could be used again. When there are more of them than
    the limit, all are forgotten, and from then on a proof needs a nonce that was given out afterwards: no forgotten
    proof can be used again, memory is bounded, and a client has to send one request twice. So it stays until the last
    proof without a nonce has become too old.

    Args:
        always_nonces: Whether each proof must have a nonce.
        limit: The number of proofs that are remembered.
    """

    def __init__(self, *, always_nonces: bool, limit: int = MAX_PROOFS) -> None:
        self.nonces = Nonces()
        self.uses: Any = None
        """A `SharedUses` of the proofs of all processes, ``None`` if this one is alone."""
        self._always_nonces = always_nonces
        self._limit = limit
        self._used: dict[bytes, float] = {}
        self._nonces_until = 0.0
        self._keys: OrderedDict[str, tuple[Any, Key]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Proofs {len(self._used)} remembered>"

    def __len__(self) -> int:
        return len(self._used)

    def wants_nonces(self, now: float) -> bool:
        """Returns whether a proof must have a nonce at present.

        After a clock was set back for all of that time as well: proofs that were used before and are forgotten are good
        by their own times then, once more.
        """
        return self._always_nonces or now < self._nonces_until

    def check(
        self, field: str | None, *, method: str, url: str, token: str, thumbprint: str, now: float
    ) -> bytes:
        """Remembers that a proof was used, if it is good for this request, and returns a name for it.

        Args:
            field: The value of the header ``DPoP``.
            method: The HTTP method of the request.
            url: Its public URL without a query.
            token: The access token of the request.
            thumbprint: The key that the token is bound to.
            now: Seconds since the epoch.

        Raises:
            ProofInvalid: It is not good.
            NonceWanted: It is, but for its nonce.
        """
        return self._used_once(field, method, url, token, thumbprint, now)[0]

    def holder(self, field: str | None, *, method: str, url: str, now: float) -> str:
        """Remembers that a proof was used, if it is good for a request for a token, and returns the key's thumbprint.

        Such a request has no access token, so that the proof may be by any key: the token that is issued is bound to
        it (RFC 9449 section 5). Of the parameters and of what is raised, `check` says the same.

        Raises:
            ProofInvalid: The proof is not good.
            NonceWanted: It is, but for its nonce.
        """
        return self._used_once(field, method, url, None, None, now)[1]

    def _used_once(
        self, field: str | None, method: str, url: str, token: str | None, thumbprint: str | None, now: float
    ) -> tuple[bytes, str]:
        """Returns the name of a proof and the thumbprint of its key; without ``thumbprint`` any key will do."""
        if field is None or len(field) > MAX_PROOF:
            raise ProofInvalid("missing or too long")
        try:
            # Two headers were joined by a comma, which no proof has.
            jws = read_jws(field)
            claims = read_claims(jws)
            _check_request(claims, method, url, token, now)
            key = self._key(jws.header.get("jwk"), thumbprint)
            if jws.header.get("typ") != "dpop+jwt" or not is_signed_by(jws, key, PROOF_ALGORITHMS_ACCEPTED):
                raise ProofInvalid("another typ, or a bad signature")
        except JoseRejected:
            raise ProofInvalid("no signed JWT with a public key") from None
        if self.wants_nonces(now) and not self.nonces.is_good(claims.get("nonce"), now):
            raise NonceWanted
        holder = key.thumbprint() if thumbprint is None else thumbprint
        name = self._use(f"{holder}\0{claims['htu']}\0{claims['jti']}", claims["iat"] + WINDOW, now)
        return name, holder

    def _key(self, jwk: Any, thumbprint: str | None) -> Key:
        """Returns the key of a proof, which must be the one that the token is bound to, if there is a token."""
        if thumbprint is None:
            return import_public_key(jwk)
        found = self._keys.get(thumbprint)
        if found is not None and found[0] == jwk:
            return found[1]
        key = import_public_key(jwk)
        if not _same(key.thumbprint(), thumbprint):
            raise ProofInvalid("another key than the token's")
        self._keys[thumbprint] = jwk, key
        if len(self._keys) > MOST_PROOF_KEYS:
            self._keys.popitem(last=False)
        return key

    def _use(self, name: str, expires_at: float, now: float) -> bytes:
        digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).digest()[:_DIGEST_BYTES]
        if digest in self._used:
            raise ProofInvalid("used before")
        if len(self._used) >= self._limit:
            self._used = {each: until for each, until in self._used.items() if until >= now}
            if len(self._used) > self._limit // 2:
                self._used = {}
                self.nonces.replace(now)
                self._nonces_until = now + 2 * WINDOW
                raise NonceWanted
        self._used[digest] = expires_at
        return digest


def _check_request(claims: dict[str, Any], method: str, url: str, token: str | None, now: float) -> None:
    jti, iat, htu, ath = (claims.get(name) for name in ("jti", "iat", "htu", "ath"))
    if not isinstance(jti, str) or not 0 < len(jti) <= MAX_JTI:
        raise ProofInvalid("malformed jti")
    if isinstance(iat, bool) or not isinstance(iat, int | float) or not now - WINDOW <= iat <= now + WINDOW:
        raise ProofInvalid("another time")
    if claims.get("htm") != method or not isinstance(htu, str) or not _is_same_target(htu, url):
        raise ProofInvalid("another method or URL")
    if token is not None and (not isinstance(ath, str) or not _same(ath, token_hash(token))):
        raise ProofInvalid("another token")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "backslashreplace"), other.encode())


def _is_same_target(one: str, other: str) -> bool:
    """Returns whether two URLs are the same after the normalization that RFC 9449 section 4.3 allows."""
    if one == other:
        return True
    if "?" in one or "#" in one or "@" in one:
        return False
    try:
        return (origin(one), _path(one)) == (origin(other), _path(other))
    except ValueError:
        return False


def _path(url: str) -> str:
    path = "/" + url.partition("://")[2].partition("/")[2]
    return _ESCAPE.sub(_normalized, path)


def _normalized(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if _UNRESERVED.fullmatch(character) else f"%{escape[1].upper()}"


class Nonces:
    """Makes nonces, and knows its own: each is the time at which it was made and a tag by a key of this process,
    or by one that several processes have, which know each other's nonces.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._is_shared = False
        self._good_since = -math.inf
        self._current = ""
        self._made_at = 0.0

    def __repr__(self) -> str:
        return "<Nonces>"

    def share(self, key: bytes) -> None:
        """Makes the nonces of all processes good that were given the same key, and those given out so far bad."""
        self._key, self._is_shared = key, True
        self._current = ""

    def replace(self, now: float) -> None:
        """Makes every nonce bad that was given out so far."""
        if self._is_shared:
            self._good_since = now
        else:
            self._key = secrets.token_bytes(32)
        self._current = ""

    def current(self, now: float) -> str:
        """Returns the nonce to give out, which is a new one each minute."""
        if not self._current or not 0 <= now - self._made_at < SAME_NONCE_FOR:
            packed = _TIME.pack(now)
            text = base64.urlsafe_b64encode(packed + self._tag(packed)).decode("ascii")
            self._current, self._made_at = text.rstrip("="), now
        return self._current

    def is_good(self, nonce: object, now: float) -> bool:
        """Returns whether a nonce is ours and not too old."""
        if not isinstance(nonce, str) or len(nonce) != _NONCE_CHARACTERS or not nonce.isascii():
            return False
        try:
            raw = base64.urlsafe_b64decode(nonce)
        except ValueError:
            return False
        packed, tag = raw[: _TIME.size], raw[_TIME.size :]
        if len(raw) != _TIME.size + _TAG_BYTES or not hmac.compare_digest(tag, self._tag(packed)):
            return False
        made_at: float = _TIME.unpack(packed)[0]
        return made_at >= self._good_since and -SAME_NONCE_FOR <= now - made_at <= NONCE_LIFETIME

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, hashlib.sha256)[:_TAG_BYTES]
