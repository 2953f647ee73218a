"""A server that is protected by access tokens, over HTTP: the exact answers, and what is bound to a caller."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors.auth import IntrospectionVerifier
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_transports.http.server import HttpServerTransport, Request
from tests import messages
from tests.messages import INITIALIZED, LEGACY
from tests.transports.http.fakes import FakeListener, answer, notification, request
from tests.transports.http.protected import (
    INVALID,
    MALFORMED,
    NO_TOKEN,
    RESOURCE,
    WELL_KNOWN,
    Tokens,
    bearer,
    lacking,
    protected_site,
    resource_server,
)
from tests.transports.http.raw import RawPeer
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
