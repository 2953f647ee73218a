"""Access tokens that only their authorization server understands (RFC 7662)."""

from __future__ import annotations

import base64
from urllib.parse import quote_plus, urlencode

import attrs

from mcp_actors.auth.effects import Fetch, Fetched
from mcp_actors.auth.extra import signatures
from mcp_actors.auth.metadata import json_object
from mcp_actors.auth.server.claims import check_audience, check_times, principal_of
from mcp_actors.auth.server.issuer_metadata import IssuerMetadata
from mcp_actors.auth.server.verifier import Expected, Fetching, TokenInvalid, VerifierUnavailable
from mcp_actors.auth.urls import require_usable
from mcp_actors.logging import log
from mcp_actors.principal import Principal

__all__ = ["IntrospectionVerifier"]

# Seconds for which an answer is believed that a token is not active.
REFUSALS_REMEMBERED_FOR = 5.0
# Seconds for which an authorization server that cannot answer is asked nothing, whatever tokens arrive. They begin with
# the question, which may take 10 of them.
PAUSE = 15.0
_OK = 200
# With these it says that it cannot answer anything. Any other one may be about the token, and a caller that finds a
# token which leads to it must not stop the questions about those of others.
_OUT_OF_ORDER = (429, 502, 503, 504)
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@attrs.define(kw_only=True, eq=False)
class IntrospectionVerifier:
    """Asks the authorization server about each token. A `Verifier`, for servers with one issuer.

    Args:
        client_id: The id of this server at the authorization server.
        client_secret: Its secret.
        private_key: Its private key in PEM, in place of the secret (needs the extra ``auth``).
        algorithm: The algorithm of the key.
        key_id: The ``kid`` of the key, if the authorization server needs it.
        secret_in_body: Whether the secret is sent in the body, for authorization servers without HTTP Basic.
        endpoint: The introspection endpoint; by default the one in the metadata of the issuer.
        clients_are_subjects: Whether a token without ``sub`` is that of the client itself. Only for an authorization
            server that leaves it out for no user: all users of a client would be one.
        remembered_for: Seconds for which a token counts as active: the time in which a revocation takes effect.

    Raises:
        UrlRefused: ``endpoint`` must not be used.
    """

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    algorithm: str = "ES256"
    key_id: str | None = None
    secret_in_body: bool = False
    endpoint: str | None = None
    clients_are_subjects: bool = False
    remembered_for: float = 30.0
    _metadata: dict[str, IssuerMetadata] = attrs.field(factory=dict, init=False, repr=False)
    _paused_until: dict[str, float] = attrs.field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.endpoint is not None:
            require_usable(self.endpoint, "endpoint")

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token.

        Raises:
            TokenInvalid: It is not active, or not for this server.
            VerifierUnavailable: The authorization server does not say.
        """
        issuer = expected.issuers[0]
        paused_for = self._paused_until.get(issuer, now) - now
        if paused_for > 0:
            raise VerifierUnavailable(paused_for)
        metadata = self._metadata.setdefault(issuer, IssuerMetadata(issuer))
        endpoint = self.endpoint or await metadata.url("introspection_endpoint", fetch, now)
        answer = await fetch(self._question(token, endpoint, issuer, now))
        if not isinstance(answer, Fetched) or answer.status != _OK:
            metadata.forget()
            status = answer.status if isinstance(answer, Fetched) else None
            is_out_of_order = status is None or status in _OUT_OF_ORDER
            if is_out_of_order:
                self._paused_until[issuer] = now + PAUSE
            log.warning(
                "an authorization server does not introspect",
                issuer=issuer,
                status=status,
                check="whether it can be reached" if is_out_of_order else "the client id and its secret",
            )
            raise VerifierUnavailable
        claims = json_object(answer.body)
        if claims is None:
            log.warning("an authorization server introspects in another form", issuer=issuer)
            raise VerifierUnavailable
        if claims.get("active") is not True or claims.get("iss", issuer) != issuer:
            raise TokenInvalid("not active, or of another issuer", REFUSALS_REMEMBERED_FOR)
        try:
            check_audience(claims, expected)
            expires_at = check_times(claims, expected, now)
            if self.clients_are_subjects and "sub" not in claims:
                claims["sub"] = claims.get("client_id")
            return principal_of(claims, issuer, expires_at)
        except TokenInvalid as invalid:
            raise TokenInvalid(invalid.reason, REFUSALS_REMEMBERED_FOR) from None

    def _question(self, token: str, endpoint: str, issuer: str, now: float) -> Fetch:
        """Returns the request; it is authenticated in one way, never in two (OAuth 2.1 section 2.4)."""
        form = {"token": token, "token_type_hint": "access_token"}
        headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
        if self.private_key is not None:
            assertions = signatures("mcp_actors.auth.client.assertions")
            form["client_assertion_type"] = _ASSERTION_TYPE
            form["client_assertion"] = assertions.client_assertion(
                self.private_key, self.algorithm, self.client_id, issuer, now, self.key_id
            )
        elif self.secret_in_body:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret or ""}
        else:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret or '')}"
            headers.append(("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        return Fetch("POST", endpoint, tuple(headers), urlencode(form).encode())
