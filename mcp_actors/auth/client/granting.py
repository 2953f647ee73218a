"""From a refusal to tokens: the authorization server, the client there, the scopes, the key, and the grant.

The grants without a person are here too: client credentials, enterprise-managed and workload identity (SEP-1046, 990
and 1933). They never have a refresh token: a new token is obtained in the same way as the first. For an enterprise, its
identity provider issues the assertions for an authorization server (SEP-990, ID-JAG).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mcp_actors.auth.client.discovery import Discovered, discover
from mcp_actors.auth.client.held_tokens import HeldTokens
from mcp_actors.auth.client.person_grant import known_client, person_token, with_scopes
from mcp_actors.auth.client.registration import RegisteredClient, Tokens, scopes_to_ask_for
from mcp_actors.auth.client.settings import (
    AuthorizationCode,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    WorkloadIdentity,
)
from mcp_actors.auth.client.token_endpoint import INVALID_RESPONSE, Prover, TokenAnswer, ask_for_token
from mcp_actors.auth.effects import Ask, Steps
from mcp_actors.auth.metadata import (
    AuthorizationServer,
    first_parameter,
    json_object,
    parse_challenges,
    shown,
)
from mcp_actors.auth.times import is_ahead
from mcp_actors.errors import AuthorizationFailed, TokenRefused
from mcp_actors.supervision.logging import log

__all__ = [
    "Answered",
    "Demand",
    "Granting",
    "IdentityAssertions",
    "MachineGrant",
    "MachineToken",
    "SentRequest",
    "text_of",
]

# Tokens that one request is sent with: an old one, a new one, and those of two step-ups and of others meanwhile.
MAX_TOKENS = 6

MachineGrant = ClientCredentials | EnterpriseManaged | WorkloadIdentity

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


# -- A refused request, and what its challenges demand ---------------------------------------------


@attrs.define
class SentRequest:
    """A request that was refused, and all its sendings so far.

    Args:
        method: Its HTTP method.
        url: Its URL.
        operation: The operation that it carries, such as ``"tools/call:name"``, or nothing.
        token: The access token that it carried last, if any.
    """

    method: str
    url: str
    operation: str = ""
    token: str | None = attrs.field(default=None, repr=False)
    former_tokens: int = attrs.field(default=0, init=False)
    """How many times it was sent with another token before, or without any."""
    is_repeated: bool = attrs.field(default=False, init=False)
    """Whether it was sent twice with the last token, as it is for a nonce."""

    def sent_again(self, token: str | None) -> None:
        """Takes note of one more sending, with a token."""
        self.is_repeated = token == self.token
        if not self.is_repeated:
            self.former_tokens += 1
            self.token = token

    @property
    def is_given_up(self) -> bool:
        """Whether it was sent with so many tokens that no other one can be of use."""
        return self.former_tokens >= MAX_TOKENS - 1


@attrs.frozen
class Answered:
    """The answer to a request, as far as authorization is concerned.

    Args:
        status: Its HTTP status.
        challenges: Its ``WWW-Authenticate`` field lines.
        nonce: Its ``DPoP-Nonce``.
    """

    status: int
    challenges: Sequence[str] = ()
    nonce: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Demand:
    """The demands of a response: the parameters of its challenges that matter."""

    hint: str | None = None
    scope: str | None = None
    error: str | None = None
    dpop_algorithms: tuple[str, ...] = ()
    is_for_dpop: bool = False
    """Whether it is only satisfied by a token that is bound to a key."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> Demand:
        """Returns the demands of the ``WWW-Authenticate`` field lines of a response."""
        challenges = parse_challenges(lines)
        schemes = {each.scheme for each in challenges}
        algorithms = next((each.params.get("algs", "") for each in challenges if each.scheme == "dpop"), "")
        return cls(
            first_parameter(challenges, "resource_metadata"),
            first_parameter(challenges, "scope"),
            first_parameter(challenges, "error"),
            tuple(algorithms.split()),
            "dpop" in schemes and "bearer" not in schemes,
        )


# -- The way to tokens -----------------------------------------------------------------------------


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


# -- Grants without a person -----------------------------------------------------------------------


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


# -- Assertions of an enterprise's identity provider -----------------------------------------------


class IdentityAssertions:
    """Turns ID tokens into assertions. The last assertion is used again for as long as it lives."""

    def __init__(self) -> None:
        self._last = ""
        # All that the last one is for, its end in seconds since the epoch, and the seconds until then as it was issued.
        self._last_for: object = None
        self._ends_at = self._lifetime = 0.0

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
        if wanted != self._last_for or not is_ahead(self._ends_at, self._lifetime, now()):
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
            self._lifetime = answer.expires_in or 0.0
            self._ends_at = now() + self._lifetime
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
    """Checks that an assertion is one, and bound to the key of the tokens: otherwise anyone who has it may use it."""
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
        AuthorizationFailed: It is not a text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(
            f"the function {name}= must return a text, and it returned {type(value).__name__}"
        )
    return value
