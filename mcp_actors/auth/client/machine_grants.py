"""The grants without a person: client credentials, enterprise-managed, workload identity (SEP-1046, 990 and 1933).

None of them has a refresh token: a new token is had in the same way as the first.
"""

from __future__ import annotations

from mcp_actors.auth.client.authorization_code import with_scopes
from mcp_actors.auth.client.proofs import Prover
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.client.settings import ClientCredentials, EnterpriseManaged, WorkloadIdentity
from mcp_actors.auth.client.token_endpoint import INVALID_RESPONSE, TokenAnswer, ask_for_token
from mcp_actors.auth.effects import Ask, Steps
from mcp_actors.auth.metadata import AuthorizationServer, shown
from mcp_actors.errors import AuthorizationFailed, TokenRefused

__all__ = ["MachineGrant", "machine_token"]

MachineGrant = ClientCredentials | EnterpriseManaged | WorkloadIdentity

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


def machine_token(
    grant: MachineGrant,
    server: AuthorizationServer,
    client: RegisteredClient,
    resource: str,
    scopes: tuple[str, ...],
    prover: Prover,
    now: float,
) -> Steps[TokenAnswer]:
    """Gets an access token without a person.

    Args:
        grant: The settings.
        server: The authorization server of the resource.
        client: The client at that authorization server.
        resource: The resource, as its metadata names it.
        scopes: The scopes to ask for.
        prover: The key, if tokens are bound to one.
        now: Seconds since the epoch.

    Raises:
        TokenRefused: The authorization server or the identity provider refuses.
        AuthorizationUnavailable: One of them cannot be reached or is out of order.
        AuthorizationFailed: The authorization server does not know the grant, or the program gave no assertion.
        UrlRefused: A token endpoint must not be used.
    """
    if isinstance(grant, ClientCredentials):
        form = with_scopes({"grant_type": "client_credentials", "resource": resource}, scopes)
        return (yield from ask_for_token(server, client, form, prover, now))
    if isinstance(grant, WorkloadIdentity):
        if server.grant_types_supported is not None and JWT_BEARER not in server.grant_types_supported:
            raise AuthorizationFailed(
                f"the authorization server {shown(server.issuer)} does not list {JWT_BEARER} among its grants, so that "
                "the identity of this workload is of no use there"
            )
        assertion: object = yield Ask(grant.assertion, (grant.audience or server.issuer,))
        return (
            yield from _redeem(server, client, _text(assertion, "assertion"), resource, scopes, prover, now)
        )
    return (yield from _enterprise_managed(grant, server, client, resource, scopes, prover, now))


def _enterprise_managed(
    grant: EnterpriseManaged,
    server: AuthorizationServer,
    client: RegisteredClient,
    resource: str,
    scopes: tuple[str, ...],
    prover: Prover,
    now: float,
) -> Steps[TokenAnswer]:
    tries_left = 2
    while True:
        tries_left -= 1
        assertion = yield from _id_jag(grant, server, resource, scopes, now)
        try:
            return (yield from _redeem(server, client, assertion, resource, scopes, prover, now))
        except TokenRefused as refused:
            if not (tries_left and refused.error == "invalid_grant"):
                raise


def _id_jag(
    grant: EnterpriseManaged, server: AuthorizationServer, resource: str, scopes: tuple[str, ...], now: float
) -> Steps[str]:
    """Turns an ID token into an assertion for one authorization server; a stale one is asked for anew, once."""
    provider = AuthorizationServer(issuer=grant.idp_issuer, token_endpoint=grant.idp_token_endpoint)
    client = RegisteredClient(client_id=grant.idp_client_id, client_secret=grant.idp_client_secret)
    form = with_scopes(
        {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": server.issuer,
            "resource": resource,
            "subject_token_type": ID_TOKEN,
        },
        scopes,
    )
    tries_left = 2
    while True:
        tries_left -= 1
        id_token: object = yield Ask(grant.id_token)
        exchange = {**form, "subject_token": _text(id_token, "id_token")}
        try:
            answer = yield from ask_for_token(
                provider, client, exchange, Prover(False), now, kinds=("n_a", "bearer")
            )
        except TokenRefused as refused:
            if not (tries_left and refused.error == "invalid_grant"):
                raise
        else:
            if answer.issued_token_type != ID_JAG:
                raise TokenRefused(
                    f"the identity provider {shown(grant.idp_issuer)} issued another kind of token than was asked for",
                    INVALID_RESPONSE,
                )
            return answer.access_token


def _redeem(
    server: AuthorizationServer,
    client: RegisteredClient,
    assertion: str,
    resource: str,
    scopes: tuple[str, ...],
    prover: Prover,
    now: float,
) -> Steps[TokenAnswer]:
    form = with_scopes({"grant_type": JWT_BEARER, "assertion": assertion, "resource": resource}, scopes)
    return (yield from ask_for_token(server, client, form, prover, now))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(
            f"the function {name}= must return a text, and it returned {type(value).__name__}"
        )
    return value
