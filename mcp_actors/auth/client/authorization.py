"""The client's side of authorization at one server: a state machine without I/O.

The state is the token that is held, if any. All waiting is done by the effects that the machines below yield.

| state | event | next | rule |
|---|---|---|---|
| no token | a request | is sent bare | a server may leave some methods open |
| token | a request | is sent with it; close to its end it is refreshed first | `refresh_due`, `renew` |
| token | 401, ``use_dpop_nonce`` | the same request with a new proof | `sends_again`; never a login |
| any | 401, and the token is another one by now | the same request with it | `sends_again`; no flow |
| any | 401 | discovery, always anew | a server may have moved (RFC 9728 section 5.1, SEP-2352) |
| discovered | the store has a newer token | it is taken | another process was faster |
| discovered | a refresh token of the same issuer | refresh | before a person is bothered |
| discovered | else | a client id, then the grant | |
| refreshing | 200 | the request again | |
| refreshing | refused | the tokens are dropped, the grant | unless the store has newer ones |
| refreshing | 5xx, 429, no answer | `AuthorizationUnavailable`; tokens are kept | an outage does not call for a login |
| redeeming | ``invalid_client`` of a registered client | registration and login again, once | |
| any | 401 again, for a token that was issued since | `AuthorizationFailed` | remembered for a minute |
| token | 403 ``insufficient_scope`` | the grant with the union of all scopes | at most twice for an operation |
| any | another 403, 400, 5xx | is the caller's | never a reason for authorization |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mcp_actors.auth.client.discovery import Discovered
from mcp_actors.auth.client.granting import MAX_TOKENS, Answered, Demand, Granting, SentRequest
from mcp_actors.auth.client.held_tokens import HeldTokens
from mcp_actors.auth.client.person_grant import known_client
from mcp_actors.auth.client.registration import StepUps, Tokens, read_scopes, union
from mcp_actors.auth.client.settings import AuthorizationCode, OAuth
from mcp_actors.auth.client.token_endpoint import revoke
from mcp_actors.auth.effects import Steps
from mcp_actors.auth.metadata import said, shown
from mcp_actors.auth.times import is_ahead
from mcp_actors.auth.urls import origin, same_origin
from mcp_actors.errors import AuthorizationError, AuthorizationFailed
from mcp_actors.supervision.logging import log

__all__ = ["Answered", "Authorization", "SentRequest"]

T = TypeVar("T")

# Seconds for which it is remembered that the server refused a token that had been issued just then.
REMEMBERED = 60.0

_UNAUTHORIZED, _FORBIDDEN = 401, 403


class Authorization:
    """The client's side of authorization at one server.

    `restore`, `renew`, `react`, `log_in` and `log_out` are machines: one at a time is run. All others never wait.

    Args:
        settings: The settings.
        server_url: The URL of the server, as the user configured it.
        protocol_version: The revision of the connection, for requests for metadata; ``None`` if it is not known yet.
        now: Returns the seconds since the epoch.

    Raises:
        ValueError: ``server_url`` is not a URL of HTTP or WebSocket.
    """

    def __init__(
        self,
        settings: OAuth,
        server_url: str,
        *,
        protocol_version: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        origin(server_url)
        self.settings = settings
        self.server_url = server_url
        self._now = now
        self._held = HeldTokens(settings, server_url, now)
        self._granting = Granting(settings, server_url, protocol_version, self._held, now)
        self._step_ups = StepUps()
        # A token that the server refused although it had been issued just then, and until when that is remembered.
        self._refused: tuple[str | None, float] | None = None

    def __repr__(self) -> str:
        return f"<Authorization {self.server_url} {self.tokens or 'without a token'}>"

    # -- for each request ------------------------------------------------------------------------------------------

    @property
    def token(self) -> str | None:
        """The access token of the moment."""
        return self._held.token

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of the moment, with their issuer, resource and scopes. Their ``repr`` shows no secret."""
        return self._held.tokens

    @property
    def access(self) -> object:
        """Equal to an earlier value if requests are still made for the same caller with the same scopes."""
        return self._held.access

    @property
    def refresh_due(self) -> bool:
        """Whether the token ends soon and another one can be had without a person."""
        tokens = self._held.tokens
        if tokens is None or tokens.renew_at is None or self._now() < tokens.renew_at:
            return False
        return tokens.refresh_token is not None or not isinstance(self.settings.grant, AuthorizationCode)

    def headers(self, method: str, url: str) -> list[tuple[str, str]]:
        """Returns the headers that give access, for one sending of one request; nothing for another origin.

        Args:
            method: The HTTP method.
            url: The URL of the request.
        """
        tokens = self._held.tokens
        if tokens is None or not (url == self.server_url or same_origin(url, self.server_url)):
            return []
        if not tokens.is_bound:
            return [("authorization", f"Bearer {tokens.access_token}")]
        proof = self._held.prover.proof("resource", method, url, self._now(), tokens.access_token)
        return [("authorization", f"DPoP {tokens.access_token}"), ("dpop", proof or "")]

    def note(self, url: str, nonce: str | None) -> None:
        """Keeps the ``DPoP-Nonce`` of a response for the next request to that origin."""
        if nonce is not None and same_origin(url, self.server_url):
            self._held.prover.note("resource", url, nonce)

    def succeeded(self, operation: str) -> None:
        """Notes that the server has carried out an operation: it may ask for more scopes once more."""
        self._step_ups.succeeded(operation)

    def sends_again(self, sent: SentRequest, answer: Answered) -> bool:
        """Returns whether a refused request is to be sent again without any flow, and keeps the nonce of its answer."""
        if answer.status not in (_UNAUTHORIZED, _FORBIDDEN) or sent.is_given_up:
            return False
        self.note(sent.url, answer.nonce)
        if self._has_changed(sent):
            return True
        # Once for each token: the nonce of before a login is not good after it (RFC 9449 section 9).
        return answer.nonce is not None and not sent.is_repeated and self._lacks_nonce(answer)

    # -- machines --------------------------------------------------------------------------------------------------

    def restore(self) -> Steps[None]:
        """Takes the tokens that the server was used with last from the store.

        Raises:
            TokenStoreFailed: The store cannot be read.
        """
        yield from self._held.restore()

    def renew(self) -> Steps[None]:
        """Gets another token without a person, ahead of the end of this one. One that is refused leaves none.

        Raises:
            AuthorizationError: There is no access at present; the tokens are kept.
        """
        yield from self._renew()

    def react(self, sent: SentRequest, answer: Answered) -> Steps[bool]:
        """Gets the access that a response demands; true to send the request again, false to keep the response.

        Args:
            sent: The request.
            answer: Its answer.

        Raises:
            AuthorizationError: Access could not be had.
        """
        return (yield from self._logged(self._react(sent, answer)))

    def log_in(self) -> Steps[None]:
        """Gets access before any request was refused, whatever is stored.

        Raises:
            AuthorizationError: Access could not be had.
        """
        self._begin_anew()
        yield from self._logged(self._log_in())

    def log_out(self, *, forget_client: bool = False) -> Steps[None]:
        """Forgets the tokens and their key, and revokes them where the authorization server can (RFC 7009).

        A revocation that fails is written to the log.

        Args:
            forget_client: Whether the registration of the client is forgotten too.

        Raises:
            TokenStoreFailed: The store cannot be read or written.
        """
        self._begin_anew()
        tokens = yield from self._held.forget(forget_client=forget_client)
        if tokens is None:
            return
        token = tokens.refresh_token or tokens.access_token
        hint = "access_token" if tokens.refresh_token is None else "refresh_token"
        try:
            revoked = yield from revoke(tokens.server, tokens.client, token, hint, self._now())
        except AuthorizationError:
            revoked = False
        log.info(
            "tokens were forgotten", issuer=tokens.server.issuer, resource=tokens.resource, revoked=revoked
        )

    # -- how they do it --------------------------------------------------------------------------------------------

    def _renew(self) -> Steps[None]:
        held = self._held.tokens
        if held is None:
            return
        if isinstance(self.settings.grant, AuthorizationCode):
            yield from self._held.refresh(held.server, held.resource, held.client, held.access_token)
            return
        found = Discovered(held.resource, held.server.issuer, held.server)
        yield from self._granting.carry_out(found, held.client, held.requested)

    def _react(self, sent: SentRequest, answer: Answered) -> Steps[bool]:
        if answer.status not in (_UNAUTHORIZED, _FORBIDDEN):
            return False
        demand = Demand.of(answer.challenges)
        if answer.status == _FORBIDDEN and demand.error != "insufficient_scope":
            return False
        self._require_hope(sent, demand, answer.status)
        if self._has_changed(sent):
            return True
        if answer.status == _FORBIDDEN:
            return (yield from self._step_up(sent, demand))
        log.info(
            "the server demands authorization",
            server=self.server_url,
            operation=sent.operation,
            had_token=sent.token is not None,
            error=said(demand.error),
            scope=shown(demand.scope),
        )
        found, client, stored = yield from self._granting.discover(demand.hint)
        if stored is not None and (stored.is_bound or not demand.is_for_dpop):
            if stored.access_token != sent.token and not self._held.has_ended(stored):
                yield from self._held.adopt(stored)
                if self._held.token is not None:
                    return True
            if stored.refresh_token is not None and isinstance(self.settings.grant, AuthorizationCode):
                if (yield from self._held.refresh(found.server, found.resource, stored.client, sent.token)):
                    return True
                # The registration may have been dropped with the tokens.
                client = yield from known_client(self.settings, found, self._now())
        yield from self._granting.get_access(
            found, client, demand, () if stored is None else stored.requested
        )
        if self.token == sent.token:
            # To send the same once more would change nothing.
            self._give_up(sent.token)
        return True

    def _step_up(self, sent: SentRequest, demand: Demand) -> Steps[bool]:
        """Gets a token with more scopes: all that were asked for so far, and those of the challenge (SEP-2350)."""
        held, wanted = self._held.tokens, frozenset(read_scopes(demand.scope))
        if held is None:
            return False
        if wanted <= frozenset(held.granted):
            raise AuthorizationFailed(
                f"{self.server_url} refuses {sent.operation or 'a request'} for a lack of scopes, and names none that "
                "its token does not have already: this account is not allowed to do it"
            )
        if not self._step_ups.begin(sent.operation):
            raise AuthorizationFailed(
                f"{self.server_url} asks for more scopes again and again; now it wants {shown(demand.scope)}"
            )
        log.info(
            "more scopes are asked for",
            server=self.server_url,
            operation=sent.operation,
            before=shown(" ".join(held.granted)),
            scopes=shown(demand.scope),
        )
        self.settings.counts.step_ups += 1
        found, client, stored = yield from self._granting.discover(demand.hint)
        is_another = stored is not None and stored.access_token != sent.token
        if stored is not None and is_another and wanted <= frozenset(stored.granted):
            yield from self._held.adopt(stored)
            if self._held.token is not None:
                return True
        # The scopes of one authorization server mean nothing to another one.
        before = union(held.requested, held.granted) if self._held.tokens is held else ()
        yield from self._granting.get_access(found, client, demand, before)
        return True

    def _log_in(self) -> Steps[None]:
        found, client, _ = yield from self._granting.discover(None)
        yield from self._granting.get_access(found, client, Demand(), ())

    def _begin_anew(self) -> None:
        self._step_ups, self._refused = StepUps(), None
        self._granting.assertions.forget()

    # -- rules -----------------------------------------------------------------------------------------------------

    def _has_changed(self, sent: SentRequest) -> bool:
        """Returns whether somebody has had another token since the request was sent."""
        token = self._held.token
        return token is not None and token != sent.token

    def _lacks_nonce(self, answer: Answered) -> bool:
        tokens = self._held.tokens
        return (
            tokens is not None and tokens.is_bound and Demand.of(answer.challenges).error == "use_dpop_nonce"
        )

    def _require_hope(self, sent: SentRequest, demand: Demand, status: int) -> None:
        """Checks that another token could help (MCP 2026-07-28, Security Best Practices: no endless authorization)."""
        now, tokens = self._now(), self._held.tokens
        if sent.is_given_up:
            raise AuthorizationFailed(
                f"{self.server_url} refused the same request with {MAX_TOKENS} tokens, each time for another reason; "
                "ask its operator"
            )
        if status == _FORBIDDEN or self._has_changed(sent):
            return
        refused = self._refused
        if refused is not None and refused[0] == sent.token and is_ahead(refused[1], REMEMBERED, now):
            raise AuthorizationFailed(f"{self.server_url} refused a token that was issued for it just before")
        if tokens is not None and tokens.is_bound and demand.error in _PROOF_ERRORS:
            raise AuthorizationFailed(f"{self.server_url} {_PROOF_ERRORS[demand.error]}")
        if sent.former_tokens and self._held.was_issued(sent.token):
            self._give_up(sent.token)

    def _give_up(self, token: str | None) -> None:
        """Remembers that the server refuses what its authorization server issues."""
        self._refused = token, self._now() + REMEMBERED
        tokens = self._held.tokens
        raise AuthorizationFailed(
            f"{self.server_url} refuses a token that was issued for it just now, for the resource "
            f"{tokens.resource if tokens is not None else '(none)'}: its settings and those of its authorization "
            "server do not agree"
        )

    def _logged(self, steps: Steps[T]) -> Steps[T]:
        try:
            return (yield from steps)
        except AuthorizationError as error:
            self.settings.counts.failures += 1
            kind = type(error).__name__
            # The exception reaches the caller; a warning would say the same thing to the same person twice.
            log.info("authorization failed", server=self.server_url, error=kind, reason=str(error))
            raise


_PROOF_ERRORS = {
    "use_dpop_nonce": "asks for a nonce in the proof again and again, whatever the proof has",
    "invalid_dpop_proof": "refuses the proof of possession: check the clock of this machine",
}
