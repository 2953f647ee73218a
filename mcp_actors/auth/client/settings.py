"""The settings of a client: the ways to have access, and what is the same for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import attrs

from mcp_actors.auth.client.browser import Browser
from mcp_actors.auth.store import MemoryTokenStore, TokenStore
from mcp_actors.auth.url_policy import UrlPolicy

__all__ = [
    "AuthorizationCode",
    "BearerToken",
    "ClientAuth",
    "ClientCredentials",
    "EnterpriseManaged",
    "Grant",
    "OAuth",
    "WorkloadIdentity",
]

# Seconds for a person to log in.
LOGIN_TIMEOUT = 300.0


@attrs.frozen(kw_only=True)
class AuthorizationCode:
    """A person logs in, in a browser (OAuth 2.1 section 4.1, with PKCE).

    Args:
        browser: How the person logs in. By default the system's browser and a redirect to a port of this machine on a
            terminal with a browser, a URL to open and an answer to paste on a terminal without one, and else an error.
        client_id: The id of a client that was registered beforehand; it needs no registration then.
        client_secret: Its secret, if it has one.
        issuer: The authorization server that it is registered at: with any other one it is an error.
        client_metadata_url: The ``https`` URL of a client ID metadata document, which is the client id where the
            authorization server supports that.
        client_name: The name that the person sees when the client is registered.
        login_timeout: Seconds for the person to log in. The clock of the call that needed it stands still meanwhile.
    """

    browser: Browser | None = None
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "mcp-actors"
    login_timeout: float = LOGIN_TIMEOUT


@attrs.frozen(kw_only=True)
class ClientCredentials:
    """A program has access of its own (SEP-1046): a secret, or a private key that signs an assertion.

    Args:
        client_id: The id of the client, which was registered beforehand.
        client_secret: Its secret.
        private_key: Its private key in PEM, in place of the secret (needs the extra ``auth``).
        algorithm: The algorithm of the key.
        key_id: The ``kid`` of the key, if the authorization server needs it.
        issuer: The authorization server that the client is registered at: with any other one it is an error.
        assertion_audience: The ``aud`` of the assertion, for old authorization servers; by default their issuer.
    """

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    algorithm: str = "ES256"
    key_id: str | None = None
    issuer: str | None = None
    assertion_audience: str | None = None


@attrs.frozen(kw_only=True)
class EnterpriseManaged:
    """The identity provider of an enterprise decides (SEP-990): it turns an ID token into an assertion for a server.

    Args:
        id_token: Returns, or is awaited for, the ID token of the person; called anew when one is refused.
        idp_issuer: The issuer of the identity provider.
        idp_token_endpoint: Its token endpoint, configured and never discovered.
        idp_client_id: The client id at the identity provider.
        idp_client_secret: The secret of that client, if it has one.
        client_id: The client id at the authorization server of the MCP server.
        client_secret: The secret of that client, if it has one.
    """

    id_token: Callable[[], str | Awaitable[str]] = attrs.field(repr=False)
    idp_issuer: str
    idp_token_endpoint: str
    idp_client_id: str
    idp_client_secret: str | None = attrs.field(default=None, repr=False)
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class WorkloadIdentity:
    """The platform that a program runs on vouches for it (SEP-1933): a JWT of the platform is its assertion.

    Args:
        assertion: ``assertion(audience)`` returns, or is awaited for, a JWT. It is called for each token request.
        client_id: The client id, if the authorization server wants one.
        audience: The audience to ask for; by default the issuer of the authorization server.
    """

    assertion: Callable[[str], str | Awaitable[str]] = attrs.field(repr=False)
    client_id: str | None = None
    audience: str | None = None


Grant = AuthorizationCode | ClientCredentials | EnterpriseManaged | WorkloadIdentity
"""How access is had."""

_EXTENSIONS: Mapping[type, str] = {
    ClientCredentials: "io.modelcontextprotocol/oauth-client-credentials",
    EnterpriseManaged: "io.modelcontextprotocol/enterprise-managed-authorization",
}


@attrs.define(kw_only=True, eq=False)
class OAuth:
    """Authorization by OAuth 2.1. One object may be shared by any number of clients, for any number of servers.

    Args:
        grant: How access is had; by default a person logs in.
        store: Where tokens are kept; by default in this process.
        scopes: Scopes to ask for beyond those that the server names.
        dpop: Whether tokens are bound to a key (RFC 9449; needs the extra ``auth``): ``None`` where the authorization
            server or the server says that it can, ``True`` always, so that a plain token is refused, ``False`` never.
        resource: The resource that the server's metadata may name although its URL does not begin so, such as a URN.
        trusted_issuers: Maps an issuer as a server's metadata has it to the one that the authorization server's own
            metadata has, where the two differ and are known to be the same.
        choose_issuer: Chooses among several authorization servers; by default the one that is known, or the first.
        account: Keeps the tokens of several accounts at one server apart.
        extra_params: More parameters for the authorization request, for authorization servers that need them.
        url_policy: Which URLs that came from the network may be used.
    """

    grant: Grant = attrs.field(factory=AuthorizationCode, kw_only=False)
    store: TokenStore = attrs.field(factory=MemoryTokenStore)
    scopes: Collection[str] = ()
    dpop: bool | None = None
    resource: str | None = None
    trusted_issuers: Mapping[str, str] = attrs.field(factory=dict)
    choose_issuer: Callable[[Sequence[str]], str] | None = None
    account: str = "default"
    extra_params: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    url_policy: UrlPolicy = attrs.field(factory=UrlPolicy)

    @property
    def extensions(self) -> Sequence[str]:
        """The extensions of the protocol that the grant is one of, which a client declares to its server."""
        return [name for kind, name in _EXTENSIONS.items() if isinstance(self.grant, kind)]


@attrs.frozen
class BearerToken:
    """A token that the program has already, such as a key of the server's own making.

    Args:
        token: The token, or a function, sync or async, that returns it and is called for each connection and after
            each 401.
    """

    token: str | Callable[[], str | Awaitable[str]] = attrs.field(repr=False)


ClientAuth = OAuth | BearerToken
"""What a client may be given as ``auth``."""
