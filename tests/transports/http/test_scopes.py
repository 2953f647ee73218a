"""Scopes of tools, resources and prompts over HTTP, with callers that a program's own check knows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from mcp_actors import Context, Server
from mcp_actors.errors import InsufficientScope, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.server import Caller, Component
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.server import Refusal, Request
from tests import messages
from tests.messages import BATCHING, INITIALIZED, LEGACY, MODERN
from tests.transports.http.protected import bearer, lacking, protected_site
from tests.transports.http.site import Events, Site, bare, call, initialize, message_of, modern, site, text

BOB = "bob"
ANN = "ann files:read files:write"


def by_header(request: Request) -> Principal | Refusal | None:
    name, *scopes = request.headers.get("authorization", "guest").split()
    return None if name == "guest" else Principal(name, scopes=scopes)


@asynccontextmanager
async def scoped_site(**options: Any) -> AsyncIterator[Site]:
    async with site(**{"authenticate": by_header, **options}) as at:
        ran = at.ends

        @at.server.tool(scopes=["files:read", "files:write"])
        async def store(ctx: Context) -> str:
            ran.append("store")
            return str(ctx.principal)

        @at.server.tool(scopes=["files:read"])
        async def load(ctx: Context) -> str:
            ran.append("load")
            await ctx.progress(1)
            answer = await ctx.elicit("sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})
            return answer.action

        @at.server.resource("file:///report", scopes=["files:read"])
        async def report() -> str:
            ran.append("report")
            return "all is well"

        @at.server.resource("file:///open/{name}", scopes=["files:read"])
        async def opened(name: str) -> str:
            ran.append("open")
            return name

        @at.server.resource("news:///today")
        async def today() -> str:
            return "nothing"

        @at.server.prompt(scopes={"files:read"})
        async def review(of: str) -> str:
            ran.append("review")
            return of

        @at.server.completion(argument="of", prompt="review")
        async def names(typed: str) -> list[str]:
            ran.append("names")
            return ["one"]

        yield at


def asked(method: str, params: dict[str, Any], name: str | None = None) -> tuple[Any, dict[str, str]]:
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    return messages.modern_request(1, method, params), headers | ({"mcp-name": name} if name else {})


LISTEN = "subscriptions/listen"
COMPLETION = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "of", "value": ""}}
NEED_SCOPES: dict[str, tuple[Any, dict[str, str]]] = {
    "tool": modern(1, "load"),
    "resource": asked("resources/read", {"uri": "file:///report"}, "file:///report"),
    "template": asked("resources/read", {"uri": "file:///open/x"}, "file:///open/x"),
    "prompt": asked("prompts/get", {"name": "review", "arguments": {"of": "x"}}, "review"),
    "completion": asked("completion/complete", COMPLETION),
    "listen": asked(LISTEN, {"notifications": {"resourceSubscriptions": ["file:///report"]}}),
    "listen to a template": asked(LISTEN, {"notifications": {"resourceSubscriptions": ["file:///open/x"]}}),
    "listen above": asked(LISTEN, {"notifications": {"resourceSubscriptions": ["file:///"]}}),
    "listen to very many": asked(
        LISTEN, {"notifications": {"resourceSubscriptions": [f"news:///{number}" for number in range(300)]}}
    ),
    "retry with a state": asked(
        "tools/call",
        {"name": "load", "arguments": {}, "requestState": "forged", "inputResponses": {}},
        "load",
    ),
}


@pytest.mark.parametrize("caller", [BOB, "guest"])
@pytest.mark.parametrize("what", NEED_SCOPES)
async def test_a_caller_without_the_scope_gets_403_before_anything_runs(what: str, caller: str) -> None:
    message, headers = NEED_SCOPES[what]
    async with scoped_site() as at:
        response = await at.post(message, **headers, authorization=caller)
        assert response.status_code == 403
        assert response.headers["content-type"] == "application/json"
        assert "www-authenticate" not in response.headers
        assert response.json()["error"] == {
            "code": 403,
            "message": "the access token lacks a scope; needed are: files:read",
        }
        assert at.ends == []


@pytest.mark.parametrize("what", ["resource", "template", "prompt", "completion"])
async def test_a_caller_with_the_scope_is_served(what: str) -> None:
    message, headers = NEED_SCOPES[what]
    async with scoped_site() as at:
        response = await at.post(message, **headers, authorization=ANN)
        assert (response.status_code, "result" in response.json()) == (200, True)


async def test_what_needs_no_scope_is_open_to_everybody() -> None:
    async with scoped_site() as at:
        message, headers = modern(1, "add", a=1, b=2)
        assert text((await at.post(message, **headers)).json()) == "3"
        everything = asked("tools/list", {})
        listed = await at.post(everything[0], **everything[1], authorization=BOB)
        names = {each["name"] for each in listed.json()["result"]["tools"]}
        assert "add" in names
        assert "store" not in names
        only_news = asked(LISTEN, {"notifications": {"resourceSubscriptions": ["news:///today"]}})
        async with at.stream("POST", only_news[0], **only_news[1], authorization=BOB) as events:
            assert (await message_of(events))["method"] == "notifications/subscriptions/acknowledged"


async def test_all_scopes_are_named_and_a_retry_needs_them_again() -> None:
    async with scoped_site() as at:
        message, headers = modern(1, "store")
        refused = await at.post(message, **headers, authorization="ann files:read")
        assert refused.json()["error"]["message"].endswith("needed are: files:read files:write")
        message, headers = modern(1, "load")
        message["params"]["_meta"][messages.CAPABILITIES] = {"elicitation": {}}
        async with at.stream("POST", message, **headers, authorization=ANN) as events:
            assert (await message_of(events))["method"] == "notifications/progress"
            asks = (await message_of(events))["result"]
        (key,) = asks["inputRequests"]
        message["params"] |= {
            "requestState": asks.get("requestState"),
            "inputResponses": {key: {"action": "decline"}},
        }
        if message["params"]["requestState"] is None:
            del message["params"]["requestState"]
        assert (await at.post(message, **headers, authorization="ann files:write")).status_code == 403


@pytest.mark.parametrize(("served", "asked_for"), [("/mcp", "/mcp/"), ("/x/", "/x"), ("/x/", "/x/")])
async def test_the_path_is_served_with_and_without_a_slash(served: str, asked_for: str) -> None:
    async with scoped_site(url=f"http://127.0.0.1:0{served}") as at:
        at.url = at.url.removesuffix(served) + asked_for
        session = await at.open()
        assert (await at.post(call(1, "add", a=1, b=2), session)).status_code == 200
        message, headers = modern(1, "store")
        assert (await at.post(message, **headers)).status_code == 403
        assert (await at.http.delete(at.url, headers=bare(session))).status_code == 200
        at.url = f"{at.url.rstrip('/')}//"
        assert (await at.post(initialize(LEGACY))).status_code == 404


async def test_a_batch_needs_the_scopes_of_all_its_members() -> None:
    async with scoped_site() as at:
        opened = await at.post(initialize(BATCHING), authorization=BOB)
        session = opened.headers["mcp-session-id"]
        await at.post(INITIALIZED, session, authorization=BOB)
        batch = [call(1, "add", a=1, b=1), call(2, "store")]
        refused = await at.post(batch, session, authorization="bob files:read")
        assert refused.status_code == 403
        assert refused.json()["error"]["message"].endswith("needed are: files:read files:write")
        assert at.ends == []
        served = await at.post(batch, session, authorization="bob files:read files:write")
        assert (served.status_code, len(served.json())) == (200, 2)


async def test_a_session_goes_on_with_a_token_of_more_scopes() -> None:
    async with scoped_site() as at:
        session = (await at.post(initialize(LEGACY), authorization=BOB)).headers["mcp-session-id"]
        await at.post(INITIALIZED, session, authorization=BOB)
        assert (await at.post(call(1, "store"), session, authorization=BOB)).status_code == 403
        stepped_up = await at.post(call(1, "store"), session, authorization="bob files:read files:write")
        assert text(stepped_up.json()) == "bob"
        assert (await at.post(call(1, "store"), session, authorization=BOB)).status_code == 403
        subscribe = messages.request(2, "resources/subscribe", {"uri": "file:///report"})
        assert (await at.post(subscribe, session, authorization=BOB)).status_code == 403
        other = await at.post(call(1, "store"), session, authorization=ANN)
        assert other.status_code == 404


@pytest.mark.parametrize("is_gateway", [False, True])
async def test_a_session_is_told_that_a_token_of_more_scopes_lists_more(is_gateway: bool) -> None:
    more = "bob files:read files:write"
    upstreams = [Upstream(name="x", target=Server("x"), scopes=["y"])]
    async with scoped_site(make=partial(Gateway, upstreams) if is_gateway else Server) as at:
        session = (await at.post(initialize(LEGACY), authorization=BOB)).headers["mcp-session-id"]
        await at.post(INITIALIZED, session, authorization=BOB)
        lists = messages.request(1, "tools/list", {})

        async def listed(caller: str) -> bool:
            tools = (await at.post(lists, session, authorization=caller)).json()["result"]["tools"]
            return "store" in {each["name"] for each in tools}

        async def told(events: Events) -> set[str]:
            return {(await message_of(events))["method"] for _ in range(3)}

        changes = {f"notifications/{each}/list_changed" for each in ("tools", "prompts", "resources")}
        async with at.stream("GET", session=session, authorization=BOB) as events:
            for _ in range(2):
                assert not await listed(BOB)
                for _ in range(3):
                    assert (
                        text((await at.post(call(2, "store"), session, authorization=more)).json()) == "bob"
                    )
                assert await told(events) == changes
            # Once it has listed with them, there is nothing to tell.
            assert await listed(more)
            await at.post(call(3, "store"), session, authorization=more)
            for name in ("one", "two"):
                at.server.add_tool(nothing, name=name)
                assert (await message_of(events))["method"] == "notifications/tools/list_changed"


async def test_a_session_is_told_that_a_token_of_more_scopes_lists_an_upstream() -> None:
    behind = Server("behind")
    behind.add_tool(nothing, name="far")
    upstreams = [Upstream(name="x", target=behind, scopes=["far"])]
    async with site(make=partial(Gateway, upstreams), authenticate=by_header) as at:
        session = (await at.post(initialize(LEGACY), authorization=BOB)).headers["mcp-session-id"]
        await at.post(INITIALIZED, session, authorization=BOB)
        lists = messages.request(1, "tools/list", {})
        async with at.stream("GET", session=session, authorization=BOB) as events:
            tools = (await at.post(lists, session, authorization=BOB)).json()["result"]["tools"]
            assert "x_far" not in {each["name"] for each in tools}
            called = await at.post(call(2, "x_far"), session, authorization="bob far")
            assert called.json()["result"]["content"] == []
            assert (await message_of(events))["method"] == "notifications/tools/list_changed"


async def nothing() -> None:
    """A tool."""


async def test_scopes_over_http_and_sse_are_those_of_each_post() -> None:
    async with scoped_site() as at, at.stream("GET", path="/sse", authorization=BOB) as events:
        path = (await anext(events)).data.decode()
        messages_url = at.url.removesuffix("/mcp") + path

        async def post(message: Any, caller: str) -> int:
            headers = {"content-type": "application/json", "authorization": caller}
            return (
                await at.http.post(messages_url, content=json.dumps(message), headers=headers)
            ).status_code

        assert await post(initialize("2024-11-05"), BOB) == 202
        assert (await message_of(events))["id"] == 0
        assert await post(INITIALIZED, BOB) == 202
        assert await post(call(1, "store"), BOB) == 403
        assert await post(call(1, "store"), ANN) == 404
        assert await post("no message", BOB) == 202
        assert (await answer_to(events, None))["error"]["code"] == -32600
        assert await post(call(2, "store"), "bob files:read files:write") == 202
        assert text(await answer_to(events, 2)) == "bob"


async def answer_to(events: Events, id: Any) -> Any:
    while (message := await message_of(events)).get("id") != id or "method" in message:
        pass
    return message


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_without_authentication_nobody_over_http_has_a_scope(era: str) -> None:
    async with scoped_site(authenticate=None) as at:
        if era == "modern":
            message, headers = modern(1, "store")
            response = await at.post(message, **headers)
        else:
            response = await at.post(call(1, "store"), await at.open())
        assert response.status_code == 403
        assert response.json()["error"]["data"] == {
            "reason": "insufficient_scope",
            "scopes": ["files:read", "files:write"],
        }
        assert at.ends == []


async def test_a_wrong_answer_of_the_check_is_an_error_of_this_side() -> None:
    async with site(authenticate=lambda request: {"name": "ann"}) as at:
        message, headers = modern(1, "add", a=1, b=2)
        assert (await at.post(message, **headers)).status_code == 500


# -- Handlers that find out for themselves that a scope is missing ---------------------------------------
#
# And methods of the program's own that need scopes.

METHOD = "acme/publish"


@asynccontextmanager
async def asking_site(**options: Any) -> AsyncIterator[Site]:
    async with protected_site(**options) as at:

        @at.server.tool
        async def save(folder: str, ctx: Context) -> str:
            assert ctx.principal is not None
            if f"files:{folder}" not in ctx.principal.scopes:
                raise InsufficientScope({f"files:{folder}"})
            return "saved"

        @at.server.tool
        async def slow_save(ctx: Context) -> str:
            await ctx.progress(1)
            raise InsufficientScope({"files:write"})

        @at.server.tool
        async def upstream() -> str:
            raise RpcError.from_wire(
                403, "the access token lacks a scope", {"scopes": ["admin:everything"], "reason": "x"}
            )

        @at.server.method(METHOD, scopes=["files:write"])
        async def publish(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
            at.ends.append("published")
            return {"published": params["what"]}

        yield at


async def opened(at: Site) -> str:
    session = (await at.post(initialize(LEGACY), **bearer("ann"))).headers["mcp-session-id"]
    await at.post(INITIALIZED, session, **bearer("ann"))
    return str(session)


async def in_era(at: Site, era: str, name: str, **arguments: Any) -> tuple[Any, dict[str, str]]:
    if era == "modern":
        return modern(1, name, **arguments)
    return call(1, name, **arguments), {"mcp-session-id": await opened(at)}


@pytest.mark.parametrize("json_replies", [False, True])
@pytest.mark.parametrize(
    ("era", "challenge"),
    [("modern", "files:write mcp:use"), ("legacy", "files:write mcp:use files:read")],
)
async def test_a_scope_that_a_handler_misses_is_challenged(
    era: str, challenge: str, json_replies: bool
) -> None:
    async with asking_site(json_replies=json_replies) as at:
        message, headers = await in_era(at, era, "save", folder="write")
        refused = await at.post(message, **headers, **bearer("ann"))
        assert (refused.status_code, refused.headers.get_list("www-authenticate")) == (
            403,
            [lacking(challenge)],
        )
        assert refused.headers["cache-control"] == "no-store"
        assert refused.json()["id"] == 1
        error = refused.json()["error"]
        assert error["data"] == {"reason": "insufficient_scope", "scopes": ["files:write"]}
        # The step-up leads to a token with which the same call is served.
        served = await at.post(message, **headers, **bearer("ann-more"))
        assert text(served.json()) == "saved"


async def test_a_scope_that_is_missing_after_the_stream_has_begun_is_an_error_in_it() -> None:
    async with asking_site() as at:
        message, headers = modern(1, "slow_save")
        async with at.stream("POST", message, **headers, **bearer("ann")) as events:
            assert (await message_of(events))["method"] == "notifications/progress"
            assert (await message_of(events))["error"]["data"]["scopes"] == ["files:write"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_scopes_of_another_server_are_not_asked_of_our_callers(era: str) -> None:
    async with asking_site() as at:
        message, headers = await in_era(at, era, "upstream")
        refused = await at.post(message, **headers, **bearer("ann"))
        assert refused.json()["error"]["code"] == 403
        assert "www-authenticate" not in refused.headers


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_method_of_the_programs_own_needs_its_scopes(era: str) -> None:
    params = {"what": "a page"}
    async with asking_site() as at:
        if era == "modern":
            message = messages.modern_request(1, METHOD, params)
            headers = {"mcp-protocol-version": MODERN, "mcp-method": METHOD}
            scopes = "files:write mcp:use"
        else:
            message, headers = messages.request(1, METHOD, params), {"mcp-session-id": await opened(at)}
            scopes = "files:write mcp:use files:read"
        refused = await at.post(message, **headers, **bearer("ann"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (403, lacking(scopes))
        assert at.ends == []
        served = await at.post(message, **headers, **bearer("ann-more"))
        assert served.json()["result"]["published"] == "a page"


def test_scopes_are_a_list() -> None:
    with pytest.raises(TypeError, match="give a set or a list"):
        InsufficientScope("files:write")


@pytest.mark.parametrize("caller", [BOB, "guest", ANN])
async def test_rules_hide_from_callers_of_single_requests_and_scopes_still_need_a_403(caller: str) -> None:
    """Without a session a function decides by the caller of each request."""

    def for_users(caller: Caller, component: Component) -> bool:
        assert caller.session is None
        assert caller.request is not None
        return caller.principal is not None

    async with site(authenticate=by_header) as at:
        ran: list[str] = []

        @at.server.tool(name="hidden", visible=for_users, scopes=["files:read"])
        async def hidden() -> str:
            ran.append("hidden")
            return "seen"

        lists, headers = asked("tools/list", {})
        result = (await at.post(lists, **headers, authorization=caller)).json()["result"]
        assert ("hidden" in [each["name"] for each in result["tools"]]) == (caller == ANN)
        assert result["cacheScope"] == "private"
        message, headers = modern(1, "hidden")
        response = await at.post(message, **headers, authorization=caller)
        if caller == ANN:
            assert text(response.json()) == "seen"
        elif caller == BOB:
            assert response.status_code == 403
        else:
            assert response.json()["error"]["message"] == "unknown tool: hidden"
        assert ran == (["hidden"] if caller == ANN else [])
