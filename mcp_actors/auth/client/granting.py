"""From a refusal to tokens: the authorization server, the client there, the scopes, the key, and the grant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcp_actors.auth.client.discovery import Discovered, discover
from mcp_actors.auth.client.held_tokens import HeldTokens
from mcp_actors.auth.client.identity_assertions import IdentityAssertions
from mcp_actors.auth.client.machine_grants import MachineToken
from mcp_actors.auth.client.person_grant import known_client, person_token
from mcp_actors.auth.client.records import Tokens
from mcp_actors.auth.client.refusals import Demand
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.client.scopes import scopes_to_ask_for
from mcp_actors.auth.client.settings import AuthorizationCode, ClientCredentials, OAuth
from mcp_actors.auth.effects import Steps
from mcp_actors.auth.metadata import shown
from mcp_actors.logging import log

__all__ = ["Granting"]


class Granting:
    """Gets tokens for one server by the grant of its settings; they are then held.

    Args:
        settings: The settings.
        server_url: The URL of the server.
        protocol_version: The revision of the connection, if that is known already.
        held: Holds the tokens.
        now: Returns the seconds since the epoch.
    """

    def __init__(
        self,
        settings: OAuth,
        server_url: str,
        protocol_version: str | None,
        held: HeldTokens,
        now: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.server_url = server_url
        self.protocol_version = protocol_version
        self.assertions = IdentityAssertions()
        self._held = held
        self._now = now

    def discover(self, hint: str | None) -> Steps[tuple[Discovered, RegisteredClient | None, Tokens | None]]:
        """Finds the authorization server, the client there, and what is stored of it.

        What belongs to another authorization server is left in the store and not used any more.
        """
        held, grant = self._held.tokens, self.settings.grant
        known = set() if held is None else {held.server.issuer}
        if isinstance(grant, AuthorizationCode | ClientCredentials) and grant.issuer is not None:
            known = {grant.issuer}
        found = yield from discover(self.settings, self.server_url, hint, known, self.protocol_version)
        issuer, resource = found.server.issuer, found.resource
        log.info(
            "the authorization server was found", server=self.server_url, issuer=issuer, resource=resource
        )
        if held is not None and (held.server.issuer, held.resource) != (issuer, resource):
            log.warning(
                "the server has another authorization server now", before=held.server.issuer, issuer=issuer
            )
            self._held.drop()
        client = yield from known_client(self.settings, found, self._now())
        stored = yield from self._held.stored(issuer, resource, client)
        return found, client, stored

    def get_access(
        self, found: Discovered, client: RegisteredClient | None, demand: Demand, before: Sequence[str]
    ) -> Steps[None]:
        """Decides on scopes and key, and carries out the grant."""
        server = found.server
        listed = server.scopes_supported if isinstance(self.settings.grant, AuthorizationCode) else None
        scopes = scopes_to_ask_for(
            demand.scope, found.scopes, self.settings.scopes, before=before, authorization_server=listed
        )
        self._held.prover.choose(
            server.dpop_signing_alg_values_supported,
            demand.dpop_algorithms or found.dpop_algorithms,
            demanded=demand.is_for_dpop or found.dpop_required,
        )
        yield from self.carry_out(found, client, scopes)

    def carry_out(
        self, found: Discovered, client: RegisteredClient | None, scopes: tuple[str, ...]
    ) -> Steps[None]:
        settings, grant, prover = self.settings, self.settings.grant, self._held.prover
        if isinstance(grant, AuthorizationCode):
            client, answer = yield from person_token(
                settings, grant, found, client, scopes, prover, self._now
            )
        else:
            assert client is not None, "the settings of a machine name a client"
            wanted = MachineToken(
                server=found.server,
                client=client,
                resource=found.resource,
                scopes=scopes,
                prover=prover,
                extra=settings.extra_params,
                now=self._now,
            )
            answer = yield from wanted.get(grant, self.assertions)
        # If the answer does not say what was granted, it is what was asked for (RFC 6749 section 5.1).
        tokens = Tokens(
            resource=found.resource,
            server=found.server,
            client=client,
            access_token="",
            requested=scopes,
            granted=scopes,
        )
        yield from self._held.keep(tokens, answer)
        settings.counts.granted += 1
        now_held = self._held.tokens or tokens
        log.info(
            "access was granted",
            server=self.server_url,
            issuer=found.server.issuer,
            resource=found.resource,
            grant=type(grant).__name__,
            scopes=shown(" ".join(scopes)),
            granted=shown(" ".join(now_held.granted)),
        )
