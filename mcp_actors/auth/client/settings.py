"""The settings of a client: the ways to have access, and what is the same for all of them.

A `Browser` is the way in which a person logs in; `mcp_transports.auth` has the ready-made ones.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

import attrs

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.auth.store import MemoryTokenStore, TokenStore
from mcp_actors.auth.urls import UrlPolicy, require_usable
from mcp_actors.errors import UrlRefused

__all__ = [
    "AuthorizationCode",
    "AuthorizationCounts",
    "BearerToken",
    "Browser",
    "ClientAuth",
    "ClientCredentials",
    "EnterpriseManaged",
    "Grant",
    "OAuth",
    "Redirect",
    "WorkloadIdentity",
]

# Seconds for a person to log in.
LOGIN_TIMEOUT = 300.0

# What an authorization request or a token request says already, or must never say.
_TAKEN = frozenset(
    [
        "response_type",
        "client_id",
        "client_secret",
        "redirect_uri",
        "code_challenge",
        "code_challenge_method",
        "state",
        "resource",
        "scope",
        "dpop_jkt",
        "request",
        "request_uri",
        "response_mode",
        "grant_type",
        "code",
        "code_verifier",
        "refresh_token",
        "assertion",
        "client_assertion",
        "client_assertion_type",
    ]
)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 section 3.3
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Redirect(Protocol):
    """A place that a login comes back to, open for one login."""

    @property
    def uri(self) -> str:
        """The redirect URI."""

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        """Sends the person to ``url`` and waits for the answer that ``accepts`` returns true for.

        The caller bounds the wait by cancelling it. Answers that are not accepted are refused and do not end it.

        Raises:
            LoginRequired: No person can log in.
            LoginFailed: The person gave up.
        """


@runtime_checkable
class Browser(Protocol):
    """Shows a person the login of an authorization server."""

    def open_redirect(self, registered: Sequence[str] = ()) -> AbstractAsyncContextManager[Redirect]:
        """Opens the place that the login comes back to, for the length of an ``async with`` block.

        ``registered`` has the redirect URIs of the client's registration, if there is one: one of them is used if
        possible, with another port where only the port differs and it cannot be had.
        """


def _require_texts(settings: Any, *names: str) -> None:
    """Checks that attributes are texts, or ``None`` where that is their default; no value is shown."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}= must be a text, not {type(value).__name__}")
        if value == "":
            raise ValueError(f"{name}= must not be empty; leave it out if there is none")


def _require_url(url: str | None, name: str) -> None:
    if url is not None:
        try:
            require_usable(url, name)
        except UrlRefused as refused:
            raise ValueError(str(refused)) from None


def _require_callable(function: object, name: str) -> None:
    if not callable(function):
        raise TypeError(
            f"{name}= must be a function that returns it, because one of them ends; not {type(function).__name__}"
        )


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
        login_timeout: Seconds for the person to log in. The clock of the call that needed it is stopped meanwhile.

    Raises:
        ValueError: A value that cannot be meant so, such as a secret without a client id.
        TypeError: A value of another type.
    """

    browser: Browser | None = None
    client_id: str | None = None
    client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = None
    client_metadata_url: str | None = None
    client_name: str = "mcp-actors"
    login_timeout: float = LOGIN_TIMEOUT

    def __attrs_post_init__(self) -> None:
        _require_texts(self, "client_id", "client_secret", "issuer", "client_metadata_url", "client_name")
        if self.client_id is None and (self.client_secret, self.issuer) != (None, None):
            raise ValueError("client_secret= and issuer= belong to a client_id=")
        if not self.login_timeout > 0:
            raise ValueError(f"login_timeout= must be more than 0 seconds, not {self.login_timeout!r}")
        if self.browser is not None and not isinstance(self.browser, Browser):
            raise TypeError(
                f"browser= must be a way to log in, such as PastedAnswer(), not {type(self.browser).__name__}"
            )
        url = self.client_metadata_url
        if url is not None:
            _require_url(url, "client_metadata_url")
            parts = urlsplit(url)
            dotted = any(unquote(each) in (".", "..") for each in parts.path.split("/"))
            if parts.scheme != "https" or parts.path in ("", "/") or dotted:
                raise ValueError(
                    "client_metadata_url= must be https, with a path and without dots for segments of it"
                )


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

    Raises:
        ValueError: There is neither a secret nor a key, or both.
        TypeError: A value of another type.
    """

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    algorithm: str = "ES256"
    key_id: str | None = None
    issuer: str | None = None
    assertion_audience: str | None = None

    def __attrs_post_init__(self) -> None:
        _require_texts(
            self,
            "client_id",
            "client_secret",
            "private_key",
            "algorithm",
            "key_id",
            "issuer",
            "assertion_audience",
        )
        if (self.client_secret is None) == (self.private_key is None):
            raise ValueError("client credentials are a client_secret= or a private_key=, one of the two")


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

    Raises:
        ValueError: ``idp_token_endpoint`` is not a URL that a secret may be sent to.
        TypeError: A value of another type.
    """

    id_token: Callable[[], str | Awaitable[str]] = attrs.field(repr=False)
    idp_issuer: str
    idp_token_endpoint: str
    idp_client_id: str
    idp_client_secret: str | None = attrs.field(default=None, repr=False)
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        _require_callable(self.id_token, "id_token")
        _require_texts(self, "idp_issuer", "idp_client_id", "idp_client_secret", "client_id", "client_secret")
        _require_texts(self, "idp_token_endpoint")
        _require_url(self.idp_token_endpoint, "idp_token_endpoint")


@attrs.frozen(kw_only=True)
class WorkloadIdentity:
    """The platform that a program runs on vouches for it (SEP-1933): a JWT of the platform is its assertion.

    Args:
        assertion: ``assertion(audience)`` returns, or is awaited for, a JWT. It is called for each token request.
        client_id: The client id, if the authorization server wants one.
        audience: The audience to ask for; by default the issuer of the authorization server.

    Raises:
        TypeError: A value of another type.
    """

    assertion: Callable[[str], str | Awaitable[str]] = attrs.field(repr=False)
    client_id: str | None = None
    audience: str | None = None

    def __attrs_post_init__(self) -> None:
        _require_callable(self.assertion, "assertion")
        _require_texts(self, "client_id", "audience")


Grant = AuthorizationCode | ClientCredentials | EnterpriseManaged | WorkloadIdentity
"""How access is had."""

_EXTENSIONS: Mapping[type, str] = {
    ClientCredentials: "io.modelcontextprotocol/oauth-client-credentials",
    EnterpriseManaged: "io.modelcontextprotocol/enterprise-managed-authorization",
}


@attrs.define
class AuthorizationCounts:
    """The events of authorization so far: why a program logged in again, in numbers. The log has the reasons."""

    granted: int = 0
    """Logins, and tokens that a machine got by its grant."""
    refreshed: int = 0
    step_ups: int = 0
    """Demands for more scopes that led to a new grant, or tried to."""
    failures: int = 0
    """Times that access could not be had; a refresh ahead of the end of a token is not one of them."""


@attrs.define(kw_only=True, eq=False)
class OAuth:
    """Authorization by OAuth 2.1. One object may be shared by any number of clients, for any number of servers.

    Args:
        grant: How access is had; by default a person logs in.
        store: Where tokens are kept; by default in this process.
        scopes: Scopes to ask for beyond those that the server names.
        dpop: Whether tokens are bound to a key (RFC 9449; needs the extra ``auth``): ``None`` where the server asks for
            it, or its metadata and the authorization server's say that both can; ``True`` always, so that a plain token
            is refused; ``False`` never. A server that says nothing may know plain tokens alone.
        resource: The resource that the server's metadata may name although its URL does not begin so, such as a URN.
        trusted_issuers: Maps an issuer as a server's metadata has it to the one that the authorization server's own
            metadata has, where the two differ and are known to be the same.
        choose_issuer: Chooses among several authorization servers; by default the one that is known, or the first.
        account: Keeps the tokens of several accounts at one server apart.
        extra_params: More parameters for authorization requests and token requests, such as an ``audience``, for
            authorization servers that need them. The identity provider of an enterprise does not get them.
        url_policy: Which URLs that came from the network may be used.

    Raises:
        ValueError: A value that cannot be meant so, here or in a grant.
        TypeError: A value of another type.
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
    counts: AuthorizationCounts = attrs.field(factory=AuthorizationCounts, init=False, repr=False)
    """Is counted up; `statistics` returns a copy."""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.grant, Grant):
            raise TypeError(
                f"the grant must be one of those of mcp_actors.auth, not {type(self.grant).__name__}; everything else"
                " is given by name, such as store="
            )
        if not isinstance(self.store, TokenStore):
            raise TypeError(
                f"store= must be a store, such as FileTokenStore(path), not {type(self.store).__name__}"
            )
        if isinstance(self.scopes, str):
            raise TypeError(f"scopes= must be a collection of texts, such as {self.scopes.split()!r}")
        wrong = [each for each in self.scopes if not isinstance(each, str) or not _SCOPE.fullmatch(each)]
        if wrong:
            raise ValueError(
                f"scopes= has {wrong[0]!r}, which no scope is: blanks, quotes and backslashes are not in one"
            )
        if self.dpop not in (None, True, False):
            raise TypeError("dpop= must be None, True or False")
        _require_texts(self, "resource", "account")
        if self.resource is not None and ("#" in self.resource or not _TOKEN.fullmatch(self.resource)):
            raise ValueError(f"resource= must be a URI without a fragment, not {self.resource!r}")
        taken = sorted(_TAKEN & set(self.extra_params))
        if taken:
            raise ValueError(f"extra_params= must not have {', '.join(taken)}: that is said already")
        if not all(isinstance(each, str) for pair in self.extra_params.items() for each in pair):
            raise TypeError("extra_params= must map texts to texts")

    def statistics(self) -> AuthorizationCounts:
        """Returns what has happened so far, at all servers that this object is used for."""
        return attrs.evolve(self.counts)

    @property
    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        """The extensions of MCP that the grant belongs to, as a client declares them in its capabilities."""
        name = _EXTENSIONS.get(type(self.grant))
        return {} if name is None else {name: {}}


@attrs.frozen
class BearerToken:
    """A token that the program has already, such as a key of the server's own making.

    Args:
        token: The token, or a function, sync or async, that returns it and is called for each connection and after
            each 401.

    Raises:
        ValueError: The token is empty, or has characters that no header may have.
        TypeError: It is neither a text nor a function.
    """

    token: str | Callable[[], str | Awaitable[str]] = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.token, str):
            if not _TOKEN.fullmatch(self.token):
                raise ValueError("a token has one printable character at least, and no blanks")
        elif not callable(self.token):
            raise TypeError(f"a token must be a text or a function, not {type(self.token).__name__}")

    @property
    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        """No extensions of MCP: a client declares nothing for this."""
        return {}


ClientAuth = OAuth | BearerToken
"""What a client may be given as ``auth``."""
