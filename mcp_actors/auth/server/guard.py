"""The checks that a listener makes of every request before anything of it is processed.

They read the ``Authorization`` header (RFC 6750 section 2.1, RFC 9449 section 7.1), have the token verified, and check
the scopes and the proof that it needs. A request that is not served gets the answer that RFC 6750, RFC 9449 and RFC
9728 have for it: the code of the RFC and a fixed text, with nothing of a token, and nothing about what is wrong with
it.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs
import msgspec

from mcp_actors.auth.effects import signatures
from mcp_actors.auth.metadata import format_challenge
from mcp_actors.auth.server.settings import (
    MIRROR_PATH,
    PROOF_ALGORITHMS_ACCEPTED,
    ResourceServer,
    closure_of,
    closures,
    metadata_document,
    metadata_paths,
    metadata_url,
)
from mcp_actors.auth.server.verifiers import (
    Fetching,
    IssuerMetadata,
    TokenInvalid,
    VerifierUnavailable,
    key_thumbprint,
)
from mcp_actors.auth.times import is_ahead
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal

__all__ = [
    "MAX_TOKEN",
    "AccessGuard",
    "Answers",
    "Credentials",
    "Denial",
    "MalformedCredentials",
    "ProtectedRequest",
    "read_credentials",
]

# Tokens that are remembered as verified, and as refused.
MAX_TOKENS = 10_000
# Seconds for which a proof that was used is remembered by all processes: the time for which one can be used, whose
# time may be as much ahead as behind.
PROOF_KEPT = 600.0
# Seconds after which a caller may try again whose proof could not be checked.
RETRY_AFTER = 2.0
# Characters of the claims of verified tokens: how many a token has is up to the authorization server and its users.
MAX_CLAIM_CHARACTERS = 16 * 1024 * 1024
# Scopes that a challenge repeats beside those of the operation.
MAX_REPEATED = 50

# Needs joserfc, so it is loaded when the settings ask for it.
_PROOFS = "mcp_actors.auth.server.proofs"
_ORIGIN = re.compile(r"[^:]+://[^/?]+")

# Characters. Tokens of real authorization servers with many groups have a few thousand.
MAX_TOKEN = 16 * 1024

Scheme = Literal["Bearer", "DPoP"]

_SCHEME = re.compile(r"(?i:(bearer)|(dpop))(?![!#$%&'*+.^_`|~0-9A-Za-z-])")
_TOKEN = re.compile(r" +([A-Za-z0-9._~+/-]+=*)[ \t]*")

Header = tuple[str, str]

_TEXTS = {
    "unauthorized": "An access token is needed.",
    "invalid_request": "The Authorization header must have exactly one access token.",
    "invalid_token": "The access token is not valid for this server.",
    "insufficient_scope": "The access token lacks a scope that this needs.",
    "invalid_dpop_proof": "The DPoP proof is not valid for this request.",
    "use_dpop_nonce": "The DPoP proof needs the nonce of this server.",
    "temporarily_unavailable": "The access token cannot be verified at present.",
}
_JSON = ("Content-Type", "application/json")
_NO_STORE = ("Cache-Control", "no-store")


# -- The checks of one listener --------------------------------------------------------------------


class SharedUses(Protocol):
    """A memory of what was used that several processes share: a `mcp_actors.abc.ReplayGuard`."""

    async def first_use(self, name: bytes, seconds: float) -> bool:
        """Returns whether ``name`` is used for the first time; raises `SharedStateUnavailable`."""


class ProtectedRequest(Protocol):
    """The parts of an HTTP request that the checks read."""

    @property
    def method(self) -> str:
        """The method."""

    @property
    def path(self) -> str:
        """The path of the target, percent-encoding untouched."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; repeated headers are joined by ``", "``."""


def _weight(outcome: Principal | Denial) -> int:
    return len(str(outcome.claims)) if isinstance(outcome, Principal) else 0


@attrs.frozen
class _Verified:
    """A token that was verified: the answer, and the key whose proof it needs before that."""

    outcome: Principal | Denial
    thumbprint: str | None
    until: float

    weight: int = attrs.field(
        init=False, default=attrs.Factory(lambda verified: _weight(verified.outcome), takes_self=True)
    )
    """The characters of the claims."""


class AccessGuard:
    """The checks of one listener (MCP 2026-07-28, Authorization, Token Handling).

    Tokens are remembered by their SHA-256 and never themselves.

    Args:
        settings: The settings of the protected server.
        now: Returns seconds since the epoch.

    Raises:
        ImportError: The extra ``auth`` is missing, and proofs need it.
    """

    def __init__(self, settings: ResourceServer, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._expected = settings.expected
        self._now = now
        self._answers = Answers(settings)
        self._implied = closures(settings.implies)
        self._required = frozenset(settings.scopes)
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        # The weight of all of them.
        self._weight = 0
        # The time until which each counts, and for how many seconds it was noted.
        self._refused: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        self._mirrored = IssuerMetadata(settings.issuer[0])
        self._proofs: Any = None
        if settings.dpop != "no":
            proofs = signatures(_PROOFS)
            self._proofs = proofs.Proofs(always_nonces=settings.dpop_nonces)
        self.documents: Mapping[str, bytes] = dict.fromkeys(
            metadata_paths(settings.resource), metadata_document(settings)
        )
        """The metadata of the resource by its paths: ``GET``, for everybody, ``application/json``."""

    def __repr__(self) -> str:
        return f"<AccessGuard {self._settings.resource} {len(self._verified)} tokens remembered>"

    def share(self, uses: SharedUses | None, nonce_key: bytes) -> None:
        """Makes proofs that were used at other processes bad here.

        Args:
            uses: The memory that all processes have, ``None`` if this process is alone: then no request waits for it.
            nonce_key: The key of the nonces, which all processes have.
        """
        if self._proofs is not None:
            self._proofs.uses = uses
            self._proofs.nonces.share(nonce_key)

    @property
    def mirror_path(self) -> str | None:
        """The path at which `mirror` is served, for everybody; ``None`` if it is not."""
        return MIRROR_PATH if self._settings.mirror_metadata else None

    async def mirror(self, fetch: Fetching) -> bytes | Denial:
        """Returns the metadata of the issuer as JSON (MCP 2025-03-26, Server Metadata Discovery)."""
        try:
            return msgspec.json.encode(await self._mirrored.document(fetch, self._now()))
        except VerifierUnavailable as unavailable:
            return self._answers.unavailable(unavailable.retry_after)

    def known(self, request: ProtectedRequest) -> Principal | Denial | None:
        """Returns the answer if no server has to be asked, ``None`` if `check` must be awaited.

        It is made for one call of it, or of `check` if this returned ``None``, for each request: a proof counts once.
        """
        field = request.headers.get("authorization")
        if field is None:
            return self._answers.no_credentials
        found = self._find(field, self._now())
        if not isinstance(found, _Verified):
            return found
        # A proof that was used at another process is known to that alone, unless they are asked.
        return None if self._proofs.uses is not None else self._proven(request, field, found, self._now())[0]

    def _find(self, field: str, now: float) -> Principal | Denial | _Verified | None:
        """Returns the answer to a token that is known, or the token if a proof is still needed for its answer."""
        found = self._verified.get(_digest(field))
        if found is None or not self._counts(found, now):
            return self._find_otherwise(field, now)
        return found.outcome if found.thumbprint is None else found

    def _counts(self, found: _Verified, now: float) -> bool:
        """Whether a token that was verified needs no verification yet."""
        return is_ahead(found.until, self._settings.verifier.remembered_for, now)

    async def check(self, request: ProtectedRequest, fetch: Fetching) -> Principal | Denial:
        """Returns who sent a request, or the answer to it if it is not served.

        Args:
            request: The request.
            fetch: Makes HTTP requests; equal ones at one time are one. Cancelled, nothing is remembered.
        """
        field, now = request.headers.get("authorization"), self._now()
        if field is None:
            return self._answers.no_credentials
        found = self._find(field, now)
        if isinstance(found, _Verified):
            return await self._proven_everywhere(request, field, found)
        if found is not None:
            return found
        credentials = read_credentials(field)
        assert credentials is not None
        verifier = self._settings.verifier
        try:
            principal = await verifier.verify(credentials.token, self._expected, fetch, now)
            verified = self._judged(credentials, principal, now)
        except TokenInvalid as invalid:
            self._log_refusal(invalid.reason)
            if invalid.remembered_for > 0:
                seconds = invalid.remembered_for
                _remember(self._refused, _digest(credentials.field), (now + seconds, seconds))
            return self._invalid(credentials)
        except VerifierUnavailable as unavailable:
            return self._answers.unavailable(unavailable.retry_after)
        if verified.until > now:
            self._remember_verified(_digest(credentials.field), verified)
        if verified.thumbprint is None:
            return verified.outcome
        return await self._proven_everywhere(request, field, verified)

    def _remember_verified(self, digest: bytes, verified: _Verified) -> None:
        """Keeps a verified token, and forgets the oldest ones beyond the limits of number and weight."""
        table = self._verified
        if (former := table.pop(digest, None)) is not None:
            self._weight -= former.weight
        table[digest] = verified
        self._weight += verified.weight
        while len(table) > MAX_TOKENS or self._weight > MAX_CLAIM_CHARACTERS:
            self._weight -= table.popitem(last=False)[1].weight

    def lacking(self, principal: Principal, needed: frozenset[str], *, repeats_granted: bool) -> Denial:
        """Returns the answer to a caller without all scopes of an operation (SEP-2350).

        Args:
            principal: The caller.
            needed: All scopes of the operation.
            repeats_granted: Whether the answer names the caller's own scopes too: clients before MCP 2026-07-28 ask for
                nothing that it does not name.
        """
        scopes = sorted(needed)
        if repeats_granted:
            scopes += sorted(principal.scopes - needed - {"offline_access"})[:MAX_REPEATED]
        return self._answers.insufficient_scope(scopes, bound="cnf" in principal.claims)

    def response_headers(self, principal: Principal) -> Sequence[tuple[str, str]]:
        """Returns what the answer to a request of ``principal`` carries: the nonce for its next proof."""
        if self._proofs is None or "cnf" not in principal.claims:
            return ()
        now = self._now()
        return [("DPoP-Nonce", self._proofs.nonces.current(now))] if self._proofs.wants_nonces(now) else ()

    def _find_otherwise(self, field: str, now: float) -> Principal | Denial | _Verified | None:
        """The answers for which no token has to be verified, one that is known by another spelling included.

        Each token is remembered once: else every spelling of it would be one more to verify, and to have room for.
        """
        try:
            credentials = read_credentials(field)
        except MalformedCredentials:
            return self._answers.malformed
        dpop = self._settings.dpop
        if credentials is None or (credentials.scheme == "DPoP" and dpop == "no"):
            return self._answers.no_credentials
        if credentials.scheme == "Bearer" and dpop == "required":
            return self._answers.invalid_bound_token
        digest = _digest(credentials.field)
        until, seconds = self._refused.get(digest, (now, 0.0))
        if is_ahead(until, seconds, now):
            return self._invalid(credentials)
        found = self._verified.get(digest)
        if found is None or not self._counts(found, now):
            return None
        return found.outcome if found.thumbprint is None else found

    def _judged(self, credentials: Credentials, principal: Principal, now: float) -> _Verified:
        """Returns what is remembered of a token. Raises `TokenInvalid` if it must not be served in this way."""
        ends = principal.expires_at
        thumbprint = key_thumbprint(principal)
        if ends is not None and ends + self._settings.leeway <= now:
            raise TokenInvalid("expired")
        if thumbprint is None and credentials.scheme == "DPoP":
            raise TokenInvalid("not bound to a key")
        until = now + self._settings.verifier.remembered_for
        until = until if ends is None else min(until, ends)
        if credentials.scheme == "Bearer" and thumbprint is not None:
            # RFC 9449 section 7.2: without its proof a bound token could be anybody's.
            self._log_refusal("bound to a key, and sent without a proof")
            bound = self._answers.invalid_bound_token
            return _Verified(self._answers.invalid_token if self._proofs is None else bound, None, until)
        principal = attrs.evolve(principal, scopes=closure_of(principal.scopes, self._implied))
        if self._required <= principal.scopes:
            return _Verified(principal, thumbprint, until)
        denial = self._answers.insufficient_scope(self._settings.scopes, bound=thumbprint is not None)
        return _Verified(denial, thumbprint, until)

    def _proven(
        self, request: ProtectedRequest, field: str, found: _Verified, now: float
    ) -> tuple[Principal | Denial, bytes]:
        """Returns the answer for a token that is bound to a key, and the name of the proof that the request has."""
        credentials = read_credentials(field)
        assert credentials is not None
        proofs = signatures(_PROOFS)
        try:
            name = self._proofs.check(
                request.headers.get("dpop"),
                method=request.method,
                url=self._public_url(request.path),
                token=credentials.token,
                thumbprint=found.thumbprint,
                now=now,
            )
        except proofs.ProofInvalid as invalid:
            self._log_refusal(str(invalid), "proof")
            return self._answers.invalid_proof, b""
        except proofs.NonceWanted:
            return self._answers.use_nonce(self._proofs.nonces.current(now)), b""
        return found.outcome, name

    async def _proven_everywhere(
        self, request: ProtectedRequest, field: str, found: _Verified
    ) -> Principal | Denial:
        """Returns the answer for a token that is bound to a key, whose proof was used at no process before."""
        answer, name = self._proven(request, field, found, self._now())
        uses: SharedUses | None = self._proofs.uses
        if uses is None or not name:
            return answer
        try:
            if await uses.first_use(name, PROOF_KEPT):
                return answer
        except SharedStateUnavailable as unavailable:
            log.warning(
                "a proof cannot be checked", resource=self._settings.resource, cause=unavailable.cause
            )
            return self._answers.unavailable(RETRY_AFTER)
        self._log_refusal("used before, at another process", "proof")
        return self._answers.invalid_proof

    def _public_url(self, path: str) -> str:
        """Returns the URL of a request as its sender has it: by the settings, and never by ``Host``."""
        origin = _ORIGIN.match(self._settings.resource)
        assert origin is not None
        return origin[0] + path

    def _log_refusal(self, reason: str, what: str = "access token") -> None:
        """Writes the reason for the operator, which the caller never learns."""
        log.debug("authorization refused", resource=self._settings.resource, what=what, reason=reason)

    def _invalid(self, credentials: Credentials) -> Denial:
        bound = credentials.scheme == "DPoP"
        return self._answers.invalid_bound_token if bound else self._answers.invalid_token


def _digest(field: str) -> bytes:
    return hashlib.sha256(field.encode("utf-8", "backslashreplace")).digest()


def _remember(
    table: OrderedDict[bytes, tuple[float, float]], digest: bytes, value: tuple[float, float]
) -> None:
    """Keeps a value, and forgets the oldest one beyond the limit."""
    table.pop(digest, None)
    if len(table) >= MAX_TOKENS:
        table.popitem(last=False)
    table[digest] = value


# -- The credentials of a request ------------------------------------------------------------------


class MalformedCredentials(Exception):
    """The header has one of our schemes, and not one token."""


@attrs.frozen
class Credentials:
    """An access token and the scheme that it came with."""

    scheme: Scheme
    token: str = attrs.field(repr=False)

    @property
    def field(self) -> str:
        """The header in the one spelling that a token has: the case of a scheme and the spaces behind it are free."""
        return f"{self.scheme} {self.token}"


def read_credentials(field: str | None) -> Credentials | None:
    """Returns the credentials of a request, ``None`` without any and for the schemes of others.

    Args:
        field: The value of ``Authorization``.

    Raises:
        MalformedCredentials: There is no token, or more than one, or a longer one than is allowed.
    """
    scheme = None if field is None else _SCHEME.match(field)
    if scheme is None or field is None:
        return None
    found = _TOKEN.fullmatch(field, scheme.end())
    if found is None or len(found[1]) > MAX_TOKEN:
        raise MalformedCredentials
    return Credentials("Bearer" if scheme[1] else "DPoP", found[1])


# -- The answers to requests that are not served ---------------------------------------------------


@attrs.frozen
class Denial:
    """The answer to a request that is not served: a whole HTTP response."""

    status: int
    headers: tuple[Header, ...]
    body: bytes

    def __repr__(self) -> str:
        return f"<Denial {self.status}>"


class Answers:
    """The answers of one protected server. Those that are always the same are made once.

    Args:
        settings: The settings of the server.
    """

    def __init__(self, settings: ResourceServer) -> None:
        self._place = {"resource_metadata": metadata_url(settings.resource)}
        self._scope = {"scope": " ".join(settings.scopes)} if settings.scopes else {}
        self._algorithms = {"algs": " ".join(PROOF_ALGORITHMS_ACCEPTED)}
        self._dpop = settings.dpop
        own: Literal["Bearer", "DPoP"] = "DPoP" if settings.dpop == "required" else "Bearer"
        self.no_credentials = self._denial(401, "unauthorized", *self._invitations())
        self.malformed = self._refusal(400, "invalid_request", own)
        self.invalid_token = self._refusal(401, "invalid_token", own)
        self.invalid_bound_token = self._refusal(401, "invalid_token", "DPoP")
        self.invalid_proof = self._refusal(401, "invalid_dpop_proof", "DPoP")

    def insufficient_scope(self, scopes: Iterable[str], *, bound: bool) -> Denial:
        """Returns the answer to a caller who lacks scopes; ``scopes`` are all that it shall ask for."""
        scheme: Literal["Bearer", "DPoP"] = "DPoP" if bound else "Bearer"
        return self._refusal(403, "insufficient_scope", scheme, {"scope": " ".join(scopes)})

    def use_nonce(self, nonce: str) -> Denial:
        """Returns the answer to a proof without a nonce that is good (RFC 9449 section 9)."""
        challenge = format_challenge("DPoP", {"error": "use_dpop_nonce", **self._place})
        return self._denial(401, "use_dpop_nonce", challenge, more=(("DPoP-Nonce", nonce),))

    def unavailable(self, retry_after: float) -> Denial:
        """Returns the answer while it is unknown whether a token is valid.

        It has no challenge: a client that is sent one throws its token away, which may be good.
        """
        after = ("Retry-After", str(max(1, math.ceil(min(retry_after, 3600.0)))))
        return self._denial(503, "temporarily_unavailable", more=(after,))

    def _invitations(self) -> list[str]:
        """The challenges of all schemes that are served, without an error (RFC 6750 section 3.1)."""
        params = {**self._place, **self._scope}
        found = [] if self._dpop == "required" else [format_challenge("Bearer", params)]
        if self._dpop != "no":
            found.append(format_challenge("DPoP", {**self._algorithms, **params}))
        return found

    def _refusal(
        self, status: int, error: str, scheme: Literal["Bearer", "DPoP"], more: dict[str, str] | None = None
    ) -> Denial:
        params = {"error": error, "error_description": _TEXTS[error]}
        if scheme == "DPoP":
            params |= self._algorithms
        params |= self._place
        params |= more if more is not None else self._scope if error == "invalid_token" else {}
        return self._denial(status, error, format_challenge(scheme, params))

    def _denial(self, status: int, error: str, *challenges: str, more: tuple[Header, ...] = ()) -> Denial:
        body = msgspec.json.encode({"error": error, "error_description": _TEXTS[error]})
        lines = tuple(("WWW-Authenticate", each) for each in challenges)
        return Denial(status, (_JSON, _NO_STORE, *lines, *more), body)
