"""A server that is protected by access tokens, over HTTP: the exact answers, and what is bound to a caller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest
import trio
import trio.testing

from mcp_actors import Context, Server
from mcp_actors.auth import IntrospectionVerifier
from mcp_actors.errors import InsufficientScope
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server import HttpServerTransport
from tests import messages
from tests.messages import INITIALIZED, LEGACY, MODERN, PREFIX
from tests.transports.http.fakes import FakeListener, answer, notification, request
from tests.transports.http.protected import (
    INVALID,
    MALFORMED,
    METADATA,
    NO_TOKEN,
    RESOURCE,
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


async def opened(at: Site, token: str = "ann") -> str:
    session = str(
        (await at.post(initialize(LEGACY), **bearer(token))).headers.get("mcp-session-id", "none: refused")
    )
    await at.post(INITIALIZED, session, **bearer(token))
    return session


MODERN_CALL, MODERN_HEADERS = modern(1, "add", a=1, b=2)
ROUTES: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "modern POST": ("POST", "/mcp", MODERN_CALL, MODERN_HEADERS),
    "initialize": ("POST", "/mcp", initialize(LEGACY), {}),
    "POST in a session": ("POST", "/mcp", call(1, "add", a=1, b=2), {"mcp-session-id": "any"}),
    "GET": ("GET", "/mcp", None, {"mcp-session-id": "any"}),
    "GET that resumes": ("GET", "/mcp", None, {"mcp-session-id": "any", "last-event-id": "1"}),
    "DELETE": ("DELETE", "/mcp", None, {"mcp-session-id": "any"}),
    "HTTP+SSE": ("GET", "/sse", None, {}),
    "HTTP+SSE POST": ("POST", "/messages?session_id=any", initialize("2024-11-05"), {}),
    "no JSON at all": ("POST", "/mcp", "[[[", {}),
}


async def sent(at: Site, route: str, **headers: str) -> httpx2.Response:
    method, path, message, named = ROUTES[route]
    url = at.url.removesuffix("/mcp") + path
    return await at.http.request(method, url, json=message, headers={**BOTH, **named, **headers})


def answered(response: httpx2.Response) -> tuple[int, list[str], str, Any]:
    challenges = response.headers.get_list("www-authenticate")
    return response.status_code, challenges, response.headers["content-type"], response.json()["error"]


@pytest.mark.parametrize("route", ROUTES)
async def test_each_refusal_is_the_same_at_every_route(route: str) -> None:
    tokens = Tokens(remembered_for=0)
    async with protected_site(tokens) as at:
        for headers, status, challenge, error in (
            ({}, 401, NO_TOKEN, "unauthorized"),
            ({"authorization": "Basic YTpi"}, 401, NO_TOKEN, "unauthorized"),
            (bearer("nobody"), 401, INVALID, "invalid_token"),
            (bearer("two tokens"), 400, MALFORMED, "invalid_request"),
            ({"authorization": "Bearer"}, 400, MALFORMED, "invalid_request"),
            (bearer("ann-useless"), 403, lacking("mcp:use"), "insufficient_scope"),
        ):
            response = await sent(at, route, **headers)
            assert answered(response) == (status, [challenge], "application/json", error)
            assert response.headers["cache-control"] == "no-store"
        tokens.down = True
        response = await sent(at, route, **bearer("ann"))
        assert answered(response) == (503, [], "application/json", "temporarily_unavailable")
        assert response.headers["retry-after"] == "7"


async def test_the_bytes_of_a_refusal() -> None:
    async with protected_site() as at:
        port = int(at.url.split(":")[2].partition("/")[0])
        peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
        try:
            await peer.send(
                b"POST /mcp?access_token=ann HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\nContent-Length: 2\r\n\r\n{}"
            )
            head = await peer.until(b"\r\n\r\n")
            body = await peer.exactly(73)
            await peer.send(
                b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann\r\nAuthorization: Bearer bob\r\n"
                b"Content-Length: 2\r\n\r\n{}"
            )
            twice = await peer.until(b"\r\n")
        finally:
            await peer.aclose()
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"date:")]
    assert lines == [
        b"HTTP/1.1 401 Unauthorized",
        b"content-type: application/json",
        b"Cache-Control: no-store",
        b"WWW-Authenticate: " + NO_TOKEN.encode(),
        b"content-length: 73",
        b"",
        b"",
    ]
    assert body == b'{"error":"unauthorized","error_description":"An access token is needed."}'
    assert twice == b"HTTP/1.1 400 Bad Request\r\n"


async def test_a_token_that_was_verified_is_not_verified_again() -> None:
    tokens = Tokens()
    async with protected_site(tokens) as at:
        for _ in range(3):
            assert text((await at.post(MODERN_CALL, **MODERN_HEADERS, **bearer("ann"))).json()) == "3"
    assert tokens.asked == 1


async def test_missing_scopes_are_asked_for_in_the_form_of_the_revision() -> None:
    async with protected_site() as at:
        message, headers = modern(1, "store")
        refused = await at.post(message, **headers, **bearer("ann"))
        assert answered(refused) == (
            403,
            [lacking("files:write mcp:use")],
            "application/json",
            "insufficient_scope",
        )
        session = await opened(at)
        refused = await at.post(call(1, "store"), session, **bearer("ann"))
        # Clients of this revision ask for what the challenge names, and for nothing else.
        assert refused.headers.get_list("www-authenticate") == [lacking("files:write mcp:use files:read")]
        assert at.ends == []
        for response in (
            await at.post(message, **headers, **bearer("ann-more")),
            await at.post(call(1, "store"), session, **bearer("ann-more")),
        ):
            assert text(response.json()) == "stored"


async def test_a_scope_may_imply_another() -> None:
    implies = {"files:read": ["files:write"]}
    async with protected_site(auth=resource_server(implies=implies)) as at:
        message, headers = modern(1, "store")
        assert text((await at.post(message, **headers, **bearer("ann"))).json()) == "stored"


# -- what is bound to a caller -------------------------------------------------------------------------------------

OTHERS = ["bob", "ann-elsewhere"]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_session_of_another_caller_does_not_exist(other: str) -> None:
    async with protected_site() as at:
        session = await opened(at)
        async with at.stream("POST", call(1, "wait"), session, **bearer("ann")) as events:
            first = await anext(events)
            for token, status in ((other, 404), ("nobody", 401)):
                mine = {"mcp-session-id": session, **BOTH, **bearer(token)}
                responses = [
                    await at.post(call(2, "add", a=1, b=1), session, **bearer(token)),
                    await at.http.get(at.url, headers=mine),
                    await at.http.get(at.url, headers={**mine, "last-event-id": first.id or ""}),
                    await at.http.delete(at.url, headers=mine),
                ]
                assert [each.status_code for each in responses] == [status] * 4
            unknown = await at.post(call(2, "add", a=1, b=1), "unknown", **bearer(other))
            stolen = await at.post(call(2, "add", a=1, b=1), session, **bearer(other))
            assert stolen.content == unknown.content
            # A new token of the same caller is as good as the old one.
            for token in ("ann-renewed", "ann-more"):
                assert (await at.post(call(3, "add", a=1, b=1), session, **bearer(token))).status_code == 200
            at.go.set()
            while "result" not in (last := await message_of(events)):
                pass
            assert text(last) == "waited"


@pytest.mark.parametrize("other", OTHERS)
async def test_messages_of_http_and_sse_are_those_of_the_caller_who_connected(other: str) -> None:
    async with protected_site() as at, at.stream("GET", path="/sse", **bearer("ann")) as events:
        url = at.url.removesuffix("/mcp") + (await anext(events)).data.decode()

        async def post(message: Any, token: str) -> httpx2.Response:
            return await at.http.post(url, json=message, headers=bearer(token))

        assert (await post(initialize("2024-11-05"), other)).status_code == 404
        assert (await post(initialize("2024-11-05"), "ann")).status_code == 202
        assert (await message_of(events))["id"] == 0
        await post(INITIALIZED, "ann")
        refused = await post(call(1, "store"), "ann")
        assert refused.status_code == 403
        assert refused.headers["www-authenticate"] == lacking("files:write mcp:use files:read")
        assert (await post(call(1, "store"), "ann-more")).status_code == 202
        assert text(await message_of(events)) == "stored"


async def test_the_state_of_a_question_is_good_for_its_caller_only() -> None:
    async with protected_site() as at:
        message, headers = modern(1, "ask")
        message["params"]["_meta"][messages.CAPABILITIES] = {"elicitation": {}}
        asked = (await at.post(message, **headers, **bearer("ann"))).json()["result"]
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        message["params"] |= {"inputResponses": answers, "requestState": asked["requestState"]}
        stolen = await at.post(message, **headers, **bearer("bob"))
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (200, -32602)
        assert text((await at.post(message, **headers, **bearer("ann-renewed"))).json()) == "hello Ada"


async def test_no_token_reaches_a_function() -> None:
    async with protected_site() as at:
        message, headers = modern(1, "sees")
        cookie = {"x-tenant": "blue", "dpop": "not.a.proof"}
        seen = json.loads(text((await at.post(message, **headers, **bearer("ann"), **cookie)).json()))
        assert seen["caller"] == ["ann", "https://as.example.org", "an app"]
        assert seen["scopes"] == ["files:read", "mcp:use"]
        assert seen["headers"]["x-tenant"] == "blue"
        assert {"authorization", "dpop"} & set(seen["headers"]) == set()
        assert "blue" not in seen["shown"]
        session = await opened(at)
        seen = json.loads(text((await at.post(call(1, "sees"), session, **bearer("ann-more"))).json()))
        assert seen["scopes"] == ["files:read", "files:write", "mcp:use"]
        assert "authorization" not in seen["headers"]


# -- the metadata of the resource ------------------------------------------------------------------------------------

DOCUMENT = {
    "resource": RESOURCE,
    "authorization_servers": ["https://as.example.org"],
    "scopes_supported": ["mcp:use"],
    "bearer_methods_supported": ["header"],
}


@pytest.mark.parametrize("path", [WELL_KNOWN, WELL_KNOWN + "/mcp"])
async def test_everybody_may_read_the_metadata(path: str) -> None:
    async with protected_site() as at:
        url = at.url.removesuffix("/mcp") + path
        page = {"origin": "https://a.page.example"}
        for headers in ({}, page, bearer("nobody")):
            found = await at.http.get(url, headers=headers)
            assert (found.status_code, found.json()) == (200, DOCUMENT)
            assert found.headers["content-type"] == "application/json"
            assert found.headers["access-control-allow-origin"] == "*"
            assert found.headers["cache-control"] == "max-age=3600"
        head = await at.http.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(found.content))
        preflight = {**page, "access-control-request-method": "GET"}
        allowed = await at.http.options(url, headers=preflight)
        assert (allowed.status_code, allowed.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        assert allowed.headers["access-control-allow-origin"] == "*"
        for method in ("POST", "PUT", "DELETE"):
            refused = await at.http.request(method, url)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        assert (await at.http.get(url, headers={"host": "evil.example"})).status_code == 403
        assert (await at.http.get(url + "/other")).status_code == 404


async def test_a_server_without_protection_has_no_metadata() -> None:
    async with protected_site(auth=None) as at:
        assert (await at.http.get(at.url.removesuffix("/mcp") + WELL_KNOWN)).status_code == 404


async def test_the_challenge_can_be_read_by_pages() -> None:
    async with protected_site() as at:
        page = {"origin": "http://localhost:5173"}
        refused = await at.post(MODERN_CALL, **MODERN_HEADERS, **page)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == page["origin"]
        exposed = refused.headers["access-control-expose-headers"].split(", ")
        assert set(exposed) == {"WWW-Authenticate", "DPoP-Nonce", "Mcp-Session-Id"}
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,dpop",
        }
        preflight = await at.http.options(at.url, headers=page | asked)
        assert preflight.status_code == 204
        assert {"Authorization", "DPoP"} <= set(preflight.headers["access-control-allow-headers"].split(", "))


# -- the settings ----------------------------------------------------------------------------------------------------


def test_one_of_the_two_ways_says_who_a_caller_is() -> None:
    with pytest.raises(ValueError, match="not both"):
        HttpServerTransport("http://127.0.0.1:0", auth=resource_server(), authenticate=lambda request: "ann")
    with pytest.raises(TypeError, match="auth is a str: write auth=ResourceServer"):
        HttpServerTransport("http://127.0.0.1:0", auth="https://as.example.org")  # type: ignore[arg-type]


async def test_an_authorization_server_that_cannot_be_reached_is_503() -> None:
    verifier = IntrospectionVerifier(client_id="rs", client_secret="the secret of the server")
    settings = resource_server(verifier=verifier, issuer="http://127.0.0.1:9")
    async with protected_site(auth=settings) as at:
        response = await at.post(MODERN_CALL, **MODERN_HEADERS, **bearer("ann"))
    assert answered(response) == (503, [], "application/json", "temporarily_unavailable")


# -- the end of an access --------------------------------------------------------------------------------------------


def lasting(seconds: float) -> Principal:
    return Principal("ann", expires_at=time.time() + seconds)


async def test_a_get_stream_ends_with_its_access_and_can_be_resumed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(nursery, authenticate=lambda request: lasting(100), idle=10_000)
    nursery.start_soon(listener.open_streams.end_expired)
    session, engine = listener.open()
    stream = listener.get(session)
    engine.outlet.post(notification("before"))
    await trio.sleep(100 + STREAM_GRACE - 20)
    assert not stream.ended
    await trio.sleep(40)
    assert stream.ended
    assert not stream.aborted
    engine.outlet.post(notification("between"))
    resumed = listener.get(session, stream.ids[-1])
    await trio.testing.wait_all_tasks_blocked()
    assert [each["method"] for each in resumed.messages] == ["between"]


async def test_a_call_outlives_the_access_with_which_it_began(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(nursery, authenticate=lambda request: lasting(100), idle=10_000)
    nursery.start_soon(listener.open_streams.end_expired)
    session, engine = listener.open()
    response = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("working", about=1))
    await trio.sleep(1_000)
    engine.outlet_of(1).post(answer(1))
    assert response.messages[-1] == {"jsonrpc": "2.0", "id": 1, "result": "done"}


async def test_an_http_and_sse_connection_lasts_as_long_as_newer_tokens_come(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    access = [lasting(100)]

    def who(request: Request) -> Principal:
        return access[-1]

    listener = FakeListener(nursery, authenticate=who)
    ended = trio.Event()

    async def until_the_end(channel: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    listener.handler.on_connection = until_the_end
    stream = listener.send("GET", "/sse", headers={"accept": "text/event-stream"})
    await trio.testing.wait_all_tasks_blocked()
    path = b"".join(stream.chunks).decode().split("data: ")[1].split("\n")[0]
    access.append(lasting(1_000))
    listener.send("POST", path, b"{}", {"content-type": "application/json"})
    await trio.sleep(500)
    assert not ended.is_set()
    await trio.sleep(1_000)
    assert ended.is_set()


# -- Handles of one caller in the hands of another, header injection, and what a tool could pass on of a token ---

HOSTILE = 'a\r\nSet-Cookie: x=1"\\é\u2028 b'


async def opened_protected_handles(at: Site, token: str = "ann") -> str:
    session = (await at.post(initialize(LEGACY), **bearer(token))).headers["mcp-session-id"]
    await at.post(INITIALIZED, session, **bearer(token))
    return str(session)


# -- a session without a token ---------------------------------------------------------------------------------------


async def test_a_session_id_without_a_token_is_worth_nothing() -> None:
    async with protected_site() as at:
        session = await opened_protected_handles(at)
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
        anns, bobs = await opened_protected_handles(at), await opened_protected_handles(at, "bob")
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

        anns, bobs = await opened_protected_handles(at), await opened_protected_handles(at, "bob")
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
