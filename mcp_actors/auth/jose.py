"""Signed JSON: what the two sides need of RFC 7515 to 7519, on top of joserfc. Keys are asymmetric, always.

The frame of a JWS is read here and not by joserfc, so that JSON is decoded once, strictly, and to a bounded depth.
Only the signatures and the keys are joserfc's.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

__all__ = [
    "ALGORITHMS",
    "MAX_HEADER_CHARS",
    "PROOF_ALGORITHMS",
    "DpopKey",
    "JoseRejected",
    "Jws",
    "client_assertion",
    "import_private_key",
    "import_public_key",
    "is_signed_by",
    "public_jwk",
    "read_claims",
    "read_jws",
    "sign",
    "token_hash",
]

# The registry holds HMAC and "none" as well: only these names are ever looked up.
ALGORITHMS = frozenset(
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]
)
# Characters of an encoded header. joserfc allows 512, and the key in the header of an RSA proof has 550.
MAX_HEADER_CHARS = 4096
# Bits. Below is breakable, and above costs too much time: the key in a proof is the sender's choice.
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
MAX_RSA_EXPONENT_BITS = 33

_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_PRIVATE_MEMBERS = frozenset(["d", "p", "q", "dp", "dq", "qi", "oth", "k"])
_KEY_CLASSES: dict[str, type[ECKey | OKPKey | RSAKey]] = {"EC": ECKey, "OKP": OKPKey, "RSA": RSAKey}
_TYPE_BY_FAMILY = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_OBJECT = msgspec.json.Decoder(dict[str, Any])

# Seconds. An assertion is made for one request, and the clocks of two machines may differ by some.
ASSERTION_LIFETIME = 60

# In the order of preference: what every server can, and then what is small.
PROOF_ALGORITHMS = ("ES256", "Ed25519", "ES384", "PS256", "RS256")


# -- Signatures and keys ---------------------------------------------------------------------------


class JoseRejected(Exception):
    """A JWS or a key is malformed, or of a kind that we do not accept. The text names the rule and quotes nothing."""


@attrs.frozen
class Jws:
    """A JWS in the compact serialization, taken apart. Nothing about it is verified."""

    header: Mapping[str, Any] = attrs.field(repr=False)
    payload: bytes = attrs.field(repr=False)
    signing_input: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


def read_jws(text: str) -> Jws:
    """Takes a compact JWS apart. The caller has bounded its length.

    Raises:
        JoseRejected: It is malformed, its header is too long, or it has extensions that must be understood
            (RFC 7515 section 4.1.11): we know none.
    """
    found = _COMPACT.fullmatch(text)
    if found is None or found.end(1) > MAX_HEADER_CHARS:
        raise JoseRejected("not a compact JWS with a header of the length that is allowed")
    header = _object(_decoded(found[1]))
    if "crit" in header or "b64" in header:
        raise JoseRejected("extensions that must be understood")
    signing_input = text[: found.end(2)].encode("ascii")
    return Jws(header, _decoded(found[2]), signing_input, _decoded(found[3]))


def read_claims(jws: Jws) -> dict[str, Any]:
    """Returns the payload as a JSON object.

    Raises:
        JoseRejected: It is not a JWS.
    """
    return _object(jws.payload)


def is_signed_by(jws: Jws, key: Key, algorithms: Collection[str]) -> bool:
    """Returns whether ``key`` made the signature by the algorithm of the header, which must be in ``algorithms``."""
    algorithm = jws.header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in algorithms or algorithm not in ALGORITHMS:
        return False
    model = JWSRegistry.algorithms[algorithm]
    try:
        model.check_key(key)
        return model.verify(jws.signing_input, jws.signature, key)
    except (JoseError, ValueError):
        return False


def sign(header: Mapping[str, Any], claims: Mapping[str, Any], key: Key) -> str:
    """Returns a compact JWS of ``claims``, by the algorithm that ``header`` names.

    Raises:
        JoseError: The key is not one for this algorithm.
    """
    model = JWSRegistry.algorithms[header["alg"]]
    model.check_key(key)
    signing_input = _encoded(msgspec.json.encode(header)) + b"." + _encoded(msgspec.json.encode(claims))
    return (signing_input + b"." + _encoded(model.sign(signing_input, key))).decode("ascii")


def import_public_key(jwk: Any) -> Key:
    """Returns the key of a JWK that came from the network.

    Raises:
        JoseRejected: It is malformed, symmetric, holds private members, or is a weak RSA key.
    """
    if not isinstance(jwk, dict) or _PRIVATE_MEMBERS & jwk.keys():
        raise JoseRejected("not a public key")
    return _imported(jwk)


def import_private_key(key: str | Mapping[str, Any], algorithm: str) -> Key:
    """Returns the private key of a PEM text or a JWK.

    Raises:
        ValueError: It is not a private key for ``algorithm``. The text says nothing of the key.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"the algorithm must be one of {', '.join(sorted(ALGORITHMS))}")
    wanted = _TYPE_BY_FAMILY[algorithm[:2]]
    try:
        if isinstance(key, str):
            imported: Key = _KEY_CLASSES[wanted].import_key(key)
            _check_strength(imported)
        else:
            imported = _imported(dict(key))
        JWSRegistry.algorithms[algorithm].check_key(imported)
    except Exception:
        # The libraries below raise many kinds of errors, and their texts may quote the key.
        raise ValueError(f"the key is no {wanted} key for {algorithm} that can be read") from None
    if not imported.is_private:
        raise ValueError(f"the key for {algorithm} is a public one: give the private key")
    return imported


def public_jwk(key: Key) -> dict[str, Any]:
    """Returns the members of a key that RFC 7638 calls required: those that a proof shows."""
    members = [name for name, rule in key.value_registry.items() if rule.required]
    return {"kty": key.key_type, **{name: key[name] for name in members}}


def _imported(jwk: dict[str, Any]) -> Key:
    key_class = _KEY_CLASSES.get(jwk["kty"]) if isinstance(jwk.get("kty"), str) else None
    if key_class is None:
        raise JoseRejected("not a type of key that is accepted")
    if key_class is RSAKey and not MIN_RSA_BITS <= 6 * len(str(jwk.get("n"))) <= MAX_RSA_BITS + 24:
        # joserfc warns the operator of weak keys, but these are the peer's.
        raise JoseRejected("an RSA key of a size that is not accepted")
    if key_class is OKPKey:
        # A curve has one algorithm, which has an old and a new name (RFC 9864): the curve decides.
        jwk = {name: value for name, value in jwk.items() if name != "alg"}
    try:
        key: Key = key_class.import_key(jwk)
        _check_strength(key)
    except JoseRejected:
        raise
    except Exception:
        # The libraries below raise many kinds of errors for bad members, and their texts may quote the key.
        raise JoseRejected("not a key that can be read") from None
    return key


def _check_strength(key: Key) -> None:
    if not isinstance(key, RSAKey):
        return
    numbers = key.public_key.public_numbers()
    if not MIN_RSA_BITS <= numbers.n.bit_length() <= MAX_RSA_BITS:
        raise JoseRejected("an RSA key of a size that is not accepted")
    if numbers.e.bit_length() > MAX_RSA_EXPONENT_BITS:
        raise JoseRejected("an RSA key of an exponent that is not accepted")


def _object(encoded: bytes) -> dict[str, Any]:
    try:
        return _OBJECT.decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        raise JoseRejected("not a JSON object") from None


def _decoded(part: str) -> bytes:
    if len(part) % 4 == 1:
        raise JoseRejected("not base64url")
    decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if _encoded(decoded) != part.encode():
        # RFC 4648, section 3.5: bits that are left over are zero. Else one signature would have several spellings.
        raise JoseRejected("not base64url in its one spelling")
    return decoded


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


# -- Assertions of a client (RFC 7523) -------------------------------------------------------------


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
        ValueError: It is not a private key for the algorithm. The text says nothing of the key.
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


# -- Proofs of a client (RFC 9449) -----------------------------------------------------------------


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
            ValueError: It is not a private JWK with the ``alg`` of a proof. The text says nothing of the key.
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
