"""The grant of a person: a client id, a login in a browser, and the code that is redeemed.

The login is an authorization request, an answer and a code (OAuth 2.1 section 4.1; RFC 9207), protected by a Proof Key
for Code Exchange (RFC 7636), with S256 only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode

import attrs

from mcp_actors.auth.client.discovery import Discovered
from mcp_actors.auth.client.registration import (
    RegisteredClient,
    configured_client,
    document_client,
    key_of,
    load,
    register,
    replace,
)
from mcp_actors.auth.client.settings import AuthorizationCode, OAuth
from mcp_actors.auth.client.token_endpoint import Prover, TokenAnswer, ask_for_token
from mcp_actors.auth.effects import LogIn, OpenRedirect, RedirectAnswer, Steps, SwapRecord
from mcp_actors.auth.metadata import AuthorizationServer, said, shown
from mcp_actors.errors import DiscoveryFailed, LoginFailed, TokenRefused
from mcp_actors.supervision.logging import log

__all__ = [
    "CLIENT_ERRORS",
    "CodeRequest",
    "code_challenge",
    "forget_registration",
    "known_client",
    "new_secret",
    "person_token",
    "registration_key",
    "require_pkce",
]

# What a token endpoint says of a client that it has forgotten.
CLIENT_ERRORS = ("invalid_client", "unauthorized_client")

# Random bytes of a verifier and of a state: more than OAuth 2.1 section 4.1.1 asks for.
SECRET_BYTES = 32
METHOD = "S256"

# Characters of an authorization code.
MAX_CODE = 16 * 1024


# -- The grant -------------------------------------------------------------------------------------


def registration_key(settings: OAuth, issuer: str) -> str:
    """Returns the key of the client that was registered at an issuer."""
    return key_of("client", issuer, settings.account)


def forget_registration(settings: OAuth, issuer: str, client: RegisteredClient) -> Steps[None]:
    """Deletes the registration of a client, unless another one has taken its place.

    Raises:
        TokenStoreFailed: The store cannot be read or written.
    """
    key = registration_key(settings, issuer)
    stored, generation = yield from load(key, RegisteredClient.from_record)
    if stored is not None and stored.client_id == client.client_id:
        yield SwapRecord(key, generation, None)


def known_client(settings: OAuth, found: Discovered, now: float) -> Steps[RegisteredClient | None]:
    """Returns the client that is configured, stored or has a metadata document, in this order; ``None`` without one.

    Raises:
        RegistrationFailed: The configured client belongs to another authorization server.
        TokenStoreFailed: The store cannot be read.
    """
    configured = configured_client(settings.grant, found.server, found.named)
    if configured is not None:
        return configured
    key = registration_key(settings, found.server.issuer)
    stored, _ = yield from load(key, RegisteredClient.from_record)
    if stored is not None and not 0 < stored.secret_expires_at <= now:
        return stored
    return document_client(settings.grant, found.server)


def person_token(
    settings: OAuth,
    grant: AuthorizationCode,
    found: Discovered,
    client: RegisteredClient | None,
    scopes: tuple[str, ...],
    prover: Prover,
    now: Callable[[], float],
) -> Steps[tuple[RegisteredClient, TokenAnswer]]:
    """Lets a person log in, and returns the client that they did it for and the answer of the token endpoint.

    A registration that the authorization server has forgotten is dropped, and made again once.

    Args:
        settings: The settings.
        grant: Its grant.
        found: The resource and its authorization server.
        client: The client, if one is known.
        scopes: The scopes to ask for.
        prover: The key, if tokens are bound to one.
        now: Returns the seconds since the epoch.

    Raises:
        AuthorizationError: There is no client, no login, or no token for it.
    """
    tries_left = 2
    while True:
        tries_left -= 1
        redirect_uri: str = yield OpenRedirect(() if client is None else client.redirect_uris)
        was_stored = client is not None and client.is_dynamic
        if client is None or not client.may_ask(redirect_uri, scopes):
            was_stored = False
            bound = prover.thumbprint is not None and prover.wanted is True
            former, _ = yield from load(
                registration_key(settings, found.server.issuer), RegisteredClient.from_record
            )
            client = yield from register(
                grant, found.server, redirect_uri, scopes, bound=bound, former=former
            )
            yield from replace(registration_key(settings, found.server.issuer), client.as_record())
        request = CodeRequest(
            server=found.server,
            client=client,
            redirect_uri=redirect_uri,
            resource=found.resource,
            scopes=scopes,
        )
        url = request.url(settings.extra_params, prover.thumbprint)
        try:
            answer: RedirectAnswer = yield LogIn(url, request.accepts)
        except LoginFailed:
            # An authorization server that has forgotten a client says so to the person, and sends nothing back.
            if was_stored:
                yield from forget_registration(settings, found.server.issuer, client)
            raise
        form = {**settings.extra_params, **request.form(request.code_of(answer))}
        try:
            return client, (yield from ask_for_token(found.server, client, form, prover, now))
        except TokenRefused as refused:
            if not (tries_left and was_stored and refused.error in CLIENT_ERRORS):
                raise
            log.warning(
                "the client is registered anew: the authorization server has forgotten it",
                error=refused.error,
            )
            yield from forget_registration(settings, found.server.issuer, client)
            client = document_client(grant, found.server)


# -- Proof Key for Code Exchange -------------------------------------------------------------------


def new_secret() -> str:
    """Returns a new code verifier, or state."""
    return secrets.token_urlsafe(SECRET_BYTES)


def code_challenge(verifier: str) -> str:
    """Returns the S256 challenge of a verifier."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def require_pkce(server: AuthorizationServer) -> None:
    """Checks that the authorization server verifies S256 (MCP 2026-07-28, Authorization Code Protection).

    Raises:
        DiscoveryFailed: Its metadata does not say so.
    """
    if METHOD not in (server.code_challenge_methods_supported or ()):
        raise DiscoveryFailed(
            f"the metadata of the authorization server {shown(server.issuer)} does not list {METHOD} in "
            "code_challenge_methods_supported, so a login there would not be protected, and is not begun"
        )


# -- The login -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CodeRequest:
    """One attempt to log in: what its answer is checked against, once. Its ``repr`` shows no secret."""

    server: AuthorizationServer = attrs.field(repr=False)
    client: RegisteredClient
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    state: str = attrs.field(repr=False, factory=new_secret)
    verifier: str = attrs.field(repr=False, factory=new_secret)

    def url(self, extra: Mapping[str, str], thumbprint: str | None) -> str:
        """Returns the URL to send the person to.

        Args:
            extra: More parameters, none of which is one of these.
            thumbprint: The key that the code is bound to (RFC 9449 section 10), if any.

        Raises:
            DiscoveryFailed: The authorization server has no authorization endpoint, or does not verify S256.
        """
        endpoint = self.server.authorization_endpoint
        if endpoint is None:
            raise DiscoveryFailed(
                f"the authorization server {shown(self.server.issuer)} has no authorization_endpoint: nobody can log in"
            )
        require_pkce(self.server)
        parameters = {
            **extra,
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.redirect_uri,
            "code_challenge": code_challenge(self.verifier),
            "code_challenge_method": METHOD,
            "state": self.state,
            "resource": self.resource,
        }
        if self.scopes:
            parameters["scope"] = " ".join(self.scopes)
        if thumbprint is not None:
            parameters["dpop_jkt"] = thumbprint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

    def accepts(self, answer: RedirectAnswer) -> bool:
        """Returns whether an answer belongs to this attempt: it has its ``state``, and has it once."""
        states = [value for name, value in answer if name == "state"]
        return len(states) == 1 and hmac.compare_digest(
            # A program may hand over text that cannot be encoded as UTF-8.
            states[0].encode("utf-8", "backslashreplace"),
            self.state.encode(),
        )

    def code_of(self, answer: RedirectAnswer) -> str:
        """Returns the code of an answer, checked in the order of RFC 9207 section 2.4.

        Raises:
            LoginFailed: It proves nothing, or says that the login was refused. Unless the issuer is proven, no text of
                it is shown.
        """
        if not self.accepts(answer):
            raise LoginFailed("an answer came that does not belong to this login, and it was not used")
        names = [name for name, _ in answer]
        values = dict(answer)
        issuer = values.get("iss")
        if issuer is None and self.server.authorization_response_iss_parameter_supported:
            raise LoginFailed(
                f"the answer to the login does not say that it comes from {shown(self.server.issuer)}, which promises "
                "to say so: it was not used"
            )
        if names.count("iss") > 1 or (issuer is not None and issuer != self.server.issuer):
            raise LoginFailed(
                f"the answer to the login comes from another issuer than {shown(self.server.issuer)}: it was not used"
            )
        if any(names.count(each) > 1 for each in ("code", "error")):
            raise LoginFailed("the answer to the login says one thing twice: it was not used")
        if "error" in values:
            texts = [said(values[name]) for name in ("error", "error_description") if name in values]
            raise LoginFailed(f"{shown(self.server.issuer)} refused the login: {', '.join(texts)}")
        code = values.get("code", "")
        if not 0 < len(code) <= MAX_CODE:
            raise LoginFailed(f"the answer of {shown(self.server.issuer)} to the login has no code")
        return code

    def form(self, code: str) -> dict[str, str]:
        """Returns the form that redeems a code."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
            "resource": self.resource,
        }


def refresh_form(refresh_token: str, resource: str) -> dict[str, str]:
    """Returns the form of a refresh; the scopes stay what they are."""
    return {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}


def with_scopes(form: dict[str, str], scopes: Sequence[str]) -> dict[str, str]:
    """Returns a form with its scopes, if there are any."""
    return {**form, "scope": " ".join(scopes)} if scopes else form
