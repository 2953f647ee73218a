"""The admin endpoint: its requests and their answers.

============================ ===========================================================================================
``GET /``                    the page, to everybody: it has nothing of the server in it
``GET /snapshot``            a snapshot as JSON
``GET /events``              an event stream with a snapshot every interval
``POST /actions``            JSON of `mcp_actors.admin.Action`, answered with `mcp_actors.admin.ActionOutcome`
============================ ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from mcp_actors.admin import Action, ActionOutcome, Feed
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import ADMIN_ACTION
from mcp_transports.admin.access import AdminAccess, Caller
from mcp_transports.admin.event_stream import EventStream
from mcp_transports.admin.page import Page
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import (
    PATH_NOT_FOUND,
    RETRY_LATER,
    UNSUPPORTED_MEDIA_TYPE,
    Refusal,
    method_not_allowed,
)
from mcp_transports.http.server.origin_policy import OriginPolicy

__all__ = ["AdminEndpoint"]

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
    """Answers requests; an application of `mcp_transports.http.h1.server.HttpServer`.

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
