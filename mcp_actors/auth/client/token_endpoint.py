"""The token endpoint: client authentication, requests and their answers (OAuth 2.1 sections 2.4 and 3.2).

`Prover` adds proofs of possession to every grant (RFC 9449): it knows when they are made, with which key and nonce.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode

import attrs

from mcp_actors.auth.client.registration import RegisteredClient, read_scopes
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed, Steps, signatures
from mcp_actors.auth.metadata import AuthorizationServer, json_object, said, shown
from mcp_actors.auth.urls import origin
from mcp_actors.errors import AuthorizationFailed, AuthorizationUnavailable, TokenRefused, UrlRefused
from mcp_actors.supervision.logging import log

__all__ = ["Prover", "TokenAnswer", "ask_for_token", "authenticate", "read_token_answer", "revoke"]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# Characters of a token: a header must have room for it.
MAX_TOKEN = 32 * 1024
# Seconds. What lives longer is asked for anew no sooner.
MAX_LIFETIME = 10 * 365 * 24 * 3600.0
# Not an error code of the protocol: it is for answers that do not follow the protocol.
INVALID_RESPONSE = "invalid_response"

_FORM = "application/x-www-form-urlencoded"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CODE = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,100}")
_SHORTEST_SECRET = 6
_SECRETS = (
    "code",
    "code_verifier",
    "refresh_token",
    "client_secret",
    "client_assertion",
    "assertion",
    "subject_token",
    "token",
)

# Origins whose nonces are kept, and characters of a nonce.
MAX_ORIGINS = 16
MAX_NONCE = 1024

_KEYS = "mcp_actors.auth.jose"


# -- Requests and answers --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TokenAnswer:
    """An answer of a token endpoint. Its ``repr`` shows no token."""

    access_token: str = attrs.field(repr=False)
    token_type: str
    expires_in: float | None = None
    """Seconds; ``None`` if that is not known, and then it is not guessed."""
    refresh_token: str | None = attrs.field(default=None, repr=False)
    scope: tuple[str, ...] | None = None
    issued_token_type: str | None = None


def authenticate(
    client: RegisteredClient, server: AuthorizationServer, now: float
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Returns the headers and the form fields that authenticate a client.

    Raises:
        AuthorizationFailed: The client has a key that cannot sign, or that the authorization server does not take.
    """
    method = _method(client, server.token_endpoint_auth_methods_supported)
    if method == "private_key_jwt" and client.key is not None:
        key, audience = client.key, client.key.assertion_audience or server.issuer
        try:
            assertion: str = signatures("mcp_actors.auth.jose").client_assertion(
                key.private_key, key.algorithm, client.client_id, audience, now, key.key_id
            )
        except (ImportError, ValueError) as error:
            raise AuthorizationFailed(f"no assertion could be signed with the private key: {error}") from None
        return [], {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
    if method == "client_secret_basic":
        # OAuth 2.1 section 2.4.1: both are form-encoded first, so that a colon divides them.
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret or '')}"
        return [("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")], {}
    fields = {"client_id": client.client_id} if client.client_id else {}
    if method == "client_secret_post":
        fields["client_secret"] = client.client_secret or ""
    return [], fields


def _method(client: RegisteredClient, listed: Sequence[str] | None) -> str:
    if client.key is not None:
        if listed is not None and "private_key_jwt" not in listed:
            raise AuthorizationFailed(
                "the client has a private key, and the authorization server does not list private_key_jwt among its "
                "methods of authentication: configure a client_secret"
            )
        return "private_key_jwt"
    # What a program without a secret says cannot depend on a method.
    if client.client_secret is None:
        return "none"
    known = ("client_secret_basic", "client_secret_post", "none")
    if client.method in known and (listed is None or client.method in listed):
        return client.method
    return next((each for each in known if listed is None or each in listed), "client_secret_basic")


def ask_for_token(
    server: AuthorizationServer,
    client: RegisteredClient,
    form: Mapping[str, str],
    prover: Prover,
    now: Callable[[], float],
    *,
    kinds: Collection[str] = ("bearer",),
) -> Steps[TokenAnswer]:
    """Sends a request to the token endpoint, with a proof if the prover has a key.

    A nonce that the authorization server asks for is used in one more try (RFC 9449 section 8).

    Args:
        server: The authorization server.
        client: The client that authenticates.
        form: The grant and its parameters.
        prover: The key, if tokens are bound to one, and the nonces.
        now: Returns the seconds since the epoch.
        kinds: The types of tokens, beside ``dpop`` if the request has a proof, that the answer may have.

    Raises:
        TokenRefused: The authorization server refuses, or its answer is not a token.
        AuthorizationUnavailable: It cannot be reached or is out of order.
        AuthorizationFailed: It does not accept the way in which the client authenticates.
        UrlRefused: Its token endpoint must not be used.
    """
    url = server.token_endpoint
    tries_left = 2
    while True:
        tries_left -= 1
        headers, fields = authenticate(client, server, now())
        headers += [("content-type", _FORM), ("accept", "application/json")]
        proof = prover.proof("token", "POST", url, now())
        if proof is not None:
            headers.append(("dpop", proof))
        body = urlencode({**form, **fields}).encode()
        fetched: Fetched | FetchFailed = yield Fetch("POST", url, headers, body)
        if isinstance(fetched, FetchFailed):
            error = UrlRefused if fetched.refused else AuthorizationUnavailable
            raise error(f"the authorization server {shown(server.issuer)} gave no token: {fetched.reason}")
        is_new = prover.note("token", url, fetched.header("dpop-nonce"))
        try:
            return read_token_answer(
                fetched,
                server.issuer,
                kinds=(*kinds, "dpop") if proof is not None else kinds,
                secrets=_secrets({**form, **fields, "client_secret": client.client_secret or ""}),
            )
        except TokenRefused as refused:
            if not (tries_left and is_new and proof is not None and refused.error == "use_dpop_nonce"):
                raise


def read_token_answer(
    fetched: Fetched, issuer: str, *, kinds: Collection[str] = ("bearer",), secrets: Sequence[str] = ()
) -> TokenAnswer:
    """Returns the answer of a token endpoint. No type in it is trusted.

    Args:
        fetched: The response.
        issuer: Who answered, for the errors.
        kinds: The types of tokens that it may have; without a proof none can be bound to a key.
        secrets: What the request said; a code or a description that repeats any of it is not shown.

    Raises:
        TokenRefused: It is an error or no token.
        AuthorizationUnavailable: The authorization server is out of order.
    """
    if fetched.status >= 500 or fetched.status == 429:
        raise AuthorizationUnavailable(
            f"the authorization server {shown(issuer)} answers {fetched.status} to a token request: try again later"
        )
    document = _document(fetched)
    error = document.get("error")
    if fetched.status != 200 or error is not None:
        code = (
            error if isinstance(error, str) and error and not _repeats(error, secrets) else INVALID_RESPONSE
        )
        raise TokenRefused(
            f"the authorization server {shown(issuer)} refuses a token ({fetched.status}): {said(code)}"
            f"{_description(document, secrets)}{_ADVICE.get(code, '')}",
            # It may end up in a log: a text that does not look like a code of RFC 6749 section 5.2 is left out.
            code if _CODE.fullmatch(code) else INVALID_RESPONSE,
        )
    token, kind = document.get("access_token"), document.get("token_type")
    kind = kind.lower() if isinstance(kind, str) else ""
    if not _is_token(token) or kind not in kinds:
        raise TokenRefused(
            f"the authorization server {shown(issuer)} answers without an access token of a type that was asked for",
            INVALID_RESPONSE,
        )
    refresh, scope, issued = (document.get(name) for name in ("refresh_token", "scope", "issued_token_type"))
    return TokenAnswer(
        access_token=str(token),
        token_type=kind,
        expires_in=_seconds(document.get("expires_in")),
        refresh_token=refresh if _is_token(refresh) else None,
        scope=read_scopes(scope) if isinstance(scope, str) and scope.strip() else None,
        issued_token_type=issued if isinstance(issued, str) else None,
    )


def revoke(
    server: AuthorizationServer, client: RegisteredClient, token: str, hint: str, now: float
) -> Steps[bool]:
    """Revokes a token (RFC 7009) and returns whether that was confirmed; ``False`` where it is not supported.

    Raises:
        AuthorizationFailed: The authorization server does not accept the way in which the client authenticates.
    """
    if server.revocation_endpoint is None:
        return False
    headers, fields = authenticate(client, server, now)
    form = urlencode({"token": token, "token_type_hint": hint, **fields}).encode()
    headers += [("content-type", _FORM), ("accept", "application/json")]
    fetched: Fetched | FetchFailed = yield Fetch("POST", server.revocation_endpoint, headers, form)
    return isinstance(fetched, Fetched) and fetched.status == 200


_ADVICE = {
    "invalid_client": ". Check the client id and its secret or key",
    "invalid_dpop_proof": ". Check the clock of this machine: a proof is good for some seconds only",
    "invalid_target": ". If the server has another resource at this authorization server, pass resource=",
    "invalid_scope": ". Check scopes=",
}


def _document(fetched: Fetched) -> dict[str, Any]:
    kind = (fetched.header("content-type") or "").partition(";")[0].strip().lower()
    if kind == _FORM:
        try:
            return dict(parse_qsl(fetched.body.decode(), max_num_fields=100))
        except ValueError:
            return {}
    return json_object(fetched.body) or {}


def _description(document: Mapping[str, Any], secrets: Sequence[str]) -> str:
    text = document.get("error_description")
    if not isinstance(text, str) or not text or _repeats(text, secrets):
        return ""
    return f", {said(text)}"


def _repeats(text: str, secrets: Sequence[str]) -> bool:
    return any(secret in text for secret in secrets)


def _secrets(form: Mapping[str, str]) -> list[str]:
    return [form[name] for name in _SECRETS if len(form.get(name, "")) >= _SHORTEST_SECRET]


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TOKEN and _TOKEN.fullmatch(value) is not None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_LIFETIME) if math.isfinite(seconds) else None


# -- Proofs of possession --------------------------------------------------------------------------


class Prover:
    """The key that the tokens of one issuer are bound to, and the nonces that servers gave.

    Args:
        wanted: Whether tokens are bound to a key: ``None`` where the other side can, ``True`` always, ``False`` never.
    """

    def __init__(self, wanted: bool | None) -> None:
        self.wanted = wanted
        self._key: Any = None
        # The nonces of a resource and of an authorization server never mix, even with one origin.
        self._nonces: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"<Prover {self._key!r}>"

    @property
    def thumbprint(self) -> str | None:
        """The ``jkt`` of the key, ``None`` without one."""
        return None if self._key is None else str(self._key.thumbprint)

    def stored(self) -> dict[str, Any] | None:
        """Returns the private key for the token store, ``None`` without one."""
        return None if self._key is None else dict(self._key.as_jwk())

    def take(self, jwk: Mapping[str, Any] | None) -> None:
        """Takes the key that was stored with a token, ``None`` for a token that is bound to none."""
        self._key = None
        if jwk is not None:
            try:
                self._key = signatures(_KEYS).DpopKey.from_jwk(jwk)
            except (ValueError, ImportError):
                log.warning("a stored key for proofs cannot be used, and a new one will be made")

    def choose(
        self, supported: Collection[str] | None, challenged: Collection[str] | None, *, demanded: bool
    ) -> None:
        """Decides whether the next token is bound to a key, and has one of an algorithm that both sides can.

        Args:
            supported: The algorithms in the metadata of the authorization server; ``None`` if it lists none.
            challenged: The algorithms that the server's challenge or metadata names; ``None`` if it names none.
            demanded: Whether the server challenged for proofs, or its metadata demands them.

        Raises:
            AuthorizationFailed: Proofs are demanded, and there is no algorithm for them or they are switched off.
        """
        needed = demanded or self.wanted is True
        # A server that says nothing of proofs may know plain tokens alone, whatever its authorization server can do.
        offered = supported and challenged
        if self.wanted is False or not (needed or offered):
            if demanded:
                raise AuthorizationFailed(
                    "the server demands DPoP, which these settings switch off: remove dpop=False"
                )
            self._key = None
            return
        try:
            keys = signatures(_KEYS)
        except ImportError as error:
            if needed:
                raise AuthorizationFailed(f"DPoP is needed: {error}") from error
            log.info("the authorization server can bind tokens to a key, but the extra auth is not installed")
            self._key = None
            return
        lists = [each for each in (supported, challenged) if each]
        usable = [each for each in keys.PROOF_ALGORITHMS if all(each in names for names in lists)]
        if not usable and needed:
            raise AuthorizationFailed(
                "the server and its authorization server demand DPoP with algorithms of which none is known here: "
                f"known are {', '.join(keys.PROOF_ALGORITHMS)}"
            )
        if not usable:
            self._key = None
        elif self._key is None or self._key.algorithm not in usable:
            self._key = keys.DpopKey.generate(usable[0])

    def note(self, role: str, url: str, nonce: str | None) -> bool:
        """Keeps the nonce of a response, and returns whether it is another one than before."""
        if nonce is None or not 0 < len(nonce) <= MAX_NONCE:
            return False
        place = role, origin(url)
        if self._nonces.get(place) == nonce:
            return False
        if place not in self._nonces and len(self._nonces) >= MAX_ORIGINS:
            self._nonces.clear()
        self._nonces[place] = nonce
        return True

    def proof(self, role: str, method: str, url: str, now: float, token: str | None = None) -> str | None:
        """Returns a new proof for one sending of one request, ``None`` without a key."""
        if self._key is None:
            return None
        nonce = self._nonces.get((role, origin(url))) if self._nonces else None
        return str(self._key.proof(method, url, now=now, nonce=nonce, token=token))
