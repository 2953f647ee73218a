"""The grants without a person: client credentials, enterprise-managed, workload identity (SEP-1046, 990 and 1933).

None of them has a refresh token: a new token is had in the same way as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mcp_actors.auth.client.authorization_code import with_scopes
from mcp_actors.auth.client.identity_assertions import IdentityAssertions, text_of
from mcp_actors.auth.client.proofs import Prover
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.client.settings import ClientCredentials, EnterpriseManaged, WorkloadIdentity
from mcp_actors.auth.client.token_endpoint import TokenAnswer, ask_for_token
from mcp_actors.auth.effects import Ask, Steps
from mcp_actors.auth.metadata import AuthorizationServer, shown
from mcp_actors.errors import AuthorizationFailed, TokenRefused

__all__ = ["MachineGrant", "MachineToken"]

MachineGrant = ClientCredentials | EnterpriseManaged | WorkloadIdentity

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@attrs.frozen(kw_only=True)
class MachineToken:
    """An access token that is to be had without a person.

    Args:
        server: The authorization server of the resource.
        client: The client at that authorization server.
        resource: The resource, as its metadata names it.
        scopes: The scopes to ask for.
        prover: The key, if tokens are bound to one.
        extra: More parameters of the token request, none of which is one of its own.
        now: Returns the seconds since the epoch.
    """

    server: AuthorizationServer
    client: RegisteredClient
    resource: str
    scopes: tuple[str, ...]
    prover: Prover
    extra: Mapping[str, str] = attrs.field(repr=False)
    now: Callable[[], float] = attrs.field(repr=False)

    def get(self, grant: MachineGrant, assertions: IdentityAssertions) -> Steps[TokenAnswer]:
        """Gets the token.

        Args:
            grant: The settings.
            assertions: What the identity provider of an enterprise has issued so far.

        Raises:
            TokenRefused: The authorization server or the identity provider refuses.
            AuthorizationUnavailable: One of them cannot be reached or is out of order.
            AuthorizationFailed: The authorization server does not know the grant, or the program gave no assertion.
            UrlRefused: A token endpoint must not be used.
        """
        if isinstance(grant, ClientCredentials):
            return (yield from self._ask({"grant_type": "client_credentials"}))
        if isinstance(grant, WorkloadIdentity):
            return (yield from self._by_workload(grant))
        return (yield from self._by_enterprise(grant, assertions))

    def _by_workload(self, grant: WorkloadIdentity) -> Steps[TokenAnswer]:
        server = self.server
        if server.grant_types_supported is not None and JWT_BEARER not in server.grant_types_supported:
            raise AuthorizationFailed(
                f"the authorization server {shown(server.issuer)} does not list {JWT_BEARER} among its grants, so that "
                "the identity of this workload is of no use there"
            )
        assertion: object = yield Ask(grant.assertion, (grant.audience or server.issuer,))
        return (yield from self._redeem(text_of(assertion, "assertion")))

    def _by_enterprise(self, grant: EnterpriseManaged, assertions: IdentityAssertions) -> Steps[TokenAnswer]:
        """Redeems an assertion of the identity provider; in place of one that is refused it issues another, once."""
        tries_left = 2
        while True:
            tries_left -= 1
            assertion = yield from assertions.get(
                grant, self.server.issuer, self.resource, self.scopes, self.prover, self.now
            )
            try:
                return (yield from self._redeem(assertion))
            except TokenRefused as refused:
                assertions.forget()
                if not (tries_left and refused.error == "invalid_grant"):
                    raise

    def _redeem(self, assertion: str) -> Steps[TokenAnswer]:
        return (yield from self._ask({"grant_type": JWT_BEARER, "assertion": assertion}))

    def _ask(self, form: dict[str, str]) -> Steps[TokenAnswer]:
        whole = with_scopes({**self.extra, **form, "resource": self.resource}, self.scopes)
        return (yield from ask_for_token(self.server, self.client, whole, self.prover, self.now))
