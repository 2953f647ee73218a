"""The clients of the authorization server, and how each proves which one it is.

A client becomes known in one of three ways. It registers itself (RFC 7591), its id is the URL of a document that
describes it (Client ID Metadata Documents, SEP-991), or the command line names it: a program with access of its own.
Nothing that a client says of itself is believed: the person who decides sees it as the client's own words.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard
from urllib.parse import unquote, unquote_plus, urlsplit

import attrs
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from mcp_actors.auth.jose import (
    PROOF_ALGORITHMS,
    JoseRejected,
    Jws,
    import_public_key,
    is_signed_by,
    read_claims,
    read_jws,
)
from mcp_actors.examples.issuer.bounded import ExpiringTable, OAuthError, Parameters
from mcp_actors.supervision.printable import printable

__all__ = [
    "AUTHENTICATION_METHODS",
    "ClientRegistry",
    "KnownClient",
    "is_loopback_uri",
    "machine_client",
    "read_public_key",
]

AUTHENTICATION_METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

# Clients that have registered themselves, and seconds for which one that is not used stays known.
MAX_REGISTERED = 1000
REGISTRATION_LIFETIME = 24 * 3600.0
# Documents of clients, seconds for which one is believed, and for which one that cannot be used is not fetched again.
MAX_DOCUMENTS = 100
DOCUMENT_LIFETIME = 300.0
FAILURE_LIFETIME = 10.0
# Redirect URIs and keys of one client, and characters of an URI and of a name.
MAX_REDIRECT_URIS = 10
MAX_KEYS = 10
MAX_URI = 2048
MAX_NAME = 100
MAX_PORT = 65_535

# Names of assertions that are remembered, so that each is used once. A full table refuses new ones.
MAX_ASSERTIONS = 10_000
# Seconds that an assertion may live at most, and by which the clocks of the two sides may differ.
MAX_ASSERTION_LIFETIME = 300.0
LEEWAY = 30.0
MAX_JTI = 256

Origin = Literal["registered", "document", "configured"]

_URI = re.compile(r"[!$%&()*+,\-./0-9:;=?@A-Z_a-z~\[\]]+")
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
# RFC 8252 section 7.1: the scheme of a program is a domain name turned round, so it has a dot.
_OWN_SCHEME = re.compile(r"[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+")
# OAuth 2.1 section 8.4.2: a program on this machine has another port each time it is started.
_LOOPBACK_ADDRESS = re.compile(r"(http://(?:127\.0\.0\.1|\[::1\]))(?::([0-9]{1,5}))?(/.*)?")
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_KEY_CLASSES: tuple[type[ECKey | OKPKey | RSAKey], ...] = (ECKey, OKPKey, RSAKey)


# -- One client ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class KnownClient:
    """A client, and the requests that it may make.

    Args:
        client_id: Its id.
        name: The name that it gave itself.
        origin: The way in which it became known.
        method: How it authenticates, one of `AUTHENTICATION_METHODS`.
        redirect_uris: Where logins may lead back to.
        grant_types: The grants that it may use.
        secret_digest: The hash of its secret, if it has one.
        keys: The public keys that its assertions may be signed with.
        scopes: The scopes of a program with access of its own; empty for others, whose scopes are those of the person.
        binds_tokens: Whether it asked that every token of it be bound to a key (RFC 9449 section 5.2).
    """

    client_id: str
    name: str
    origin: Origin
    method: str
    redirect_uris: tuple[str, ...] = ()
    grant_types: frozenset[str] = frozenset()
    secret_digest: bytes | None = attrs.field(default=None, repr=False)
    keys: tuple[Key, ...] = attrs.field(default=(), repr=False)
    scopes: tuple[str, ...] = ()
    binds_tokens: bool = False

    @property
    def is_public(self) -> bool:
        """Whether it has nothing to authenticate with, as a program on a person's machine."""
        return self.method == "none"

    def may_redirect_to(self, uri: str) -> bool:
        """Returns whether a redirect URI is one of its own, character by character but for a port of this machine."""
        if uri in self.redirect_uris:
            return True
        portless = _without_port(uri)
        return portless is not None and any(_without_port(each) == portless for each in self.redirect_uris)


def machine_client(
    name: str, scopes: Sequence[str], *, secret: str | None = None, key: Key | None = None
) -> KnownClient:
    """Returns a program with access of its own, which proves itself by a secret or by a key.

    Args:
        name: Its id, and what it is called.
        scopes: The scopes that it may have.
        secret: Its secret.
        key: The public key of its assertions, in place of a secret.
    """
    return KnownClient(
        client_id=name,
        name=name,
        origin="configured",
        method="client_secret_basic" if key is None else "private_key_jwt",
        grant_types=frozenset({"client_credentials"}),
        secret_digest=None if secret is None else _digest(secret),
        keys=() if key is None else (key,),
        scopes=tuple(scopes),
    )


def is_loopback_uri(uri: str) -> bool:
    """Returns whether a redirect URI leads to a program on this machine."""
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in _LOOPBACK_HOSTS


def read_public_key(text: str) -> Key:
    """Returns the public key of a PEM text.

    Raises:
        ValueError: It is not a public key that is accepted. The text says nothing of the key.
    """
    for each in _KEY_CLASSES:
        try:
            key: Key = each.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue  # a key of another type, an encrypted one, or none
        if key.is_private:
            raise ValueError("it is a private key, which only the client should have: give the public one")
        try:
            return import_public_key(key.as_dict(private=False))
        except JoseRejected as rejected:
            raise ValueError(f"it is {rejected}") from None
    raise ValueError("it is not a public key in PEM of the type EC, Ed25519 or RSA")


# -- All clients -----------------------------------------------------------------------------------


class ClientRegistry:
    """The clients that are known, and their authentication.

    Args:
        issuer: The URL of the authorization server, which is the audience of assertions.
        configured: The clients that the command line names.
        now: Returns the seconds since the epoch.
    """

    def __init__(self, issuer: str, configured: Sequence[KnownClient], now: Callable[[], float]) -> None:
        self._audiences = frozenset({issuer, f"{issuer}/token"})
        self._configured = {each.client_id: each for each in configured}
        self._now = now
        self._registered = ExpiringTable[KnownClient](MAX_REGISTERED, REGISTRATION_LIFETIME, now)
        self._documents = ExpiringTable[KnownClient](MAX_DOCUMENTS, DOCUMENT_LIFETIME, now)
        self._failures = ExpiringTable[str](MAX_DOCUMENTS, FAILURE_LIFETIME, now)
        lifetime = MAX_ASSERTION_LIFETIME + 2 * LEEWAY
        self._assertions = ExpiringTable[bool](MAX_ASSERTIONS, lifetime, now)

    def __repr__(self) -> str:
        return f"<ClientRegistry {len(self._registered)} registered, {len(self._documents)} with documents>"

    def __len__(self) -> int:
        return len(self._configured) + len(self._registered) + len(self._documents)

    def register(self, wanted: object) -> tuple[KnownClient, dict[str, Any]]:
        """Registers a client (RFC 7591), and returns it with the object that answers it.

        Args:
            wanted: What the client says of itself, decoded from JSON.

        Raises:
            OAuthError: It cannot be registered so.
        """
        document = _as_object(wanted, "the registration is not a JSON object")
        client_id = secrets.token_urlsafe(16)
        client = _client_from(document, client_id, "registered")
        registered_at = int(self._now())
        answer: dict[str, Any] = {
            "client_id": client_id,
            "client_id_issued_at": registered_at,
            "client_name": client.name,
            "redirect_uris": list(client.redirect_uris),
            "grant_types": sorted(client.grant_types),
            "response_types": ["code"],
            "token_endpoint_auth_method": client.method,
            "application_type": document.get("application_type", "native"),
            "dpop_bound_access_tokens": client.binds_tokens,
        }
        if client.method.startswith("client_secret"):
            secret = secrets.token_urlsafe(32)
            client = attrs.evolve(client, secret_digest=_digest(secret))
            answer["client_secret"] = secret
            answer["client_secret_expires_at"] = registered_at + int(REGISTRATION_LIFETIME)
        self._registered.put(client_id, client)
        return client, answer

    def wants_document(self, client_id: str | None) -> bool:
        """Returns whether an id is the URL of a document that has to be fetched first, for `learn`."""
        if client_id is None or not _is_document_url(client_id):
            return False
        return self._documents.get(client_id) is None and self._failures.get(client_id) is None

    def learn(self, client_id: str, document: object) -> None:
        """Keeps the document of a client, or why it cannot be used.

        Args:
            client_id: The URL of the document.
            document: What was fetched there, decoded from JSON, or an `OAuthError` that says why nothing was.
        """
        try:
            if isinstance(document, OAuthError):
                raise document
            described = _as_object(document, "it is not a JSON object")
            if described.get("client_id") != client_id:
                raise OAuthError("invalid_client", "its client_id is not the URL that it was fetched from")
            self._documents.put(client_id, _client_from(described, client_id, "document"))
        except OAuthError as unusable:
            self._failures.put(client_id, unusable.description)

    def find(self, client_id: str) -> KnownClient:
        """Returns a client by its id, which stays known for as long as it is used.

        Raises:
            OAuthError: There is no such client.
        """
        found = self._configured.get(client_id) or self._documents.get(client_id)
        if found is None:
            found = self._registered.get(client_id)
            self._registered.renew(client_id)
        if found is not None:
            return found
        failure = self._failures.get(client_id)
        if failure is not None:
            raise OAuthError("invalid_client", f"the document of the client cannot be used: {failure}")
        raise OAuthError(
            "invalid_client", "this client is not known here: what registers itself is forgotten at a restart"
        )

    def claimed(self, form: Parameters, authorization: str | None) -> str | None:
        """Returns the id that a request to the token endpoint claims, before anything proves it."""
        assertion = form.get("client_assertion")
        if assertion is not None:
            issuer = read_claims(_read_assertion(assertion)).get("iss")
            return issuer if isinstance(issuer, str) else None
        return form.get("client_id") if authorization is None else _basic(authorization)[0]

    def authenticate(self, form: Parameters, authorization: str | None) -> KnownClient:
        """Returns the client that sent a request to the token endpoint, proven by the method that it has.

        Args:
            form: The form of the request.
            authorization: Its header ``Authorization``.

        Raises:
            OAuthError: It is not known, or proves nothing, or uses two methods at once.
        """
        secret, assertion = form.get("client_secret"), form.get("client_assertion")
        if sum(each is not None for each in (authorization, secret, assertion)) > 1:
            raise OAuthError(
                "invalid_request", "a request authenticates by one method, and this one has several"
            )
        try:
            if assertion is not None:
                return self._by_assertion(form, assertion)
            client_id = form.get("client_id")
            if authorization is not None:
                named, secret = _basic(authorization)
                if client_id not in (None, named):
                    raise OAuthError("invalid_request", "client_id and the header name two clients")
                client_id = named
            if client_id is None:
                raise OAuthError("invalid_client", "the request does not say which client it comes from")
            client = self.find(client_id)
            if client.secret_digest is None:
                proven = secret is None and client.is_public
            else:
                proven = secret is not None and hmac.compare_digest(_digest(secret), client.secret_digest)
            if not proven:
                raise OAuthError("invalid_client", f"the client did not prove itself by {client.method}")
            return client
        except OAuthError as refused:
            if refused.error != "invalid_client":
                raise
            # RFC 6749 section 5.2: who tried the header is challenged for it.
            challenge = [("www-authenticate", 'Basic realm="issuer"')] if authorization is not None else []
            raise OAuthError("invalid_client", refused.description, status=401, headers=challenge) from None

    def _by_assertion(self, form: Parameters, assertion: str) -> KnownClient:
        """Verifies an assertion of a client (RFC 7523 section 3), which is good once."""
        if form.get("client_assertion_type") != ASSERTION_TYPE:
            raise OAuthError("invalid_request", f"client_assertion_type is not {ASSERTION_TYPE}")
        jws = _read_assertion(assertion)
        claims = read_claims(jws)
        client_id, now = claims.get("iss"), self._now()
        if not isinstance(client_id, str) or claims.get("sub") != client_id:
            raise OAuthError("invalid_client", "iss and sub of the assertion are not one client")
        if form.get("client_id") not in (None, client_id):
            raise OAuthError("invalid_client", "the assertion is that of another client than client_id")
        client = self.find(client_id)
        if not any(is_signed_by(jws, key, PROOF_ALGORITHMS) for key in client.keys):
            raise OAuthError("invalid_client", "no key of the client has signed the assertion")
        audience = claims.get("aud")
        if not any(
            each in (audience if isinstance(audience, list) else [audience]) for each in self._audiences
        ):
            raise OAuthError("invalid_client", "the assertion is for another authorization server")
        until, begins, jti = claims.get("exp"), claims.get("nbf", now), claims.get("jti")
        if not _is_time(until) or not now - LEEWAY < until <= now + MAX_ASSERTION_LIFETIME + LEEWAY:
            raise OAuthError("invalid_client", "the assertion has no exp, is over, or lives too long")
        if not _is_time(begins) or begins > now + LEEWAY:
            raise OAuthError("invalid_client", "the assertion is not valid yet")
        if not isinstance(jti, str) or not 0 < len(jti) <= MAX_JTI:
            raise OAuthError("invalid_client", "the assertion has no jti")
        name = f"{client_id}\0{jti}"
        if self._assertions.get(name) is not None or self._assertions.is_full:
            raise OAuthError("invalid_client", "the assertion was used before, or there are too many")
        self._assertions.put(name, True)
        return client


# -- What a client says of itself ------------------------------------------------------------------


def _client_from(document: Mapping[str, Any], client_id: str, origin: Origin) -> KnownClient:
    """Returns the client that metadata describes (RFC 7591 section 2), whichever way it came."""
    method = document.get("token_endpoint_auth_method", "client_secret_basic")
    if origin == "document":
        # A document is public, so there is no secret that could be shared.
        method = document.get("token_endpoint_auth_method", "none")
        if method not in ("none", "private_key_jwt"):
            raise _unusable("a document has token_endpoint_auth_method none or private_key_jwt")
    if method not in AUTHENTICATION_METHODS:
        raise _unusable(f"token_endpoint_auth_method is not one of {', '.join(AUTHENTICATION_METHODS)}")
    if document.get("application_type", "native") not in ("native", "web"):
        raise _unusable("application_type is neither native nor web")
    grant_types = _texts(document, "grant_types", ["authorization_code"])
    if not {"authorization_code"} <= set(grant_types) <= {"authorization_code", "refresh_token"}:
        raise _unusable(
            "grant_types is authorization_code, with refresh_token or without: a program with access of its own is "
            "named on the command line of this server, with --client"
        )
    if _texts(document, "response_types", ["code"]) != ["code"]:
        raise _unusable("response_types is not code alone")
    name = document.get("client_name")
    return KnownClient(
        client_id=client_id,
        name=printable(name, MAX_NAME)
        if isinstance(name, str) and name.strip()
        else "a program without a name",
        origin=origin,
        method=str(method),
        redirect_uris=_redirect_uris(document),
        grant_types=frozenset(grant_types),
        keys=_keys(document) if method == "private_key_jwt" else (),
        binds_tokens=document.get("dpop_bound_access_tokens") is True,
    )


def _redirect_uris(document: Mapping[str, Any]) -> tuple[str, ...]:
    uris = _texts(document, "redirect_uris", [])
    if not 0 < len(uris) <= MAX_REDIRECT_URIS:
        raise OAuthError("invalid_redirect_uri", f"a client has one to {MAX_REDIRECT_URIS} redirect_uris")
    for uri in uris:
        fault = _fault_of(uri)
        if fault is not None:
            raise OAuthError("invalid_redirect_uri", f"a redirect URI {fault}")
    return tuple(dict.fromkeys(uris))


def _fault_of(uri: str) -> str | None:
    if len(uri) > MAX_URI or not _URI.fullmatch(uri):
        return "is too long, has a fragment, or has characters that no URI has"
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is malformed"
    if parts.scheme not in ("http", "https"):
        return None if _OWN_SCHEME.fullmatch(parts.scheme) else "has a scheme that is not a program's own"
    if "@" in parts.netloc or not _HOST.fullmatch(f"[{host}]" if ":" in host else host):
        return "has no host, or more than a host and a port"
    if parts.scheme == "http" and host not in _LOOPBACK_HOSTS:
        return "is not https, and does not lead to this machine"
    return None


def _keys(document: Mapping[str, Any]) -> tuple[Key, ...]:
    jwks = document.get("jwks")
    found = jwks.get("keys") if isinstance(jwks, dict) else None
    if not isinstance(found, list) or not 0 < len(found) <= MAX_KEYS:
        raise _unusable(
            f"private_key_jwt needs jwks with one to {MAX_KEYS} keys; none is fetched from a jwks_uri"
        )
    try:
        return tuple(import_public_key(each) for each in found)
    except JoseRejected as rejected:
        raise _unusable(f"a key of jwks is {rejected}") from None


def _is_document_url(client_id: str) -> bool:
    """Returns whether an id is a URL as the draft on Client ID Metadata Documents wants it: https, and a path."""
    if len(client_id) > MAX_URI or not client_id.startswith("https://") or not _URI.fullmatch(client_id):
        return False
    try:
        parts = urlsplit(client_id)
        _ = parts.port
    except ValueError:
        return False
    dotted = any(unquote(each) in (".", "..") for each in parts.path.split("/"))
    return bool(parts.hostname) and "@" not in parts.netloc and parts.path not in ("", "/") and not dotted


def _texts(document: Mapping[str, Any], name: str, default: list[str]) -> list[str]:
    found = document.get(name, default)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _unusable(f"{name} is not a list of texts")
    return found


def _as_object(value: object, otherwise: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unusable(otherwise)
    return value


def _unusable(description: str) -> OAuthError:
    return OAuthError("invalid_client_metadata", description)


# -- What a client proves --------------------------------------------------------------------------


def _read_assertion(assertion: str) -> Jws:
    try:
        jws = read_jws(assertion)
        read_claims(jws)
    except JoseRejected as rejected:
        raise OAuthError("invalid_client", f"client_assertion is {rejected}", status=401) from None
    return jws


def _basic(authorization: str) -> tuple[str, str]:
    """Returns the id and the secret of a header. Both were form-encoded first (OAuth 2.1 section 2.4.1)."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        name, colon, secret = base64.b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise OAuthError(
            "invalid_client", "the header Authorization is not Basic with an id and a secret", status=401
        )
    return unquote_plus(name), unquote_plus(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_port(uri: str) -> str | None:
    found = _LOOPBACK_ADDRESS.fullmatch(uri)
    if found is None or not 0 < int(found[2] or 80) <= MAX_PORT:
        return None
    return f"{found[1]}{found[3] or ''}"
