"""The grant of a person: a client id, a login in a browser, and the code that is redeemed."""

from __future__ import annotations

from collections.abc import Callable

from mcp_actors.auth.client.authorization_code import CodeRequest
from mcp_actors.auth.client.discovery import Discovered
from mcp_actors.auth.client.proofs import Prover
from mcp_actors.auth.client.records import key_of, load, replace
from mcp_actors.auth.client.registration import (
    RegisteredClient,
    configured_client,
    document_client,
    register,
)
from mcp_actors.auth.client.settings import AuthorizationCode, OAuth
from mcp_actors.auth.client.token_endpoint import TokenAnswer, ask_for_token
from mcp_actors.auth.effects import LogIn, OpenRedirect, RedirectAnswer, Steps, SwapRecord
from mcp_actors.errors import LoginFailed, TokenRefused
from mcp_actors.logging import log

__all__ = ["CLIENT_ERRORS", "forget_registration", "known_client", "person_token", "registration_key"]

# What a token endpoint says of a client that it has forgotten.
CLIENT_ERRORS = ("invalid_client", "unauthorized_client")


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
