"""The admin endpoint: its requests and their answers.

============================ ===========================================================================================
``GET /``                    the page, to everybody: it has nothing of the server in it
``GET /snapshot``            a snapshot as JSON
``GET /events``              an event stream with a snapshot every interval
``POST /actions``            JSON of `Action`, answered with `ActionOutcome` (`mcp_actors.telemetry.live_view`)
============================ ===========================================================================================
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import NamedTuple, Protocol

import msgspec
import trio

from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ADMIN_ACTION
from mcp_actors.telemetry.live_view import Action, ActionOutcome, Feed
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.authentication import Authentication
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.responses import (
    PATH_NOT_FOUND,
    RETRY_LATER,
    UNSUPPORTED_MEDIA_TYPE,
    Header,
    Refusal,
    method_not_allowed,
)

__all__ = [
    "SHORTEST_TOKEN",
    "AdminAccess",
    "AdminEndpoint",
    "AuthenticatedAccess",
    "Caller",
    "EventStream",
    "OwnerAccess",
    "Page",
    "TokenAccess",
]


# -- The callers that may look at a server: asked about every request but that for the page, which is no secret ---

SHORTEST_TOKEN = 16
"""Characters of a token that somebody has chosen."""

_NO_TOKEN = Refusal(
    401,
    "the live view needs its token: Authorization: Bearer TOKEN",
    headers=(("www-authenticate", 'Bearer realm="mcp-actors admin"'),),
)
_NOBODY = Refusal(403, "the live view is for authenticated callers")


class Caller(NamedTuple):
    """Somebody who may look."""

    name: str
    """In words for the log."""
    seconds_left: float = math.inf
    """Seconds for which a stream of theirs may stay open."""


class AdminAccess(Protocol):
    """Knows who may look."""

    async def caller(self, request: Request) -> Caller | Refusal:
        """Returns who asks, or the answer to somebody who may not look."""


class OwnerAccess:
    """Everybody who gets as far as this: `OwnedListener` lets in the right users alone."""

    async def caller(self, request: Request) -> Caller:
        return Caller(request.peer)


class TokenAccess:
    """Whoever has the token.

    Args:
        token: The secret.

    Raises:
        ValueError: It is shorter than `SHORTEST_TOKEN`, or no ASCII text.
    """

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST_TOKEN or not token.isascii():
            raise ValueError(f"a token has at least {SHORTEST_TOKEN} characters, of ASCII")
        self._token = token.encode()

    def __repr__(self) -> str:
        return "<TokenAccess>"

    async def caller(self, request: Request) -> Caller | Refusal:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, and in the same way whatever was sent.
        equal = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and equal:
            return Caller(f"token from {request.peer}")
        log.info("a caller without the token was refused at the admin endpoint", peer=request.peer)
        return _NO_TOKEN


class AuthenticatedAccess:
    """Whoever a program's own check, or an authorization server, vouches for.

    Args:
        authentication: What knows the callers.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    async def caller(self, request: Request) -> Caller | Refusal:
        found = self._authentication.identify(request)
        identity = await found() if isinstance(found, partial) else found
        if identity is None:
            return _NOBODY
        if isinstance(identity, Refusal):
            return identity
        return Caller(f"{identity.subject} from {request.peer}", identity.seconds_left(time.time()))


# -- The page of the live view: one file without outside resources, under a policy that allows nothing else ---

_PART = r"<{0}>(.*?)</{0}>"


class Page:
    """The page, and the policy that allows its own script and style by their hashes, and talks to its own server."""

    def __init__(self) -> None:
        text = files("mcp_transports.admin").joinpath("page.html").read_text("utf-8")
        self._body = text.encode()
        script, style = (_hash(text, part) for part in ("script", "style"))
        self.policy = (
            f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
        """The value of ``Content-Security-Policy``."""

    def answer(self, response: Response, headers: Sequence[Header]) -> None:
        """Answers with the page."""
        response.answer(
            200,
            self._body,
            content_type="text/html; charset=utf-8",
            headers=(*headers, ("content-security-policy", self.policy), ("x-frame-options", "DENY")),
        )


def _hash(text: str, part: str) -> str:
    (found,) = re.findall(_PART.format(part), text, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()


# -- A watcher: a response of server-sent events, one for each snapshot ----------------------------------

# Snapshots that a watcher may miss one after the other, while what was sent before is still not read.
MOST_BEHIND = 5


class EventStream:
    """Shows every snapshot to one client, and drops it when it does not read.

    Args:
        response: Has begun.
        feed: Where the snapshots come from.
        caller: Whose it is. It ends when their access does.
    """

    def __init__(self, response: Response, feed: Feed, caller: Caller) -> None:
        self._response = response
        self._feed = feed
        self._name = caller.name
        self._ends = trio.current_time() + caller.seconds_left
        self._behind = 0

    def __repr__(self) -> str:
        return f"<EventStream to {self._name}, {self._behind} behind>"

    def begin(self) -> None:
        """Shows snapshots from now on, until the client leaves or is dropped."""
        self._response.on_gone = lambda: self._feed.remove(self)
        self._feed.add(self)

    def show(self, snapshot: bytes) -> None:
        """Sends a snapshot, or leaves it out while the client has not read what was sent before."""
        response = self._response
        if response.gone:
            self._feed.remove(self)
        elif trio.current_time() > self._ends:
            self._feed.remove(self)
            response.abort()
        elif response.full:
            self._behind += 1
            if self._behind > MOST_BEHIND:
                log.warning("a watcher that does not read was dropped", who=self._name)
                self._feed.remove(self)
                response.abort()
        else:
            self._behind = 0
            try:
                response.write(b"data: %b\n\n" % snapshot)
            except trio.BrokenResourceError:
                self._feed.remove(self)


# ----------------------------------------------------------------------------------------------------

# Of every answer: nothing of it is kept, framed, sniffed or fetched by other pages.
HEADERS = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
_TOO_MANY = Refusal(503, "too many watchers", headers=RETRY_LATER)
_NOT_AN_ACTION = "not an action: send action, node and target"
_JSON = "application/json"

Route = Callable[[Request, Response, Caller], Awaitable[None]]


class AdminEndpoint:
    """Answers requests; an application of `mcp_transports.http.h1.http_server.HttpServer`.

    Args:
        feed: What is shown.
        access: Who may see it.
        policy: The values of ``Host`` and ``Origin`` that are served.
        most_watchers: Event streams at a time.
    """

    def __init__(self, feed: Feed, access: AdminAccess, policy: OriginPolicy, most_watchers: int) -> None:
        self._feed = feed
        self._access = access
        self._policy = policy
        self._most_watchers = most_watchers
        self._page = Page()
        self._routes: dict[str, tuple[str, Route]] = {
            "/snapshot": ("GET", self._snapshot),
            "/events": ("GET", self._events),
            "/actions": ("POST", self._act),
        }

    def __repr__(self) -> str:
        return f"<AdminEndpoint {self._feed!r}>"

    def __call__(self, request: Request, response: Response) -> None:
        verdict = self._policy.check(request.headers.get("host"), request.headers.get("origin"))
        method, route = self._routes.get(request.path, ("GET", None))
        if verdict.refusal is not None:
            _refuse(response, Refusal(403, verdict.refusal))
        elif route is None and request.path != "/":
            _refuse(response, PATH_NOT_FOUND)
        elif request.method != method:
            _refuse(response, method_not_allowed(method))
        elif route is None:
            self._page.answer(response, HEADERS)
        else:
            response.run(partial(self._serve, route, request, response))

    async def _serve(self, route: Route, request: Request, response: Response) -> None:
        with Containment(ADMIN_ACTION, lambda _: response.fail(), {"path": request.path}):
            who = await self._access.caller(request)
            if isinstance(who, Refusal):
                _refuse(response, who)
            else:
                await route(request, response, who)

    async def _snapshot(self, request: Request, response: Response, who: Caller) -> None:
        response.answer(200, await self._feed.latest(), content_type=_JSON, headers=HEADERS)

    async def _events(self, request: Request, response: Response, who: Caller) -> None:
        if len(self._feed.watchers) >= self._most_watchers:
            _refuse(response, _TOO_MANY)
            return
        response.start(content_type="text/event-stream", headers=HEADERS)
        EventStream(response, self._feed, who).begin()

    async def _act(self, request: Request, response: Response, who: Caller) -> None:
        # A form of another site cannot send this type.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            _refuse(response, UNSUPPORTED_MEDIA_TYPE)
            return
        try:
            action = msgspec.json.decode(request.body, type=Action)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            outcome, status = ActionOutcome(False, _NOT_AN_ACTION), 400
        else:
            outcome = await self._feed.watch.act(action, who.name)
            status = 200 if outcome.done else 409
        response.answer(status, msgspec.json.encode(outcome), content_type=_JSON, headers=HEADERS)


def _refuse(response: Response, refusal: Refusal) -> None:
    response.answer(
        refusal.status,
        refusal.body,
        content_type=_JSON if refusal.body else None,
        headers=(*HEADERS, *refusal.headers),
    )
