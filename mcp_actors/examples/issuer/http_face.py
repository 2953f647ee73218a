"""The HTTP of the authorization server: which path leads to which decision, and how the answers are sent.

It is served as routes of this project's own HTTP server, which has the bounds on requests and checks ``Host``, so that
no page on the internet can reach it under a name of its own (DNS rebinding). It serves no MCP.
"""

from __future__ import annotations

import importlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import trio

from mcp_actors.abc import ServerTransport
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.auth.metadata import json_object
from mcp_actors.examples.issuer.bounded import OAuthError, Parameters
from mcp_actors.examples.issuer.issuer import Issuer, Redirection
from mcp_actors.examples.issuer.pages import HEADERS, consent_page, error_page, policy, start_page

__all__ = ["Fetching", "issuer_transport"]

# Bytes of a request's body, and of a client's document (of which the draft recommends five kilobytes).
MAX_BODY = 64 * 1024
MAX_DOCUMENT = 5 * 1024
# Documents that are fetched at a time. Each takes ten seconds at most.
MAX_FETCHES = 4

COOKIE = "mcp-actors-issuer"
_COOKIE = re.compile(rf"(?:^|;) *{COOKIE}=([A-Za-z0-9_-]{{32}})(?:;|$)")
_FORM = "application/x-www-form-urlencoded"
_NO_STORE = (("cache-control", "no-store"),)
_HTML = "text/html; charset=utf-8"

Fetching = Callable[[Fetch], Awaitable[Fetched | FetchFailed]]
"""Makes a request to a URL that came from the network; what goes wrong is returned."""


class RouteRequest(Protocol):
    """A request, as much of it as is read here: a `mcp_transports.http.server.Request`."""

    query: str
    headers: Mapping[str, str]
    body: bytes


def issuer_transport(issuer: Issuer, fetch: Fetching) -> ServerTransport:
    """Returns the transport of a `Server` that has no feature: it serves the authorization server and nothing else.

    Args:
        issuer: The authorization server.
        fetch: Fetches the documents of clients.
    """
    http = importlib.import_module("mcp_transports.http.server")
    face = _Face(issuer, fetch, http.Reply)
    transport: ServerTransport = http.HttpServerTransport(
        f"{issuer.url}/mcp",
        routes={
            "/": face.start,
            "/.well-known/oauth-authorization-server": face.metadata,
            "/.well-known/openid-configuration": face.metadata,
            "/jwks": face.jwks,
            "POST /register": face.register,
            "/authorize": face.authorize,
            "POST /consent": face.consent,
            "POST /token": face.token,
            "POST /revoke": face.revoke,
        },
        limits=http.HttpLimits(body_bytes=MAX_BODY),
        authenticate=lambda _request: http.Refusal(404, "this is an authorization server: it serves no MCP"),
        sessions=False,
        sse_path=None,
    )
    return transport


class _Face:
    """The handlers of the routes.

    Args:
        issuer: Decides.
        fetch: Fetches the documents of clients.
        reply: Makes an answer: `mcp_transports.http.server.Reply`.
    """

    def __init__(self, issuer: Issuer, fetch: Fetching, reply: Callable[..., Any]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._reply = reply
        self._fetches = trio.CapacityLimiter(MAX_FETCHES)

    async def start(self, request: RouteRequest) -> Any:
        return self._page(start_page(self._issuer))

    async def metadata(self, request: RouteRequest) -> Any:
        return self._reply(self._issuer.metadata(), headers=_NO_STORE)

    async def jwks(self, request: RouteRequest) -> Any:
        return self._reply(self._issuer.jwks(), headers=_NO_STORE)

    async def register(self, request: RouteRequest) -> Any:
        try:
            if not _is_of_type(request, "application/json"):
                raise OAuthError("invalid_client_metadata", "a registration is application/json")
            return self._reply(
                self._issuer.register(json_object(request.body)), status=201, headers=_NO_STORE
            )
        except OAuthError as refused:
            return self._refusal(refused)

    async def authorize(self, request: RouteRequest) -> Any:
        browser = _browser_of(request)
        try:
            query = Parameters.read(request.query)
            await self._fetch_document(query.get("client_id"))
            outcome = self._issuer.authorize(query, browser)
        except OAuthError as refused:
            return self._page(error_page(refused.description), status=400)
        if isinstance(outcome, Redirection):
            return self._redirection(outcome, status=302)
        # Lax, so that the browser shows the cookie again when a client leads it here for another login.
        cookie = ("set-cookie", f"{COOKIE}={browser}; Path=/; HttpOnly; SameSite=Lax")
        return self._page(consent_page(outcome), redirect_uri=outcome.redirect_uri, more=[cookie])

    async def consent(self, request: RouteRequest) -> Any:
        try:
            _require_own_page(request)
            return self._redirection(self._issuer.decide(_form(request), _browser_of(request)), status=303)
        except OAuthError as refused:
            return self._page(error_page(refused.description), status=refused.status)

    async def token(self, request: RouteRequest) -> Any:
        return await self._answered(
            request, lambda form, header: self._issuer.token(form, header, request.headers.get("dpop"))
        )

    async def revoke(self, request: RouteRequest) -> Any:
        return await self._answered(request, self._issuer.revoke)

    async def _answered(
        self, request: RouteRequest, decide: Callable[[Parameters, str | None], dict[str, Any]]
    ) -> Any:
        authorization = request.headers.get("authorization")
        try:
            form = _form(request)
            await self._fetch_document(self._issuer.clients.claimed(form, authorization))
            return self._reply(decide(form, authorization), headers=_NO_STORE)
        except OAuthError as refused:
            return self._refusal(refused)

    async def _fetch_document(self, client_id: str | None) -> None:
        """Fetches the document that describes a client, if its id is the URL of one that is not known yet."""
        clients = self._issuer.clients
        if client_id is None or not clients.wants_document(client_id):
            return
        async with self._fetches:
            if not clients.wants_document(client_id):
                return  # another request has brought it meanwhile
            # No redirection: the document is at its own URL, or it is not that of the client.
            wanted = Fetch("GET", client_id, [("accept", "application/json")], max_bytes=MAX_DOCUMENT)
            fetched = await self._fetch(wanted)
            clients.learn(client_id, _document_of(fetched))

    def _page(self, page: str, *, status: int = 200, redirect_uri: str | None = None, more: Any = ()) -> Any:
        return self._reply(
            page, status=status, content_type=_HTML, headers=(*HEADERS, policy(redirect_uri), *more)
        )

    def _redirection(self, redirection: Redirection, *, status: int) -> Any:
        return self._reply(status=status, headers=(*HEADERS, ("location", redirection.uri)))

    def _refusal(self, refused: OAuthError) -> Any:
        return self._reply(refused.body(), status=refused.status, headers=(*_NO_STORE, *refused.headers))


def _browser_of(request: RouteRequest) -> str:
    """Returns the random text in the browser's cookie, or a new one."""
    found = _COOKIE.search(request.headers.get("cookie", ""))
    return secrets.token_urlsafe(24) if found is None else found[1]


def _require_own_page(request: RouteRequest) -> None:
    """Checks that the form of one of our own pages was sent, as far as a browser says which page that was.

    The listener serves pages of all local origins, such as the inspector's. None of them may answer for the person.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = f"http://{request.headers.get('host')}"
    if origin not in (None, own) or site not in (None, "same-origin"):
        raise OAuthError(
            "invalid_request", "another page than that of this server sent the answer", status=403
        )


def _form(request: RouteRequest) -> Parameters:
    if not _is_of_type(request, _FORM):
        raise OAuthError("invalid_request", f"the body is not {_FORM}")
    return Parameters.read(request.body.decode("utf-8", "replace"))


def _is_of_type(request: RouteRequest, media_type: str) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == media_type


def _document_of(fetched: Fetched | FetchFailed) -> object:
    """Returns the document of a client as it was fetched, or the error that says why there is none."""
    if isinstance(fetched, FetchFailed):
        return OAuthError("invalid_client", fetched.reason)
    if fetched.status != 200:
        return OAuthError("invalid_client", f"its host answers {fetched.status}")
    return json_object(fetched.body)
