"""The status tables of the specification, row by row, and who is let in."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Authenticate
from mcp_transports.http.server.responses import Refusal, accepts_both, accepts_events, is_json
from tests.transports.http.fakes import FakeListener, answer, plain, question, request

# -- before the engine is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/mcp", "POST, GET, DELETE"),
        ("HEAD", "/mcp", "POST, GET, DELETE"),
        ("POST", "/sse", "GET"),
        ("GET", "/messages", "POST"),
    ],
)
async def test_other_methods_are_told_which_are_allowed(method: str, path: str, allow: str) -> None:
    response = FakeListener().send(method, path)
    assert (response.status, response.headers["allow"]) == (405, allow)
    assert response.json["error"]["code"] == -32000
    assert "id" not in response.json


async def test_other_paths_lead_nowhere() -> None:
    for path in ("/", "/mcp/", "/MCP", "/.well-known/x", "/mcp%20", "*"):
        assert FakeListener().send("POST", path).status == 404


async def test_a_server_without_sessions_has_neither_get_nor_delete() -> None:
    listener = FakeListener(sessions=False)
    for response in (listener.get("x"), listener.delete("x")):
        assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_a_server_without_the_legacy_era_has_neither_and_no_pipes() -> None:
    listener = FakeListener(legacy=False)
    for response in (listener.get("x"), listener.delete("x")):
        assert (response.status, response.headers["allow"]) == (405, "POST")
    assert listener.send("GET", "/sse", headers={"accept": "text/event-stream"}).status == 404


async def test_a_version_that_no_session_has_is_400_with_any_method() -> None:
    listener = FakeListener()
    session, _ = listener.open()
    unknown = {"mcp_protocol_version": "unknown"}
    assert listener.get(session, **unknown).status == 400
    assert listener.delete(session, **{"mcp-protocol-version": "unknown"}).status == 400
    assert listener.post(request(1), session, **unknown).status == 400
    assert listener.table.statistics().open == 1


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
async def test_a_foreign_host_or_origin_is_refused_in_words(headers: dict[str, str]) -> None:
    listener = FakeListener()
    for method, path in (("POST", "/mcp"), ("GET", "/sse"), ("POST", "/messages"), ("OPTIONS", "/mcp")):
        response = listener.send(method, path, headers=headers)
        assert response.status == 403
        assert "allowed_" in response.json["error"]["message"]
    assert not listener.handler.sessions


async def test_answers_to_a_browser_carry_cors_headers_whatever_their_status() -> None:
    listener = FakeListener()
    origin = "http://localhost:5173"
    for response in (
        listener.post(request(1, "initialize"), origin=origin),
        listener.post(request(1), origin=origin),
        listener.send("PUT", headers={"origin": origin}),
        listener.send("GET", "/nowhere", headers={"origin": origin}),
    ):
        assert response.headers["access-control-allow-origin"] == origin
    session, _ = listener.open()
    assert listener.get(session, origin=origin).headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in listener.post(request(1)).headers


async def test_a_preflight_is_answered_without_authentication() -> None:
    def nobody(request: Request) -> Refusal:
        return Refusal(401, "who are you?")

    listener = FakeListener(authenticate=nobody)
    headers = {
        "origin": "http://localhost:1",
        "access-control-request-method": "POST",
        "access-control-request-headers": "mcp-param-city",
    }
    response = listener.send("OPTIONS", headers=headers)
    assert response.status == 204
    assert "mcp-param-city" in response.headers["access-control-allow-headers"]
    assert response.headers["allow"] == "POST, GET, DELETE, OPTIONS"


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        ("application/json; charset=latin-1", False),
        ("application/jsonp", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("", False),
        (None, False),
    ],
)
async def test_json_alone_is_taken(value: str | None, good: bool) -> None:
    assert is_json(value) is good
    response = FakeListener().post(request(1, "initialize"), content_type=value or "")
    assert response.status == (200 if good else 415)


@pytest.mark.parametrize(
    ("value", "both", "events"),
    [
        ("application/json, text/event-stream", True, True),
        ("text/event-stream;q=0.5 , application/json", True, True),
        ("*/*", True, True),
        ("application/*, text/*", True, True),
        ("APPLICATION/JSON,TEXT/EVENT-STREAM", True, True),
        ("application/json", False, False),
        ("text/event-stream", False, True),
        ("application/json, text/event-stream;q=0", False, False),
        ("application/json, text/event-stream; q=0.00", False, False),
        ("text/html", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
async def test_a_client_must_take_both_kinds_of_answers(value: str | None, both: bool, events: bool) -> None:
    assert accepts_both(value) is both
    assert accepts_events(value) is events
    assert FakeListener().post(request(1, "initialize"), accept=value or "").status == (200 if both else 406)
    listener = FakeListener()
    session, _ = listener.open()
    assert listener.get(session, accept=value or "").status == (200 if events else 406)


async def test_with_json_replies_nobody_has_to_take_events() -> None:
    assert (
        FakeListener(json_replies=True).post(request(1, "initialize"), accept="application/json").status
        == 200
    )


# -- who is there -----------------------------------------------------------------------------------------------------


def by_header(request: Request) -> str | Refusal | None:
    given = request.headers.get("authorization")
    if given is None:
        return Refusal(401, "no token", headers=(("www-authenticate", "Bearer"),))
    return None if given == "guest" else given


async def by_header_later(request: Request) -> str | Refusal | None:
    await trio.lowlevel.checkpoint()
    return by_header(request)


@pytest.mark.parametrize("authenticate", [by_header, by_header_later])
async def test_authentication_refuses_or_names_a_principal(
    nursery: trio.Nursery, authenticate: Authenticate
) -> None:
    listener = FakeListener(nursery, authenticate=authenticate)
    listener.handler.on_exchange = plain(answer(1))

    async def settled(response: Any) -> Any:
        await trio.testing.wait_all_tasks_blocked()
        return response

    refused = await settled(listener.post(request(1), era="modern"))
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await settled(listener.post(request(1), era="modern", authorization="ann"))).status == 200
    assert (await settled(listener.post(request(1), era="modern", authorization="guest"))).status == 200
    assert listener.handler.principals == [Principal("ann"), None]
    opened = await settled(listener.post(request(1, "initialize"), authorization="ann"))
    assert listener.handler.sessions[0].principal == Principal("ann")

    session = opened.headers["mcp-session-id"]
    assert (await settled(listener.post(request(1), session))).status == 401
    for thief in ("bob", "guest"):
        assert (await settled(listener.post(request(1), session, authorization=thief))).status == 404
        assert (await settled(listener.get(session, authorization=thief))).status == 404
        assert (await settled(listener.get(session, "some-event-1", authorization=thief))).status == 404
        assert (await settled(listener.delete(session, authorization=thief))).status == 404
    assert not listener.handler.sessions[0].delivered
    assert (await settled(listener.delete(session, authorization="ann"))).status == 200


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_a_stopping_server_takes_no_new_work_but_lets_old_work_end() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    call = listener.post(request(1), session)
    engine.outlet_of(1).post(question("q", about=1))
    standalone = listener.get(session)
    listener.handler.stopping.set()
    listener.endpoint.stop()

    assert standalone.ended
    assert not call.ended
    for response in (
        listener.post(request(2), session),
        listener.post(request(2, "initialize")),
        listener.post(request(2), era="modern"),
        listener.get(session),
        listener.send("GET", "/sse", headers={"accept": "text/event-stream"}),
    ):
        assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert listener.post({"jsonrpc": "2.0", "id": "q", "result": {}}, session).status == 202
    engine.outlet_of(1).post(answer(1))
    assert call.ended
    assert call.messages[-1]["result"] == "done"


async def test_state_can_be_looked_at() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    listener.post(request(1), session)
    listener.get(session)
    assert repr(listener.endpoint) == (
        "<Endpoint /mcp, /sse, /messages: <SessionTable 1/10> <HttpSseChannels: 0 open> "
        "<OpenSseResponses: 1, a comment every 15 s of silence>>"
    )
    assert repr(engine.outlet) == "<StandaloneStream attached>"
    assert repr(engine.outlet_of(1)) == "<CallStream waits>"
    statistics = listener.table.statistics()
    assert (statistics.open, statistics.opened, statistics.calls) == (1, 1, 1)
