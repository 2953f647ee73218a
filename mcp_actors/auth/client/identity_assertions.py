"""The assertions that the identity provider of an enterprise issues for an authorization server (SEP-990, ID-JAG)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from mcp_actors.auth.client.authorization_code import with_scopes
from mcp_actors.auth.client.proofs import Prover
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.client.settings import EnterpriseManaged
from mcp_actors.auth.client.token_endpoint import INVALID_RESPONSE, TokenAnswer, ask_for_token
from mcp_actors.auth.effects import Ask, Steps
from mcp_actors.auth.metadata import AuthorizationServer, json_object, shown
from mcp_actors.errors import AuthorizationFailed, TokenRefused
from mcp_actors.logging import log

__all__ = ["IdentityAssertions", "text_of"]

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class IdentityAssertions:
    """Turns ID tokens into assertions. The last assertion is used again for as long as it lives."""

    def __init__(self) -> None:
        self._last = ""
        # All that the last one is for, and its end in seconds since the epoch.
        self._last_for: object = None
        self._ends_at = 0.0

    def __repr__(self) -> str:
        return f"<IdentityAssertions {'none' if self._last_for is None else 'one'}>"

    def forget(self) -> None:
        """Has the next one issued anew."""
        self._last, self._last_for = "", None

    def get(
        self,
        grant: EnterpriseManaged,
        audience: str,
        resource: str,
        scopes: tuple[str, ...],
        prover: Prover,
        now: Callable[[], float],
    ) -> Steps[str]:
        """Returns an assertion.

        Args:
            grant: The settings.
            audience: The issuer of the authorization server that it is for.
            resource: The resource.
            scopes: The scopes.
            prover: The key, if tokens are bound to one.
            now: Returns the seconds since the epoch.

        Raises:
            TokenRefused: The identity provider refuses, or issued something else.
            AuthorizationUnavailable: It cannot be reached or is out of order.
            AuthorizationFailed: The program gave no ID token.
            UrlRefused: Its token endpoint must not be used.
        """
        wanted = audience, resource, scopes, prover.thumbprint
        if wanted != self._last_for or now() >= self._ends_at:
            form = {
                "grant_type": TOKEN_EXCHANGE,
                "requested_token_type": ID_JAG,
                "audience": audience,
                "resource": resource,
                "subject_token_type": ID_TOKEN,
            }
            answer = yield from _exchanged(grant, with_scopes(form, scopes), prover, now)
            _check(answer, grant, prover)
            self._last, self._last_for = answer.access_token, wanted
            self._ends_at = 0.0 if answer.expires_in is None else now() + answer.expires_in
        return self._last


def _exchanged(
    grant: EnterpriseManaged, form: dict[str, str], prover: Prover, now: Callable[[], float]
) -> Steps[TokenAnswer]:
    """Exchanges an ID token; a stale one is asked for anew, once."""
    provider = AuthorizationServer(issuer=grant.idp_issuer, token_endpoint=grant.idp_token_endpoint)
    client = RegisteredClient(client_id=grant.idp_client_id, client_secret=grant.idp_client_secret)
    tries_left = 2
    while True:
        tries_left -= 1
        id_token: object = yield Ask(grant.id_token)
        exchange = {**form, "subject_token": text_of(id_token, "id_token")}
        try:
            return (
                yield from ask_for_token(provider, client, exchange, prover, now, kinds=("n_a", "bearer"))
            )
        except TokenRefused as refused:
            if not (tries_left and refused.error == "invalid_grant"):
                raise


def _check(answer: TokenAnswer, grant: EnterpriseManaged, prover: Prover) -> None:
    """Checks that an assertion is one, and bound to the key of the tokens: without that, whoever has it may use it."""
    provider = f"the identity provider {shown(grant.idp_issuer)}"
    if answer.issued_token_type != ID_JAG:
        raise TokenRefused(f"{provider} issued another kind of token than was asked for", INVALID_RESPONSE)
    bound_to = _confirmation(answer.access_token)
    if bound_to == prover.thumbprint:
        return
    if bound_to is not None:
        raise TokenRefused(f"{provider} bound its assertion to another key than ours", INVALID_RESPONSE)
    if prover.wanted is True:
        raise TokenRefused(
            f"{provider} issued an assertion that is not bound to a key, which dpop=True demands: let it support DPoP "
            "(RFC 9449), or leave dpop= to what the servers can",
            INVALID_RESPONSE,
        )
    log.info("the identity provider does not bind its assertion to the key", issuer=grant.idp_issuer)


def _confirmation(assertion: str) -> Any:
    """Returns the ``cnf.jkt`` that a JWT claims. It is the authorization server that verifies the signature."""
    payload = assertion.split(".")[1:2]
    try:
        claims = json_object(base64.urlsafe_b64decode("".join(payload) + "===")) or {}
    except ValueError:
        return None
    confirmation = claims.get("cnf")
    return confirmation.get("jkt") if isinstance(confirmation, dict) else None


def text_of(value: object, name: str) -> str:
    """Returns what a function of the program returned.

    Raises:
        AuthorizationFailed: It is no text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(
            f"the function {name}= must return a text, and it returned {type(value).__name__}"
        )
    return value
