"""The login of a person: authorization request, answer and code (OAuth 2.1 section 4.1; RFC 9207)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import attrs

from mcp_actors.auth.client.pkce import METHOD, code_challenge, new_secret, require_pkce
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.metadata import AuthorizationServer, said, shown
from mcp_actors.errors import DiscoveryFailed, LoginFailed

__all__ = ["CodeRequest"]

# Characters of an authorization code.
MAX_CODE = 16 * 1024


@attrs.frozen(kw_only=True)
class CodeRequest:
    """One attempt to log in: what its answer is checked against, once. Its ``repr`` shows no secret."""

    server: AuthorizationServer = attrs.field(repr=False)
    client: RegisteredClient
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    state: str = attrs.field(repr=False, factory=new_secret)
    verifier: str = attrs.field(repr=False, factory=new_secret)

    def url(self, extra: Mapping[str, str], thumbprint: str | None) -> str:
        """Returns the URL to send the person to.

        Args:
            extra: More parameters, none of which is one of these.
            thumbprint: The key that the code is bound to (RFC 9449 section 10), if any.

        Raises:
            DiscoveryFailed: The authorization server has no authorization endpoint, or does not verify S256.
        """
        endpoint = self.server.authorization_endpoint
        if endpoint is None:
            raise DiscoveryFailed(
                f"the authorization server {shown(self.server.issuer)} has no authorization_endpoint: nobody can log in"
            )
        require_pkce(self.server)
        parameters = {
            **extra,
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.redirect_uri,
            "code_challenge": code_challenge(self.verifier),
            "code_challenge_method": METHOD,
            "state": self.state,
            "resource": self.resource,
        }
        if self.scopes:
            parameters["scope"] = " ".join(self.scopes)
        if thumbprint is not None:
            parameters["dpop_jkt"] = thumbprint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

    def accepts(self, answer: RedirectAnswer) -> bool:
        """Returns whether an answer belongs to this attempt: it has its ``state``, and has it once."""
        states = [value for name, value in answer if name == "state"]
        return len(states) == 1 and hmac.compare_digest(
            # A program may hand over what is no text of UTF-8.
            states[0].encode("utf-8", "backslashreplace"),
            self.state.encode(),
        )

    def code_of(self, answer: RedirectAnswer) -> str:
        """Returns the code of an answer, checked in the order of RFC 9207 section 2.4.

        Raises:
            LoginFailed: It proves nothing, or says that the login was refused. Unless the issuer is proven, no text of
                it is shown.
        """
        if not self.accepts(answer):
            raise LoginFailed("an answer came that does not belong to this login, and it was not used")
        names = [name for name, _ in answer]
        values = dict(answer)
        issuer = values.get("iss")
        if issuer is None and self.server.authorization_response_iss_parameter_supported:
            raise LoginFailed(
                f"the answer to the login does not say that it comes from {shown(self.server.issuer)}, which promises "
                "to say so: it was not used"
            )
        if names.count("iss") > 1 or (issuer is not None and issuer != self.server.issuer):
            raise LoginFailed(
                f"the answer to the login comes from another issuer than {shown(self.server.issuer)}: it was not used"
            )
        if any(names.count(each) > 1 for each in ("code", "error")):
            raise LoginFailed("the answer to the login says one thing twice: it was not used")
        if "error" in values:
            texts = [said(values[name]) for name in ("error", "error_description") if name in values]
            raise LoginFailed(f"{shown(self.server.issuer)} refused the login: {', '.join(texts)}")
        code = values.get("code", "")
        if not 0 < len(code) <= MAX_CODE:
            raise LoginFailed(f"the answer of {shown(self.server.issuer)} to the login has no code")
        return code

    def form(self, code: str) -> dict[str, str]:
        """Returns the form that redeems a code."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
            "resource": self.resource,
        }


def refresh_form(refresh_token: str, resource: str) -> dict[str, str]:
    """Returns the form of a refresh; the scopes stay what they are."""
    return {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}


def with_scopes(form: dict[str, str], scopes: Sequence[str]) -> dict[str, str]:
    """Returns a form with its scopes, if there are any."""
    return {**form, "scope": " ".join(scopes)} if scopes else form
