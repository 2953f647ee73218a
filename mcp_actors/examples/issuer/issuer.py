"""The decisions of the authorization server, endpoint by endpoint; it does no I/O.

The protocol is OAuth 2.1 as MCP 2026-07-28 uses it (Authorization): codes with PKCE S256 only, resource indicators (RFC
8707), the issuer in every answer (RFC 9207), rotated refresh tokens, client credentials, and tokens that are bound to
a key where the client proves that it has one (RFC 9449).

There are no passwords: a person chooses a name on a page. So it serves this machine only, in two ways. `checked_url`
takes loopback addresses alone, and `Issuer` issues tokens for servers on this machine alone: a program that is
reachable from elsewhere cannot be protected by it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import attrs

from mcp_actors.auth.jose import PROOF_ALGORITHMS
from mcp_actors.auth.server.proofs import NonceWanted, ProofInvalid, Proofs
from mcp_actors.auth.server.settings import PROOF_ALGORITHMS_ACCEPTED, checked_scopes
from mcp_actors.auth.urls import is_loopback
from mcp_actors.examples.issuer.bounded import ExpiringTable, OAuthError, Parameters
from mcp_actors.examples.issuer.clients import (
    AUTHENTICATION_METHODS,
    ClientRegistry,
    KnownClient,
    is_loopback_uri,
)
from mcp_actors.examples.issuer.tokens import ACCESS_LIFETIME, Grant, GrantTable, SigningKeys

__all__ = ["ConsentRequest", "Issuer", "Redirection", "checked_url"]

# Logins that wait for the person, and seconds for which one may.
MAX_CONSENTS = 1000
CONSENT_LIFETIME = 600.0
# Characters of a state and of a resource.
MAX_STATE = 2048
MAX_RESOURCE = 2048
# Characters of an unknown scope that are repeated.
MAX_SHOWN = 64
# Proofs that are remembered, so that each is used once.
MAX_PROOFS = 10_000

_URL = re.compile(r"http://(127\.0\.0\.1|\[::1\]|localhost):([0-9]{1,5})/?")
_USER = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_RESOURCE = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?(?:[/?][!$%&()*+,\-./0-9:;=?@A-Z_a-z~]*)?"
)
# RFC 7636 section 4.2: 32 bytes in base64url.
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
# RFC 7638: the thumbprint of a key is as long.
_THUMBPRINT = _CHALLENGE


def checked_url(url: str) -> str:
    """Returns the issuer of an address to listen at: scheme, host and port, as they are written.

    Raises:
        ValueError: It is an address that others than this machine could reach, or it does not name a port.
    """
    found = _URL.fullmatch(url)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError(
            "this authorization server asks for no password, so it listens at this machine's own addresses alone: "
            f"write http://127.0.0.1:9000, with a port of your choice, in place of {url!r}"
        )
    return url.rstrip("/")


@attrs.frozen
class Redirection:
    """The browser is sent to a redirect URI with an answer, which may have a code in it."""

    uri: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class ConsentRequest:
    """A login that waits for the person, and what the page shows of it.

    Args:
        ticket: A random text that only this page has, for the answer of the person.
        client: The client that asks.
        redirect_uri: Where the answer goes.
        resource: The server that access is asked for.
        scopes: The scopes that are asked for; without any, all that a person has.
        state: The client's own mark on the request, which is sent back to it.
        challenge: The S256 challenge.
        thumbprint: The key that the code is to be bound to, if the client asks for that.
        browser: The hash of what the browser's cookie says.
        choices: By name of a person, the scopes that would be granted.
    """

    ticket: str = attrs.field(repr=False)
    client: KnownClient
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    state: str | None = attrs.field(repr=False)
    challenge: str = attrs.field(repr=False)
    thumbprint: str | None
    browser: bytes = attrs.field(repr=False)
    choices: Mapping[str, tuple[str, ...]]


class Issuer:
    """An authorization server, without a network. Everything that it knows ends with it.

    Args:
        url: What it calls itself; see `checked_url`.
        users: The persons, each with the scopes that they may grant.
        machines: Programs with access of their own.
        now: Returns the seconds since the epoch.
        report: Is called with a line about each decision, in which no secret is.

    Raises:
        ValueError: The URL is not one of this machine, or a name or a scope has characters that none has.
    """

    def __init__(
        self,
        url: str,
        users: Mapping[str, Sequence[str]],
        machines: Sequence[KnownClient] = (),
        *,
        now: Callable[[], float] = time.time,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.url = checked_url(url)
        wrong = [name for name in users if not _USER.fullmatch(name)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not a name: letters, digits and . _ @ - are in one")
        self.users = {name: checked_scopes(scopes) for name, scopes in users.items()}
        self.machines = tuple(machines)
        self.scopes = checked_scopes(
            scope
            for each in (*self.users.values(), *(machine.scopes for machine in machines))
            for scope in each
        )
        self.clients = ClientRegistry(self.url, machines, now)
        self._now = now
        self._report = report
        self._consents = ExpiringTable[ConsentRequest](MAX_CONSENTS, CONSENT_LIFETIME, now)
        self._grants = GrantTable(now)
        self._keys = SigningKeys(self.url, now)
        self._proofs = Proofs(always_nonces=False, limit=MAX_PROOFS)

    def __repr__(self) -> str:
        return f"<Issuer {self.url}: {len(self.clients)} clients, {len(self._grants)} grants>"

    # -- Documents ---------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """Returns its metadata (RFC 8414), with what OpenID Connect Discovery wants to be there."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "jwks_uri": f"{self.url}/jwks",
            "scopes_supported": list(self.scopes),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(AUTHENTICATION_METHODS),
            "token_endpoint_auth_signing_alg_values_supported": list(PROOF_ALGORITHMS),
            "revocation_endpoint_auth_methods_supported": list(AUTHENTICATION_METHODS),
            "revocation_endpoint_auth_signing_alg_values_supported": list(PROOF_ALGORITHMS),
            "dpop_signing_alg_values_supported": list(PROOF_ALGORITHMS_ACCEPTED),
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
            # It issues no ID tokens. Clients that find it by OpenID Connect refuse a document without these.
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    def jwks(self) -> dict[str, Any]:
        """Returns the public keys of its access tokens (RFC 7517)."""
        return self._keys.document()

    def register(self, wanted: object) -> dict[str, Any]:
        """Registers a client, and returns the object that answers it; see `ClientRegistry.register`.

        Raises:
            OAuthError: It cannot be registered so.
        """
        client, answer = self.clients.register(wanted)
        self._report(f"{client.name!r} registered itself as {client.client_id}")
        return answer

    # -- The login of a person ---------------------------------------------------------------------

    def authorize(self, query: Parameters, browser: str) -> ConsentRequest | Redirection:
        """Returns what an authorization request leads to: a page for the person, or an answer to the client.

        Args:
            query: Its parameters.
            browser: The random text in the browser's cookie.

        Raises:
            OAuthError: It is wrong, and the browser must not be sent anywhere. That is so while the client or its
                redirect URI is not proven, and for redirect URIs on other machines: anybody can register one, and
                would have a link of ours that leads to it (RFC 9700 section 4.11.2).
        """
        client = self.clients.find(query.require("client_id"))
        redirect_uri = query.require("redirect_uri")
        if not client.may_redirect_to(redirect_uri):
            raise OAuthError("invalid_request", "the client has not registered this redirect_uri")
        state = None
        try:
            state = _state(query)
            return self._consent_request(query, client, redirect_uri, state, browser)
        except OAuthError as wrong:
            self._report(f"refused a login of {client.name!r}: {wrong}")
            if not is_loopback_uri(redirect_uri):
                raise
            return self._answer(
                redirect_uri, state, {"error": wrong.error, "error_description": wrong.description}
            )

    def _consent_request(
        self, query: Parameters, client: KnownClient, redirect_uri: str, state: str | None, browser: str
    ) -> ConsentRequest:
        if query.require("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type is not code")
        if "authorization_code" not in client.grant_types:
            raise OAuthError("unauthorized_client", "this client has access of its own, and no person's")
        # A request without a method means plain (RFC 7636 section 4.3), which protects nothing.
        challenge, method = query.get("code_challenge"), query.get("code_challenge_method")
        if challenge is None or method != "S256" or not _CHALLENGE.fullmatch(challenge):
            raise OAuthError(
                "invalid_request", "the request has no code_challenge with code_challenge_method S256"
            )
        thumbprint = query.get("dpop_jkt")
        if thumbprint is not None and not _THUMBPRINT.fullmatch(thumbprint):
            raise OAuthError("invalid_request", "dpop_jkt is not the thumbprint of a key")
        scopes = self._known_scopes(query.get("scope"))
        consent = ConsentRequest(
            ticket=secrets.token_urlsafe(24),
            client=client,
            redirect_uri=redirect_uri,
            resource=_one_resource(query),
            scopes=scopes,
            state=state,
            challenge=challenge,
            thumbprint=thumbprint,
            browser=_digest(browser),
            choices={
                name: tuple(each for each in scopes or having if each in having)
                for name, having in self.users.items()
            },
        )
        self._consents.put(consent.ticket, consent)
        return consent

    def decide(self, form: Parameters, browser: str) -> Redirection:
        """Returns the answer to the client after the person has chosen a name, or has refused.

        Args:
            form: The fields ``ticket``, and ``user`` or ``deny``.
            browser: The random text in the browser's cookie, which must be that of the request.

        Raises:
            OAuthError: No login waits for this answer, or not in this browser.
        """
        ticket = form.require("ticket")
        consent = self._consents.get(ticket)
        if consent is None or not hmac.compare_digest(consent.browser, _digest(browser)):
            raise OAuthError(
                "invalid_request", "this page is too old, or not this browser's: begin the login again"
            )
        self._consents.pop(ticket)
        user, refuses = form.get("user") or "", form.get("deny") is not None
        scopes = () if refuses else consent.choices.get(user, ())
        if not scopes:
            why = "the person refused" if refuses else "there is no such person, or one without these scopes"
            self._report(f"{consent.client.name!r} was not let in: {why}")
            return self._answer(
                consent.redirect_uri, consent.state, {"error": "access_denied", "error_description": why}
            )
        code = self._grants.begin(
            client_id=consent.client.client_id,
            user=user,
            scopes=scopes,
            resource=consent.resource,
            redirect_uri=consent.redirect_uri,
            challenge=consent.challenge,
            thumbprint=consent.thumbprint,
        )
        self._report(f"{user} let {consent.client.name!r} use {consent.resource} with {' '.join(scopes)}")
        return self._answer(consent.redirect_uri, consent.state, {"code": code})

    def _answer(self, redirect_uri: str, state: str | None, answer: Mapping[str, str]) -> Redirection:
        """Returns an authorization response. It says which server it comes from, errors too (RFC 9207)."""
        values = {**answer, **({} if state is None else {"state": state}), "iss": self.url}
        return Redirection(f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{urlencode(values)}")

    def _known_scopes(self, asked: str | None) -> tuple[str, ...]:
        scopes = tuple(dict.fromkeys((asked or "").split()))
        unknown = [each for each in scopes if each not in self.scopes]
        if unknown:
            raise OAuthError(
                "invalid_scope",
                f"the scope {unknown[0][:MAX_SHOWN]} is unknown here: there are {' '.join(self.scopes)}",
            )
        return scopes

    # -- Tokens ------------------------------------------------------------------------------------

    def token(self, form: Parameters, authorization: str | None, proof: str | None) -> dict[str, Any]:
        """Returns the answer to a token request.

        Args:
            form: Its form.
            authorization: Its header ``Authorization``.
            proof: Its header ``DPoP``.

        Raises:
            OAuthError: There is no token for it.
        """
        try:
            client = self.clients.authenticate(form, authorization)
            thumbprint = None if proof is None else self._holder(proof)
            if client.binds_tokens and thumbprint is None:
                raise OAuthError(
                    "invalid_dpop_proof", "this client registered for tokens that are bound to a key"
                )
            grant_type = form.require("grant_type")
            redeem = {
                "authorization_code": self._redeem,
                "refresh_token": self._refresh,
                "client_credentials": self._machine_token,
            }.get(grant_type)
            if redeem is None:
                raise OAuthError("unsupported_grant_type", "grant_type is not in the metadata")
            if grant_type not in client.grant_types:
                raise OAuthError("unauthorized_client", f"this client is not registered for {grant_type}")
            return redeem(form, client, thumbprint)
        except OAuthError as refused:
            self._report(f"refused a token: {refused}")
            raise

    def _redeem(self, form: Parameters, client: KnownClient, thumbprint: str | None) -> dict[str, Any]:
        grant = self._grants.redeem(
            form.require("code"),
            client_id=client.client_id,
            redirect_uri=form.require("redirect_uri"),
            verifier=form.require("code_verifier"),
            thumbprint=thumbprint,
        )
        _check_resource(form, grant)
        return self._granted(client, grant, grant.scopes, thumbprint)

    def _refresh(self, form: Parameters, client: KnownClient, thumbprint: str | None) -> dict[str, Any]:
        grant = self._grants.refresh(
            form.require("refresh_token"),
            client_id=client.client_id,
            thumbprint=thumbprint,
            is_public=client.is_public,
        )
        _check_resource(form, grant)
        asked = tuple(dict.fromkeys((form.get("scope") or "").split()))
        if not set(asked) <= set(grant.scopes):
            # OAuth 2.1 section 4.3.1: what a person did not grant, no refresh can.
            raise OAuthError("invalid_scope", f"a refresh brings no more than {' '.join(grant.scopes)}")
        return self._granted(client, grant, asked or grant.scopes, thumbprint)

    def _granted(
        self, client: KnownClient, grant: Grant, scopes: tuple[str, ...], thumbprint: str | None
    ) -> dict[str, Any]:
        following = self._grants.advance(grant)
        answer = self._token(client, grant.user, grant.resource, scopes, thumbprint, grant.name)
        if "refresh_token" in client.grant_types:
            answer["refresh_token"] = following
        return answer

    def _machine_token(self, form: Parameters, client: KnownClient, thumbprint: str | None) -> dict[str, Any]:
        asked = tuple(dict.fromkeys((form.get("scope") or "").split()))
        if not set(asked) <= set(client.scopes):
            raise OAuthError("invalid_scope", f"this client has no more than {' '.join(client.scopes)}")
        return self._token(
            client, client.client_id, _one_resource(form), asked or client.scopes, thumbprint, grant=""
        )

    def _token(
        self,
        client: KnownClient,
        subject: str,
        resource: str,
        scopes: tuple[str, ...],
        thumbprint: str | None,
        grant: str,
    ) -> dict[str, Any]:
        bound = "" if thumbprint is None else ", bound to a key"
        self._report(f"a token for {subject}, by {client.name!r}, at {resource}: {' '.join(scopes)}{bound}")
        return {
            "access_token": self._keys.access_token(
                subject=subject,
                client_id=client.client_id,
                resource=resource,
                scopes=scopes,
                thumbprint=thumbprint,
                grant=grant,
            ),
            "token_type": "Bearer" if thumbprint is None else "DPoP",
            "expires_in": int(ACCESS_LIFETIME),
            "scope": " ".join(scopes),
        }

    def _holder(self, proof: str) -> str:
        """Returns the thumbprint of the key that a request proves to have."""
        now = self._now()
        try:
            return self._proofs.holder(proof, method="POST", url=f"{self.url}/token", now=now)
        except ProofInvalid as invalid:
            raise OAuthError("invalid_dpop_proof", f"the proof is not good: {invalid}") from None
        except NonceWanted:
            nonce = self._proofs.nonces.current(now)
            raise OAuthError(
                "use_dpop_nonce", "the proof needs this nonce", headers=[("dpop-nonce", nonce)]
            ) from None

    def revoke(self, form: Parameters, authorization: str | None) -> dict[str, Any]:
        """Ends the grant of a refresh token or of an access token (RFC 7009), if it is one of the client's own.

        The answer is the same, an empty object, whatever the token was. An access token that is out stays good until it
        expires, because servers do not ask about it.

        Args:
            form: The form of the request.
            authorization: Its header ``Authorization``.

        Raises:
            OAuthError: The client did not prove itself.
        """
        client = self.clients.authenticate(form, authorization)
        token = form.require("token")
        grant = self._grants.of_refresh_token(token)
        if grant is None:
            grant = self._grants.named(self._keys.grant_of(token) or "")
        if grant is not None and grant.client_id == client.client_id:
            self._grants.end(grant)
            self._report(f"{client.name!r} gave back the access of {grant.user} to {grant.resource}")
        return {}


def _state(query: Parameters) -> str | None:
    state = query.get("state")
    if state is not None and len(state) > MAX_STATE:
        raise OAuthError("invalid_request", f"state has more than {MAX_STATE} characters")
    return state


def _one_resource(parameters: Parameters) -> str:
    """Returns the one server that a request is about (RFC 8707 section 2)."""
    resources = parameters.all("resource")
    if len(resources) != 1:
        raise OAuthError(
            "invalid_target", "the request names no resource, or several: a token is for one server"
        )
    resource = resources[0]
    if len(resource) > MAX_RESOURCE or not _RESOURCE.fullmatch(resource) or not is_loopback(resource):
        raise OAuthError(
            "invalid_target",
            "resource is not the URL of a server on this machine, and others are not protected here",
        )
    return resource


def _check_resource(form: Parameters, grant: Grant) -> None:
    if any(each != grant.resource for each in form.all("resource")):
        raise OAuthError("invalid_target", f"the login was for the resource {grant.resource}")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
