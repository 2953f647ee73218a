"""Handles of one caller in the hands of another, header injection, and what a tool could pass on of a token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest
import trio

from mcp_actors import Context, Server
from mcp_actors.errors import InsufficientScope
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from tests import messages
from tests.messages import INITIALIZED, LEGACY, MODERN, PREFIX
from tests.transports.http.protected import (
    METADATA,
    NO_TOKEN,
    WELL_KNOWN,
    Tokens,
    bearer,
    caller,
    lacking,
    protected_site,
    resource_server,
)
from tests.transports.http.raw import RawPeer, eventually, serving
from tests.transports.http.site import BOTH, Site, call, initialize, message_of, modern, text

HOSTILE = 'a\r\nSet-Cookie: x=1"\\é\u2028 b'


async def opened(at: Site, token: str = "ann") -> str:
    session = (await at.post(initialize(LEGACY), **bearer(token))).headers["mcp-session-id"]
    await at.post(INITIALIZED, session, **bearer(token))
    return str(session)


# -- a session without a token ---------------------------------------------------------------------------------------


async def test_a_session_id_without_a_token_is_worth_nothing() -> None:
    async with protected_site() as at:
        session = await opened(at)
        async with at.stream("POST", call(1, "wait"), session, **bearer("ann")) as events:
            event = (await anext(events)).id or ""
            named = {"mcp-session-id": session, **BOTH}
            for method, message, more in (
                ("POST", call(2, "add", a=1, b=1), {}),
                ("POST", messages.cancelled(1), {}),
                ("POST", initialize(LEGACY), {}),
                ("GET", None, {}),
                ("GET", None, {"last-event-id": event}),
                ("DELETE", None, {}),
            ):
                refused = await at.http.request(method, at.url, json=message, headers={**named, **more})
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, NO_TOKEN)
                assert "mcp-session-id" not in refused.headers
            at.go.set()
            while "result" not in (last := await message_of(events)):
                pass
            assert text(last) == "waited"
        assert at.ends == ["finished"]


# -- ids that two callers share --------------------------------------------------------------------------------------


async def test_a_cancellation_meets_calls_of_its_own_session_only() -> None:
    async with protected_site() as at:
        anns, bobs = await opened(at), await opened(at, "bob")
        stop = messages.cancelled(1, reason="bob wants it")
        async with at.stream("POST", call(1, "wait"), anns, **bearer("ann")) as events:
            assert (await message_of(events))["params"]["progressToken"] == "1"
            for session, status in ((anns, 404), (bobs, 202), (None, 400)):
                assert (await at.post(stop, session, **bearer("bob"))).status_code == status
            # The same id and the same progress token belong to another call here.
            async with at.stream("POST", call(1, "wait"), bobs, **bearer("bob")) as others:
                assert (await message_of(others))["params"] == {"progressToken": "1", "progress": 1}
                assert (await at.post(stop, bobs, **bearer("bob"))).status_code == 202
                await eventually(lambda: at.ends == ["cancelled"])
            at.go.set()
            rest = [await message_of(events), await message_of(events)]
            assert rest[0]["params"] == {"progressToken": "1", "progress": 2}
            assert text(rest[1]) == "waited"
        assert at.ends == ["cancelled", "finished"]


async def test_without_sessions_a_cancellation_meets_nothing() -> None:
    message, headers = modern(1, "wait")
    stop = messages.cancelled(1)
    stop["params"]["_meta"] = messages.modern_meta()
    stopping = {"mcp-protocol-version": MODERN, "mcp-method": "notifications/cancelled"}
    async with protected_site() as at, at.stream("POST", message, **headers, **bearer("ann")) as events:
        assert (await message_of(events))["params"]["progressToken"] == "1"
        # In these revisions a client cancels by closing its stream, so that not even the owner is obeyed.
        for token in ("bob", "ann"):
            assert (await at.post(stop, **stopping, **bearer(token))).status_code == 202
        async with at.stream("POST", message, **headers, **bearer("bob")) as others:
            assert (await message_of(others))["params"]["progress"] == 1
        await eventually(lambda: at.ends == ["cancelled"])
        at.go.set()
        rest = [await message_of(events), await message_of(events)]
        assert (rest[0]["params"]["progress"], text(rest[1])) == (2, "waited")


URI = "file:///plan"


async def test_a_subscription_id_is_that_of_one_stream() -> None:
    listen = messages.modern_request(
        7, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [URI]}}
    )
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
    stop = messages.cancelled(7)
    stop["params"]["_meta"] = messages.modern_meta() | {PREFIX + "subscriptionId": "7"}
    stopping = {"mcp-protocol-version": MODERN, "mcp-method": "notifications/cancelled"}
    async with protected_site() as at:

        @at.server.resource(URI)
        async def plan() -> str:
            return "a plan"

        async with at.stream("POST", listen, **headers, **bearer("ann")) as events:
            assert (await message_of(events))["method"] == "notifications/subscriptions/acknowledged"
            assert (await at.post(stop, **stopping, **bearer("bob"))).status_code == 202
            async with at.stream("POST", listen, **headers, **bearer("bob")) as others:
                assert (await message_of(others))["method"] == "notifications/subscriptions/acknowledged"
            at.server.resource_updated(URI)
            assert (await message_of(events))["params"]["uri"] == URI


async def test_nobody_ends_the_subscription_of_another_session() -> None:
    async with protected_site() as at:

        @at.server.resource(URI)
        async def plan() -> str:
            return "a plan"

        anns, bobs = await opened(at), await opened(at, "bob")
        subscribe = messages.request(1, "resources/subscribe", {"uri": URI})
        unsubscribe = messages.request(2, "resources/unsubscribe", {"uri": URI})
        assert (await at.post(subscribe, anns, **bearer("ann"))).status_code == 200
        async with at.stream("GET", None, anns, **bearer("ann")) as events:
            for session, status in ((anns, 404), (bobs, 200)):
                assert (await at.post(unsubscribe, session, **bearer("bob"))).status_code == status
            at.server.resource_updated(URI)
            assert (await message_of(events))["params"]["uri"] == URI


# -- header injection ------------------------------------------------------------------------------------------------


async def head_of(at: Site, request: bytes) -> list[str]:
    peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", int(at.url.split(":")[2].partition("/")[0])))
    try:
        await peer.send(request)
        head: bytes = await peer.until(b"\r\n\r\n")
    finally:
        await peer.aclose()
    return head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")


async def test_whatever_a_handler_says_a_challenge_is_one_line() -> None:
    async with protected_site() as at:

        @at.server.tool
        async def hostile() -> str:
            raise InsufficientScope({HOSTILE})

        message, headers = modern(1, "hostile")
        body = json.dumps(message).encode()
        named = {"host": "localhost", "content-type": "application/json", **BOTH, **headers, **bearer("ann")}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        head = await head_of(
            at, f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body
        )
    assert head[0] == "HTTP/1.1 403 Forbidden"
    assert {line.partition(":")[0].lower() for line in head[1:]} == {
        "date",
        "content-type",
        "content-length",
        "cache-control",
        "www-authenticate",
    }
    (challenge,) = [line for line in head if line.startswith("WWW-Authenticate")]
    assert " ".join(challenge.split()) == "WWW-Authenticate: " + lacking("a Set-Cookie: x=1'' b mcp:use")


@pytest.mark.parametrize(
    "path", ['/mcp"', "/mcp%0d%0aX:1", "/mcp\\", "/m%22cp?scope=%22", WELL_KNOWN + '/mcp"']
)
async def test_no_path_gets_into_an_answer(path: str) -> None:
    async with protected_site() as at:
        head = await head_of(at, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert head[0] == "HTTP/1.1 404 Not Found"
    assert {line.partition(":")[0] for line in head[1:]} == {"date", "content-type", "content-length"}


async def test_a_name_is_no_part_of_a_header() -> None:
    async with protected_site(auth=resource_server(name=HOSTILE)) as at:
        document = (await at.http.get(at.url.removesuffix("/mcp") + WELL_KNOWN)).json()
        refused = await at.post(*modern(1, "add", a=1, b=1)[:1])
    assert document["resource_name"] == HOSTILE
    assert refused.headers.get_list("www-authenticate") == [NO_TOKEN]
    assert METADATA in NO_TOKEN


@pytest.mark.parametrize("scope", ['a"b', "a\\b", "a\r\nb", "a b", "é", ""])
def test_a_scope_that_no_header_can_have_is_refused_when_it_is_written(scope: str) -> None:
    with pytest.raises(ValueError, match="no scope"):
        resource_server(scopes=[scope])
    with pytest.raises(TypeError, match="list of scopes"):
        Server("s").tool(scopes=[scope])(sum_of)


def sum_of(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("end", ['"', "\\", "\r\nX: 1", " x", "#x", "é"])
def test_a_resource_that_no_header_can_have_is_refused_when_it_is_written(end: str) -> None:
    with pytest.raises(ValueError, match="give the public URL of this server"):
        resource_server(resource="https://mcp.example.org/mcp" + end)


# -- what a tool can pass on -----------------------------------------------------------------------------------------

SECRET = "s3cret-0f-ann.with~all/characters+="
PROOF = "pr00f.0f.ann"


def everything(ctx: Context) -> str:
    """Returns all that a function can read of its caller without looking into the engine."""
    request, principal = ctx.request, ctx.principal
    assert isinstance(request, Request)
    assert isinstance(principal, Principal)
    return "\n".join(
        [
            repr(msgspec.structs.asdict(request)),
            repr([request, principal, ctx, ctx.session, ctx.peer, ctx.call, ctx.server]),
            repr([principal.claims, principal.scopes, principal.key, str(principal), ctx.params]),
            repr(ctx.server.tree()),
        ]
    )


async def passed_on(at: Site, send: Callable[[], Any]) -> tuple[str, list[dict[str, str]]]:
    """Calls a tool that hands on all it has to another server; returns what it saw, and what that server was sent."""
    got: list[dict[str, str]] = []
    seen: list[str] = []

    def upstream(request: Request, response: Response) -> None:
        got.append({**request.headers, "body": request.body.decode(), "target": request.target})
        response.answer(200, b"{}", content_type="application/json")

    async with serving(upstream) as other:

        @at.server.tool
        async def forward(ctx: Context) -> str:
            seen.append(everything(ctx))
            assert ctx.request is not None
            headers = {
                name: value for name, value in ctx.request.headers.items() if not name.startswith("content-")
            }
            async with httpx2.AsyncClient() as http:
                url = f"http://127.0.0.1:{other.port}{ctx.request.path}?{ctx.request.query}"
                await http.post(url, headers=headers, content=seen[-1].encode())
            return "forwarded"

        assert text((await send()).json()) == "forwarded"
    return seen[0], got


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_a_tool_has_no_token_to_pass_on(era: str, scheme: str) -> None:
    tokens = Tokens(principals={SECRET: caller("ann")})
    async with protected_site(tokens) as at:
        ann = {"authorization": f"{scheme} {SECRET}", "dpop": PROOF, "x-tenant": "blue"}
        message, headers = modern(1, "forward")
        if era == "legacy":
            opening = await at.post(initialize(LEGACY), **ann)
            message, headers = call(1, "forward"), {"mcp-session-id": opening.headers["mcp-session-id"]}
            await at.post(INITIALIZED, **headers, **ann)
        seen, (got,) = await passed_on(at, lambda: at.post(message, **headers, **ann))
    assert "ann" in seen
    assert got["x-tenant"] == "blue"
    assert {"authorization", "dpop"} & got.keys() == set()
    for secret in (SECRET, PROOF):
        assert secret not in seen + json.dumps(got)


async def test_a_wish_for_another_protocol_keeps_no_token() -> None:
    """The bytes of the head of such a request are kept, for the other protocol."""
    heads: list[bytes] = []
    async with protected_site() as at:

        @at.server.tool
        async def looks(ctx: Context) -> str:
            assert isinstance(ctx.request, Request)
            heads.append(ctx.request.head)
            return "looked"

        wish = {"connection": "upgrade", "upgrade": "websocket"}
        async with at.stream("GET", path="/sse", **wish, **bearer("ann")) as events:
            url = at.url.removesuffix("/mcp") + (await anext(events)).data.decode()
            for message in (initialize("2024-11-05"), INITIALIZED, call(1, "looks")):
                assert (await at.http.post(url, json=message, headers=bearer("ann"))).status_code == 202
            assert (await message_of(events))["id"] == 0
            assert text(await message_of(events)) == "looked"
    assert heads == [b""]
