"""The callers of a listener: they are identified for every request before it is served.

An `Authentication` knows them: `HookAuthentication` asks a function of the program, and access tokens are checked by
the module that `authentication_of` loads for them. An `HttpExchange` is one request together with its response, on
which an endpoint works. `answer_document` serves the metadata of a protected resource (RFC 9728 section 3) to anyone.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache, partial
from inspect import isawaitable
from typing import Any, Protocol

import msgspec
import trio

from mcp_actors.abc import Frame, ServerHandler
from mcp_actors.errors import InsufficientScope, LocalProtocolError
from mcp_actors.supervision.containment import Containment, http_refusals
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import HTTP_RESPONSE
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.responses import (
    INTERNAL_ERROR,
    JSON,
    RETRY_LATER,
    Header,
    Identity,
    IdentityLater,
    Refusal,
    method_not_allowed,
)

__all__ = [
    "Authenticate",
    "Authentication",
    "Continuation",
    "HookAuthentication",
    "HttpExchange",
    "Protection",
    "access_scope",
    "answer_document",
    "authentication_of",
]

Authenticate = Callable[
    [Request], "str | Principal | Refusal | Awaitable[str | Principal | Refusal | None] | None"
]
# Names whose principals are remembered, so that a request of a known name does not make another one.
_MOST_NAMES = 1024
_NO_ROOM = 503
# Serves the rest of a request that has to wait for something. It runs in a task of the request's connection.
Continuation = Callable[[], Awaitable[None]]
# An hour: clients fetch them anew when they are refused, which is when something has changed.
_DOCUMENT_HEADERS = (("Access-Control-Allow-Origin", "*"), ("Cache-Control", "max-age=3600"))
# Some clients send MCP-Protocol-Version with it (MCP 2025-03-26, Discovery Headers), which needs a preflight.
_DOCUMENT_PREFLIGHT = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET, HEAD"),
    ("Access-Control-Allow-Headers", "*"),
)
_DOCUMENT_METHODS = ("GET", "HEAD", "OPTIONS")


class Protection(Protocol):
    """The settings of a protected server: a `mcp_actors.auth.ResourceServer`."""

    @property
    def resource(self) -> str:
        """The URL of the server for its clients."""


class Authentication(Protocol):
    """The part of a listener that knows its callers."""

    @property
    def documents(self) -> Collection[str]:
        """The paths of JSON documents that anyone may read."""

    def begin(self, handler: ServerHandler) -> None:
        """Is called before the first request of each serve."""

    def document(self, path: str) -> bytes | Awaitable[bytes | Refusal]:
        """Returns the document at one of the paths, or what is awaited for it."""

    def identify(self, request: Request) -> Identity | IdentityLater:
        """Returns who sent a request, or a function that waits for that."""

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        """Returns headers for the answer to a request of ``principal``."""

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        """Returns the answer to a caller without all ``needed`` scopes.

        ``repeats_granted`` says that clients of this revision ask for no more than the answer names, so that it names
        the scopes that they have too.
        """


class HookAuthentication:
    """The callers that a program's own function knows.

    Args:
        authenticate: ``authenticate`` of `HttpServerTransport`.
    """

    documents: Collection[str] = ()

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    def begin(self, handler: ServerHandler) -> None:
        """Does nothing: the function knows what it needs."""

    def document(self, path: str) -> bytes:
        """Raises `KeyError`: a function has no documents."""
        raise KeyError(path)

    def identify(self, request: Request) -> Identity | IdentityLater:
        """Calls the function. Raises what it raises, and `TypeError` if it returns something else."""
        found = self._authenticate(request)
        if isinstance(found, str):
            return _named(found)
        return partial(_later, found) if isawaitable(found) else _identity(found)

    def response_headers(self, principal: Principal) -> Sequence[Header]:
        return ()

    def lacking(
        self, principal: Principal | None, needed: frozenset[str], *, repeats_granted: bool
    ) -> Refusal:
        error = InsufficientScope(needed)
        return Refusal(403, error.message, error.code)


def authentication_of(authenticate: Authenticate | None, auth: Protection | None) -> Authentication | None:
    """Returns the authentication of a listener; ``None`` for a listener that serves anyone.

    Args:
        authenticate: The function of a program that does it itself.
        auth: The settings of a resource server.

    Raises:
        ValueError: Both are given.
        TypeError: ``auth`` is not a `ResourceServer`.
        ImportError: The extra ``auth`` is missing, and the settings need it.
    """
    if authenticate is not None and auth is not None:
        raise ValueError("give auth= or authenticate=, not both: one of them has to say who sent a request")
    if auth is not None:
        # A server without it imports none of it.
        guarding: Any = importlib.import_module("mcp_transports.auth.guarding")
        made: Authentication = guarding.TokenAuthentication(auth)
        return made
    return None if authenticate is None else HookAuthentication(authenticate)


def access_scope(principal: Principal | None) -> trio.CancelScope:
    """Returns a scope that is cancelled some time after the access of ``principal``: see `Principal.seconds_left`."""
    if principal is None or principal.expires_at is None:
        return trio.CancelScope()
    return trio.CancelScope(deadline=trio.current_time() + principal.seconds_left(time.time()))


async def _later(waiting: Awaitable[str | Principal | Refusal | None]) -> Identity:
    return _identity(await waiting)


def _identity(found: object) -> Identity:
    if found is None or isinstance(found, Principal | Refusal):
        return found
    if isinstance(found, str):
        return _named(found)
    raise TypeError(
        f"authenticate returned a {type(found).__name__}: return a name, a Principal, a Refusal or None"
    )


@lru_cache(_MOST_NAMES)
def _named(name: str) -> Principal:
    return Principal(name)


# -- one request together with its response ---


class HttpExchange(msgspec.Struct, eq=False):
    """A request, its response, the headers of every answer to it (CORS), and the authentication of its listener.

    A struct, because one is made for every request: making it runs no Python code.
    """

    request: Request
    response: Response
    headers: Sequence[Header] = ()
    authentication: Authentication | None = None

    def __repr__(self) -> str:
        return f"<HttpExchange {self.request.method} {self.request.path}>"

    def answer(self, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
        """Sends a whole answer, whose body is JSON. A client that has left gets none.

        Raises:
            LocalProtocolError: The request was answered before.
        """
        self.response.answer(
            status, body, content_type=JSON if body else None, headers=(*self.headers, *headers)
        )

    def refuse(self, refusal: Refusal) -> None:
        """Sends ``refusal`` as the answer. Raises the errors of `answer`."""
        self.answer(refusal.status, refusal.body, refusal.headers)
        http_refusals[refusal.status] += 1

    def refusal_headers(self, status: int, frame: Frame, *, repeats_granted: bool) -> Sequence[Header]:
        """Returns the headers of an answer that the engine has marked as a refusal (`Frame.refusal`).

        For ``repeats_granted`` see `Authentication.lacking`.
        """
        if status == _NO_ROOM:
            return (*self.headers, *RETRY_LATER)
        if frame.scopes and self.authentication is not None:
            principal = self.request.principal
            refusal = self.authentication.lacking(principal, frame.scopes, repeats_granted=repeats_granted)
            return (*self.headers, *refusal.headers)
        return self.headers

    def fail(self) -> None:
        """Ends the exchange after a failure on this side: with 500, or by cutting off a stream that is open.

        An answer that is complete stays as it is.
        """
        try:
            self.refuse(INTERNAL_ERROR)
        except LocalProtocolError:
            self.response.abort()

    def containment(self, doing: str) -> Containment:
        """Returns a context manager for code that serves this request: an error of it ends this request alone.

        ``doing`` names the failed work in the log.
        """
        return Containment(HTTP_RESPONSE, lambda error: self.fail(), {"doing": doing, "exchange": self})

    def run(self, continuation: Continuation) -> None:
        """Runs ``continuation`` in a task of the connection, which is cancelled when the client leaves.

        An error of it is logged and ends this exchange as `fail` does.
        """
        self.response.run(partial(self._run, continuation))

    async def _run(self, continuation: Continuation) -> None:
        with self.containment("a request that had to wait"):
            try:
                await continuation()
            except trio.BrokenResourceError:
                if not self.response.gone:
                    raise
                # A client may leave at any time, so this is not an error.
                log.debug("a client left before it was answered", exchange=self)


# -- public documents of a protected server ---


def answer_document(
    exchange: HttpExchange, authentication: Authentication | None, policy: OriginPolicy
) -> bool:
    """Answers a request for a public document, now or later, and returns whether it was one.

    Pages of every origin may read it. The ``Host`` must be one that is served, as for all requests.
    """
    request = exchange.request
    if authentication is None or request.path not in authentication.documents:
        return False
    refusal = policy.check(request.headers.get("host"), None).refusal
    exchange.headers = ()
    if refusal is not None:
        exchange.refuse(Refusal(403, refusal))
    elif request.method == "OPTIONS":
        exchange.answer(204, headers=(("allow", ", ".join(_DOCUMENT_METHODS)), *_DOCUMENT_PREFLIGHT))
    elif request.method in _DOCUMENT_METHODS:
        document = authentication.document(request.path)
        if isinstance(document, bytes):
            exchange.answer(200, document, _DOCUMENT_HEADERS)
        else:
            exchange.run(lambda: _send_later(exchange, document))
    else:
        exchange.refuse(method_not_allowed(*_DOCUMENT_METHODS))
    return True


async def _send_later(exchange: HttpExchange, waiting: Awaitable[bytes | Refusal]) -> None:
    document = await waiting
    if isinstance(document, Refusal):
        exchange.refuse(document)
    else:
        exchange.answer(200, document, _DOCUMENT_HEADERS)
