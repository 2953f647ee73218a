"""The verification of access tokens: the interface `Verifier`, and the three verifiers that implement it.

`JwtVerifier` checks tokens that are JWTs (RFC 9068) with the keys that their issuer publishes. `IntrospectionVerifier`
asks the authorization server about tokens that only it understands (RFC 7662). `StaticVerifier` knows its tokens from
the start, for tests. They share the checks of a token's claims, and the metadata of an issuer.

The metadata and the keys of an issuer are kept, and fetched again no more often than a fixed interval allows, whatever
tokens arrive. Only the library for signatures is an optional extra, so its module is loaded by the verifier that needs
it.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote_plus, urlencode

import attrs

from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed, signatures
from mcp_actors.auth.metadata import json_object, shown
from mcp_actors.auth.times import is_ahead
from mcp_actors.auth.urls import authorization_server_urls, require_usable
from mcp_actors.errors import UrlRefused
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal

__all__ = [
    "Expected",
    "Fetching",
    "IntrospectionVerifier",
    "IssuerMetadata",
    "JwtVerifier",
    "StaticVerifier",
    "TokenInvalid",
    "Verifier",
    "VerifierUnavailable",
    "check_audience",
    "check_times",
    "fetch_body",
    "key_thumbprint",
    "principal_of",
]


# -- Limits and times, in seconds --------------------------------------------------------------------------

# Entries of a list in a token that are read, characters of a subject, and the last time that is read: the year 5138.
MAX_ENTRIES = 1000
MAX_NAME = 1024
_LAST_SECOND = 1e11

# The time between two attempts while an authorization server cannot be reached, and for which metadata is kept.
RETRY_AFTER = 5.0
METADATA_KEPT_FOR = 3600.0
# RFC 9728 section 7.7 and MCP 2026-07-28, Security Best Practices: few hops, each of them checked.
MAX_REDIRECTS = 3
# The time after which keys are fetched anew although no token needs others: one may have been withdrawn.
KEYS_KEPT_FOR = 600.0
# Keys of a set that are read, and keys that a signature is tried with if its token does not name one.
MAX_KEYS = 100
MAX_TRIES = 16

# The time for which a token stays refused after its authorization server said that it is not active.
REFUSALS_REMEMBERED_FOR = 5.0
# The time for which an authorization server that cannot answer is left alone, whatever tokens arrive. It begins with
# the question, which may take 10 seconds of it.
PAUSE = 15.0
# With these statuses it says that it cannot answer anything. Any other one may be about the token: a caller who finds
# a token that leads to one must not stop the questions about the tokens of others.
_OUT_OF_ORDER = (429, 502, 503, 504)

_OK = 200
_ACCEPT = (("accept", "application/json"),)
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# An ID token is a JWT of the same issuer, with the same keys. Only ID tokens have these members.
_OF_ID_TOKENS = frozenset({"at_hash", "c_hash"})


# -- The interface, and the verifier for tests -------------------------------------------------------------

Fetching = Callable[[Fetch], Awaitable[Fetched | FetchFailed]]
"""A function that makes an HTTP request. Equal requests at one time are one."""


class TokenInvalid(Exception):
    """A token must not be served. The caller learns that, and never the reason.

    Args:
        reason: A few fixed words for the log of this server, with nothing of the token in them.
        remembered_for: Seconds for which the same token is refused without being verified again.
    """

    def __init__(self, reason: str, remembered_for: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remembered_for = remembered_for


class VerifierUnavailable(Exception):
    """Whether a token is valid cannot be found out at present: the authorization server cannot be reached, say.

    Args:
        retry_after: Seconds after which the caller may try again.
    """

    def __init__(self, retry_after: float = 5.0) -> None:
        super().__init__("the access token cannot be verified at present")
        self.retry_after = retry_after


@attrs.frozen
class Expected:
    """A token has to have one of these issuers and one of these audiences, character by character.

    ``leeway`` is the number of seconds by which clocks may differ.
    """

    issuers: tuple[str, ...]
    audiences: tuple[str, ...]
    leeway: float


class Verifier(Protocol):
    """Verifies access tokens. One object may be shared by any number of servers."""

    @property
    def remembered_for(self) -> float:
        """Seconds for which a valid token counts as verified, unless it expires before."""

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token, with its scopes as they were granted.

        A token that is bound to a key (RFC 7800) has it in ``claims["cnf"]["jkt"]`` of the principal: proofs are asked
        for then. Cancelled, nothing is left behind.

        Args:
            token: The token.
            expected: The issuers and audiences that are served.
            fetch: Makes HTTP requests, with the limits of metadata.
            now: Seconds since the epoch.

        Raises:
            TokenInvalid: The token must not be served.
            VerifierUnavailable: Whether the token is valid cannot be found out at present.
        """


class StaticVerifier:
    """Knows its tokens from the start, for tests. A `Verifier`.

    Args:
        principals: The principal of each token.

    Raises:
        TypeError: One of them is not a `Principal`.
    """

    remembered_for = 0.0

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)
        for each in self._principals.values():
            if not isinstance(each, Principal):
                raise TypeError(
                    f"a token stands for a Principal, such as Principal('ann', scopes=[…]), not {type(each).__name__}"
                )

    def __repr__(self) -> str:
        return f"<StaticVerifier {len(self._principals)} tokens>"

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token. Never waits.

        Raises:
            TokenInvalid: The token is unknown.
        """
        principal = self._principals.get(token)
        if principal is None:
            raise TokenInvalid("unknown token")
        return principal


# -- The claims of a token, and the principal that they make ------------------------------------------------


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
    """Returns the principal of verified claims; raises `TokenInvalid` if they name no subject."""
    subject = _name(claims, "sub")
    if subject is None:
        # A client is not enough: all its users would be one subject.
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
    """Returns a claim that is a name. A control character could make two principals of one key."""
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


# -- The metadata and the keys of an issuer ---------------------------------------------------------------


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
        """Forgets the metadata, which is fetched anew when it is needed: a URL of it did not answer."""
        self._document = None

    async def document(self, fetch: Fetching, now: float) -> Mapping[str, Any]:
        """Returns the metadata, which was fetched at most an hour ago, and names this very issuer.

        Raises:
            VerifierUnavailable: It cannot be had.
        """
        found = self._document
        if found is not None and is_ahead(self._fetched_at + METADATA_KEPT_FOR, METADATA_KEPT_FOR, now):
            return found
        if is_ahead(self._retry_at, RETRY_AFTER, now):
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
    """Returns the document at a URL, ``None`` if it cannot be had."""
    answer = await fetch(Fetch("GET", url, _ACCEPT, redirects=MAX_REDIRECTS))
    return answer.body if isinstance(answer, Fetched) and answer.status == _OK else None


class IssuerKeys:
    """The key set of one issuer (RFC 7517 section 5). The keys of another issuer are never tried.

    Args:
        issuer: The issuer, verbatim.
        interval: Seconds between two fetches, whatever tokens arrive.
        jose: The module `mcp_actors.auth.jose`.
    """

    def __init__(self, issuer: str, interval: float, jose: Any) -> None:
        self._jose = jose
        self._metadata = IssuerMetadata(issuer)
        self._interval = interval
        self._keys: list[Any] | None = None
        self._body: bytes | None = None
        self._fetched_at = 0.0
        self._next_fetch_at = 0.0
        self._fetches = 0
        self._failed = False

    async def find(self, key_id: str | None, fetch: Fetching, now: float) -> list[Any]:
        """Returns the keys that a token may be signed with; none if the issuer has no key of this name.

        Raises:
            VerifierUnavailable: The keys cannot be fetched, and the known ones are not enough.
        """
        if self._keys is None or not is_ahead(self._fetched_at + KEYS_KEPT_FOR, KEYS_KEPT_FOR, now):
            await self._fetch_again(fetch, now)
        found = self._named(key_id)
        if not found:
            await self._fetch_again(fetch, now)
            found = self._named(key_id)
        if not found and (self._failed or self._keys is None):
            # The token may be signed with a new key, so its owner must not throw it away.
            raise VerifierUnavailable(max(self._next_fetch_at - now, 1.0))
        return found

    def _named(self, key_id: str | None) -> list[Any]:
        keys = self._keys or []
        return keys[:MAX_TRIES] if key_id is None else [key for key in keys if key.kid == key_id][:MAX_TRIES]

    async def _fetch_again(self, fetch: Fetching, now: float) -> None:
        """Fetches the keys if it is time for that, or joins the fetch that another task has begun."""
        if is_ahead(self._next_fetch_at, max(self._interval, RETRY_AFTER), now) and not self._fetches:
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

    async def _fetched(self, fetch: Fetching, now: float) -> list[Any] | None:
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
        return [key for each in listed[:MAX_KEYS] if (key := self._imported(each)) is not None]

    def _imported(self, jwk: Any) -> Any:
        """Returns a key of a set; ``None`` for one with another use, or of a kind that we do not know."""
        try:
            key = self._jose.import_public_key(jwk)
        except self._jose.JoseRejected:
            return None
        return key if isinstance(jwk, Mapping) and jwk.get("use", "sig") == "sig" else None


# -- The verifiers ----------------------------------------------------------------------------------------


class JwtVerifier:
    """Verifies JWTs with the keys that their issuer publishes. Needs the extra ``auth``. A `Verifier`.

    The keys are found by the metadata of the issuer, kept, and fetched again when a token names an unknown one, but
    never more often than once in ``interval``: until then such a token is refused. While they cannot be fetched, the
    known ones are used.

    Args:
        algorithms: The algorithms that are accepted, asymmetric ones only.
        types: The ``typ`` that are accepted, without ``application/``. Add ``"JWT"`` for authorization servers that
            say nothing more exact; it also admits tokens without any.
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
        self._keys: dict[str, IssuerKeys] = {}

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

    def _keys_of(self, issuer: str) -> IssuerKeys:
        """Returns the keys of an issuer that is configured: there are no more of them than settings name."""
        found = self._keys.get(issuer)
        if found is None:
            found = self._keys[issuer] = IssuerKeys(issuer, self._interval, self._jose)
        return found


@attrs.define(kw_only=True, eq=False)
class IntrospectionVerifier:
    """Asks the authorization server about each token. A `Verifier`, for servers with one issuer.

    Args:
        client_id: The id of this server at the authorization server.
        client_secret: Its secret.
        private_key: Its private key in PEM, in place of the secret (needs the extra ``auth``).
        algorithm: The algorithm of the key.
        key_id: The ``kid`` of the key, if the authorization server needs it.
        secret_in_body: Whether the secret is sent in the body, for authorization servers without HTTP Basic.
        endpoint: The introspection endpoint; by default the one in the metadata of the issuer.
        clients_are_subjects: Whether a token without ``sub`` is that of the client itself. Only for an authorization
            server that always names users: otherwise all users of a client would be one.
        remembered_for: Seconds for which a token counts as active: the time in which a revocation takes effect.

    Raises:
        UrlRefused: ``endpoint`` must not be used.
    """

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    algorithm: str = "ES256"
    key_id: str | None = None
    secret_in_body: bool = False
    endpoint: str | None = None
    clients_are_subjects: bool = False
    remembered_for: float = 30.0
    _metadata: dict[str, IssuerMetadata] = attrs.field(factory=dict, init=False, repr=False)
    _paused_until: dict[str, float] = attrs.field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.endpoint is not None:
            require_usable(self.endpoint, "endpoint")

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token.

        Raises:
            TokenInvalid: It is not active, or not for this server.
            VerifierUnavailable: The authorization server does not say.
        """
        issuer = expected.issuers[0]
        paused_until = self._paused_until.get(issuer, now)
        if is_ahead(paused_until, PAUSE, now):
            raise VerifierUnavailable(paused_until - now)
        metadata = self._metadata.setdefault(issuer, IssuerMetadata(issuer))
        endpoint = self.endpoint or await metadata.url("introspection_endpoint", fetch, now)
        answer = await fetch(self._question(token, endpoint, issuer, now))
        if not isinstance(answer, Fetched) or answer.status != _OK:
            metadata.forget()
            status = answer.status if isinstance(answer, Fetched) else None
            is_out_of_order = status is None or status in _OUT_OF_ORDER
            if is_out_of_order:
                self._paused_until[issuer] = now + PAUSE
            log.warning(
                "an authorization server does not introspect",
                issuer=issuer,
                status=status,
                check="whether it can be reached" if is_out_of_order else "the client id and its secret",
            )
            raise VerifierUnavailable
        claims = json_object(answer.body)
        if claims is None:
            log.warning("an authorization server introspects in another form", issuer=issuer)
            raise VerifierUnavailable
        if claims.get("active") is not True or claims.get("iss", issuer) != issuer:
            raise TokenInvalid("not active, or of another issuer", REFUSALS_REMEMBERED_FOR)
        try:
            check_audience(claims, expected)
            expires_at = check_times(claims, expected, now)
            if self.clients_are_subjects and "sub" not in claims:
                claims["sub"] = claims.get("client_id")
            return principal_of(claims, issuer, expires_at)
        except TokenInvalid as invalid:
            raise TokenInvalid(invalid.reason, REFUSALS_REMEMBERED_FOR) from None

    def _question(self, token: str, endpoint: str, issuer: str, now: float) -> Fetch:
        """Returns the request; it is authenticated in one way, never in two (OAuth 2.1 section 2.4)."""
        form = {"token": token, "token_type_hint": "access_token"}
        headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
        if self.private_key is not None:
            assertions = signatures("mcp_actors.auth.jose")
            form["client_assertion_type"] = _ASSERTION_TYPE
            form["client_assertion"] = assertions.client_assertion(
                self.private_key, self.algorithm, self.client_id, issuer, now, self.key_id
            )
        elif self.secret_in_body:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret or ""}
        else:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret or '')}"
            headers.append(("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        return Fetch("POST", endpoint, tuple(headers), urlencode(form).encode())
