"""The tokens for one server: held, stored, refreshed and dropped."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mcp_actors.auth.client.person_grant import (
    CLIENT_ERRORS,
    forget_registration,
    refresh_form,
    registration_key,
)
from mcp_actors.auth.client.registration import (
    LastIssuer,
    RegisteredClient,
    Tokens,
    configured_client,
    delete,
    key_of,
    load,
    read_last_issuer,
    read_tokens,
    replace,
)
from mcp_actors.auth.client.settings import AuthorizationCode, ClientCredentials, OAuth, WorkloadIdentity
from mcp_actors.auth.client.token_endpoint import INVALID_RESPONSE, Prover, TokenAnswer, ask_for_token
from mcp_actors.auth.effects import Lock, Steps, SwapRecord, Unlock
from mcp_actors.auth.metadata import AuthorizationServer
from mcp_actors.auth.urls import canonical_resource
from mcp_actors.errors import RegistrationFailed, TokenRefused
from mcp_actors.supervision.logging import log

__all__ = ["HeldTokens"]

# Seconds before its end at which a token is refreshed, if it lives twice as long at least.
RENEWAL = 30.0
# Seconds from a token to the next renewal at least: one may have ended when it comes.
SHORTEST_RENEWAL = 0.5


class HeldTokens:
    """The tokens for one server, and the key that they are bound to.

    Args:
        settings: The settings.
        server_url: The URL of the server.
        now: Returns the seconds since the epoch.
    """

    def __init__(self, settings: OAuth, server_url: str, now: Callable[[], float]) -> None:
        self.settings = settings
        self.server_url = server_url
        self.now = now
        self.tokens: Tokens | None = None
        self.prover = Prover(settings.dpop)
        # Whether the token of the moment was issued to this program, and not found in the store.
        self._is_issued = False
        # The last value that the store received for the server.
        self._last: LastIssuer | None = None
        # Whether the store could not be given what is held: it has older tokens then.
        self._is_unsaved = False
        # How often tokens were held that may be another caller's than those before.
        self._logins = 0

    @property
    def token(self) -> str | None:
        """The access token of the moment."""
        return None if self.tokens is None else self.tokens.access_token

    @property
    def access(self) -> object:
        """Equal to an earlier value if the tokens are still those of the same caller with the same scopes.

        A person may log in as somebody else, and what another process has stored may be of another login.
        """
        tokens = self.tokens
        if tokens is None:
            return (self._logins,)
        return (
            self._logins,
            tokens.server.issuer,
            tokens.resource,
            tokens.client.client_id,
            set(tokens.granted),
        )

    def was_issued(self, token: str | None) -> bool:
        """Returns whether a token is that of the moment, and was issued to this program."""
        return self._is_issued and token is not None and token == self.token

    def has_ended(self, tokens: Tokens) -> bool:
        """Returns whether an access token is known to be of no use any more."""
        return tokens.expires_at is not None and tokens.expires_at <= self.now()

    def drop(self) -> None:
        """Holds nothing any more, the key included; the store keeps what it has."""
        self.tokens = None
        self._is_unsaved = False
        self.prover.take(None)

    # -- the store -------------------------------------------------------------------------------------------------

    @property
    def server_key(self) -> str:
        """The key under which the store remembers which tokens the server was used with last."""
        grant = self.settings.grant
        if isinstance(grant, AuthorizationCode):
            kind, client = "person", grant.client_id or grant.client_metadata_url or ""
        else:
            kind, client = type(grant).__name__, grant.client_id or ""
        return key_of("server", canonical_resource(self.server_url), kind, client, self.settings.account)

    def key(self, issuer: str, resource: str, client_id: str) -> str:
        """Returns the key of the tokens of a client at a resource."""
        return key_of("tokens", issuer, resource, client_id, self.settings.account)

    def restore(self) -> Steps[None]:
        """Takes the tokens that the server was used with last.

        Raises:
            TokenStoreFailed: The store cannot be read.
        """
        last, _ = yield from load(self.server_key, read_last_issuer)
        if last is None or self.settings.resource not in (None, last.resource):
            return
        stored, _ = yield from load(self.key(last.issuer, last.resource, last.client_id), read_tokens)
        if stored is None or last != _last_of(stored):
            return
        try:
            configured = configured_client(self.settings.grant, stored.server, stored.server.issuer)
        except RegistrationFailed:
            # The settings name another authorization server than those of the run that stored this.
            return
        self._last = last
        self.take(stored if configured is None else attrs.evolve(stored, client=configured))

    def stored(self, issuer: str, resource: str, client: RegisteredClient | None) -> Steps[Tokens | None]:
        """Returns the tokens that the store has for a client at a resource, and takes their key if none are held.

        Those that are held and could not be stored are newer. Another program may have registered a client since, and
        have no tokens for it: those that are held are for the former one, and as good as before.

        Raises:
            TokenStoreFailed: The store cannot be read.
        """
        clients = [] if client is None else [client]
        if (
            self.tokens is not None
            and self.tokens.client.is_dynamic
            and (client is None or client.is_dynamic)
        ):
            clients.append(self.tokens.client)
        for each in clients:
            found, _ = yield from load(self.key(issuer, resource, each.client_id), read_tokens)
            if (
                self._is_unsaved
                and self.tokens is not None
                and self.tokens.client.client_id == each.client_id
            ):
                found = self.tokens
            if found is not None:
                if self.tokens is None:
                    self.prover.take(found.dpop_key)
                return attrs.evolve(found, client=each)
        return None

    # -- changes ---------------------------------------------------------------------------------------------------

    def take(self, tokens: Tokens) -> None:
        """Holds tokens and the key that they are bound to, unless they cannot be used as the settings demand."""
        self.prover.take(tokens.dpop_key)
        is_usable = self.prover.thumbprint is not None if tokens.is_bound else self.settings.dpop is not True
        self.tokens = tokens if is_usable else None
        self._is_issued = False
        self._logins += 1

    def adopt(self, tokens: Tokens) -> Steps[None]:
        """Holds tokens that the store had.

        Raises:
            TokenStoreFailed: The store cannot be written.
        """
        self.take(tokens)
        self._is_unsaved = False
        yield from self._remember(tokens)

    def keep(self, tokens: Tokens, answer: TokenAnswer) -> Steps[None]:
        """Holds and stores the tokens of an answer; ``tokens`` says what they are for.

        They are held before they are stored: a store that fails costs the program nothing but its next start.

        Raises:
            TokenRefused: The token is not bound to the key, and the settings demand that.
            TokenStoreFailed: The store cannot be written.
        """
        made = self._made(tokens, answer)
        if not isinstance(self.settings.grant, ClientCredentials | WorkloadIdentity):
            self._logins += 1
        key = self.key(made.server.issuer, made.resource, made.client.client_id)
        yield from replace(key, made.as_record())
        self._is_unsaved = False
        yield from self._remember(made)

    def refresh(
        self, server: AuthorizationServer, resource: str, client: RegisteredClient, rejected: str | None
    ) -> Steps[bool]:
        """Gets another token by the refresh token that is stored, and returns whether there is one now.

        Other processes wait meanwhile, and then find it in the store. Where somebody was faster, theirs is taken.

        Args:
            server: The authorization server, which issued the refresh token.
            resource: The resource.
            client: The client that the refresh token was issued to.
            rejected: The access token that is of no use any more.

        Raises:
            TokenRefused: The authorization server does not know the client that the settings name.
            AuthorizationUnavailable: The authorization server cannot be reached or is out of order: tokens are kept.
            AuthorizationFailed: It does not accept the way in which the client authenticates.
            UrlRefused: Its token endpoint must not be used.
            TokenStoreFailed: The store cannot be read or written.
        """
        key = self.key(server.issuer, resource, client.client_id)
        yield Lock(key)
        stored, generation = yield from load(key, read_tokens)
        stored = self.tokens if self._is_unsaved else stored
        if stored is None or (stored.refresh_token is None and stored.access_token == rejected):
            self.tokens = None
        elif stored.refresh_token is None or (stored.access_token != rejected and not self.has_ended(stored)):
            yield from self.adopt(attrs.evolve(stored, client=client))
        else:
            self.prover.take(stored.dpop_key)
            form = {**self.settings.extra_params, **refresh_form(stored.refresh_token, resource)}
            kept = attrs.evolve(stored, server=server, client=client)
            try:
                answer = yield from ask_for_token(server, client, form, self.prover, self.now)
                made = self._made(kept, answer)
            except TokenRefused as refused:
                yield from self._refused(key, generation, kept, refused)
            else:
                if not (yield SwapRecord(key, generation, made.as_record())):
                    yield from replace(key, made.as_record())
                self._is_unsaved = False
                yield from self._remember(made)
                self.settings.counts.refreshed += 1
                log.info(
                    "the access token was refreshed",
                    server=self.server_url,
                    issuer=server.issuer,
                    resource=resource,
                )
        yield Unlock(key)
        return self.token is not None and self.token != rejected

    def _refused(
        self, key: str, generation: int | None, tokens: Tokens, refused: TokenRefused
    ) -> Steps[None]:
        """Drops tokens whose refresh was refused, unless somebody else has replaced them meanwhile."""
        is_client_unknown = refused.error in CLIENT_ERRORS
        if is_client_unknown and not tokens.client.is_dynamic:
            raise refused
        again, current = yield from load(key, read_tokens)
        if again is not None and current != generation:
            yield from self.adopt(attrs.evolve(again, client=tokens.client))
            return
        log.warning(
            "a refresh token was refused, and a new login is needed",
            server=self.server_url,
            issuer=tokens.server.issuer,
            error=refused.error,
        )
        self.tokens, self._is_unsaved = None, False
        if not (yield SwapRecord(key, current, None)):
            again, _ = yield from load(key, read_tokens)
            if again is not None:
                yield from self.adopt(attrs.evolve(again, client=tokens.client))
                return
        if is_client_unknown:
            yield from forget_registration(self.settings, tokens.server.issuer, tokens.client)

    def _made(self, tokens: Tokens, answer: TokenAnswer) -> Tokens:
        """Holds the tokens of an answer and returns them."""
        is_bound = answer.token_type == "dpop"
        if self.settings.dpop is True and not is_bound:
            raise TokenRefused(
                "the authorization server issued a token that is not bound to a key, which dpop=True demands",
                INVALID_RESPONSE,
            )
        now, lifetime = self.now(), answer.expires_in
        made = attrs.evolve(
            tokens,
            access_token=answer.access_token,
            is_bound=is_bound,
            expires_at=None if lifetime is None else now + lifetime,
            renew_at=None if lifetime is None else now + _renewal_after(lifetime),
            refresh_token=answer.refresh_token or tokens.refresh_token,
            granted=tokens.granted if answer.scope is None else answer.scope,
            dpop_key=self.prover.stored(),
        )
        self.tokens, self._is_issued, self._is_unsaved = made, True, True
        return made

    def _remember(self, tokens: Tokens) -> Steps[None]:
        last = _last_of(tokens)
        before = self._last
        if last == before:
            return
        yield from replace(self.server_key, last.as_record())
        self._last = last
        if before is not None and (before.issuer, before.resource) == (last.issuer, last.resource):
            # A client that is registered anew would leave the tokens of the old one behind, and no logout finds them.
            yield from delete(self.key(before.issuer, before.resource, before.client_id))

    def forget(self, *, forget_client: bool) -> Steps[Tokens | None]:
        """Drops the tokens, their key and their records, and returns what was held.

        Raises:
            TokenStoreFailed: The store cannot be read or written.
        """
        if self.tokens is None:
            yield from self.restore()
        tokens = self.tokens
        self.drop()
        self._last = None
        yield from delete(self.server_key)
        if tokens is not None:
            yield from delete(self.key(tokens.server.issuer, tokens.resource, tokens.client.client_id))
            if forget_client:
                yield from delete(registration_key(self.settings, tokens.server.issuer))
        return tokens


def _renewal_after(lifetime: float) -> float:
    return max(lifetime - min(RENEWAL, lifetime / 2), SHORTEST_RENEWAL)


def _last_of(tokens: Tokens) -> LastIssuer:
    return LastIssuer(tokens.server.issuer, tokens.resource, tokens.client.client_id)
