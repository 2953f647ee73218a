"""The status tables of the specification, row by row, and who is let in."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import Authenticate
from mcp_transports.http.server.responses import Refusal, accepts_both, accepts_events, is_json
from tests.transports.http.fakes import (
    INITIALIZED,
    FakeListener,
    answer,
    error,
    notification,
    plain,
    question,
    request,
)

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
    for path in ("/", "/mcp//", "/MCP", "/.well-known/x", "/mcp%20", "*"):
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
        "<Endpoint /mcp, /mcp/, /sse, /messages: <SessionTable 1/10> <HttpSseChannels: 0 open> "
        "<OpenSseResponses: 1, a comment every 15 s of silence>>"
    )
    assert repr(engine.outlet) == "<StandaloneStream attached>"
    assert repr(engine.outlet_of(1)) == "<CallStream waits>"
    statistics = listener.table.statistics()
    assert (statistics.open, statistics.opened, statistics.calls) == (1, 1, 1)


# -- What becomes of a POST that is let in: exchanges of the modern era, sessions of the legacy one ------

# -- the modern era ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (answer(1), 200),
        (error(1, -32602, refusal=False), 200),
        (error(1, -32603, refusal=False), 200),
        (error(1, -32601), 404),
        (error(1, -32600), 400),
        (error(1, -32602), 400),
        (error(1, -32020), 400),
        (error(1, -32021), 400),
        (error(1, -32022), 400),
        (error(1, 429), 503),
    ],
)
async def test_a_modern_answer_has_the_status_of_its_first_frame(
    nursery: trio.Nursery, frame: Frame, status: int
) -> None:
    listener = FakeListener(nursery)
    listener.handler.on_exchange = plain(frame)
    response = listener.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert (response.status, response.body) == (status, frame.data)
    assert response.headers["content-type"] == "application/json"
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_a_modern_request_that_says_something_first_becomes_a_stream(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)

    async def exchange(message: Any, outlet: Outlet) -> None:
        assert outlet.send_nowait(notification("one"))
        await outlet.send(notification("two"))
        outlet.close_stream()
        outlet.post(error(1, -32601))

    listener.handler.on_exchange = exchange
    response = listener.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert response.status == 200
    assert response.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    assert [message.get("method", "error") for message in response.messages] == ["one", "two", "error"]
    assert response.ids == []
    assert response.ended
    assert len(listener.open_streams) == 0


async def test_a_modern_notification_is_accepted_or_refused(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)

    async def nothing(message: Any, outlet: Outlet) -> None:
        await trio.lowlevel.checkpoint()

    listener.handler.on_exchange = nothing
    accepted = listener.post(INITIALIZED, era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert (accepted.status, accepted.body) == (202, b"")
    listener.handler.on_exchange = plain(error(None, -32022))
    refused = listener.post(INITIALIZED, era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert refused.status == 400


async def test_what_cannot_be_read_is_400_in_both_eras() -> None:
    listener = FakeListener()
    session, _ = listener.open()
    for response in (listener.post(b"{"), listener.post(b"{", era="modern"), listener.post(b"{", session)):
        assert (response.status, response.json["error"]["code"]) == (400, -32700)


async def test_a_modern_client_that_leaves_cancels_its_call(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    cancelled = trio.Event()

    async def exchange(message: Any, outlet: Outlet) -> None:
        await outlet.send(notification())
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    listener.handler.on_exchange = exchange
    response = listener.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert len(listener.open_streams) == 1
    response.leave()
    await cancelled.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert len(listener.open_streams) == 0
    assert not response.ended


async def test_a_modern_client_that_reads_slowly_makes_its_call_wait(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    sent: list[int] = []

    async def exchange(message: Any, outlet: Outlet) -> None:
        for number in range(3):
            await outlet.send(notification(str(number)))
            sent.append(number)
            response.full = True
        assert not outlet.send_nowait(notification("no room"))
        outlet.post(answer(1))

    listener.handler.on_exchange = exchange
    response = listener.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert sent == [0]
    for _ in range(2):
        response.make_room()
        await trio.testing.wait_all_tasks_blocked()
    assert sent == [0, 1, 2]
    assert len(response.messages) == 4
    assert response.ended


async def test_what_breaks_in_an_exchange_is_500_without_a_word_about_it(
    nursery: trio.Nursery, logs: list[MutableMapping[str, Any]]
) -> None:
    listener = FakeListener(nursery)

    def begin(
        arrival: Any, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        if arrival.message["id"] == 2:
            outlet.post(notification())
        raise RuntimeError("secret")

    listener.handler.begin = begin  # type: ignore[method-assign, assignment]
    first = listener.post(request(1), era="modern")
    second = listener.post(request(2), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert first.status == 500
    assert b"secret" not in first.body
    assert second.aborted
    assert ["secret" in str(each["exc_info"]) for each in logs] == [True, True]
    assert len(listener.open_streams) == 0


async def test_a_message_that_is_too_long_is_the_senders_mistake(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery, longest=100)

    async def exchange(message: Any, outlet: Outlet) -> None:
        assert outlet.longest == 100
        with pytest.raises(LocalProtocolError, match="limit is 100"):
            outlet.post(notification("x" * 100))
        outlet.post(answer(1))

    listener.handler.on_exchange = exchange
    response = listener.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert response.status == 200


# -- the legacy era ---------------------------------------------------------------------------------------------------


async def test_legacy_requests_need_a_session_that_exists() -> None:
    listener = FakeListener()
    missing = listener.post(request(1))
    assert missing.status == 400
    assert "mcp-session-id" in missing.json["error"]["message"]
    assert listener.post(INITIALIZED).status == 400
    assert listener.get().status == 400
    assert listener.delete().status == 400
    for response in (
        listener.post(request(1), "unknown"),
        listener.post(INITIALIZED, "unknown"),
        listener.post(request(1, "initialize"), "unknown"),
        listener.get("unknown"),
        listener.delete("unknown"),
    ):
        assert (response.status, response.json["error"]["code"]) == (404, -32001)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (answer(1), 200),
        (error(1, -32601, refusal=False), 200),
        (error(1, -32601), 200),
        (error(1, 429), 200),
        (error(1, -32602), 200),
        (error(1, -32600), 400),
        (error(1, -32700), 400),
    ],
)
async def test_legacy_answers_are_200_but_for_what_was_no_request(frame: Frame, status: int) -> None:
    listener = FakeListener()
    session, engine = listener.open()
    response = listener.post(request(1), session)
    engine.outlet_of(1).post(frame)
    assert (response.status, response.body) == (status, frame.data)


async def test_what_is_owed_no_answer_is_accepted() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    for message in (INITIALIZED, {"jsonrpc": "2.0", "id": 1, "result": {}}, [INITIALIZED, INITIALIZED]):
        response = listener.post(message, session)
        assert (response.status, response.body) == (202, b"")
        assert engine.delivered[-1][0] == message


async def test_without_sessions_a_legacy_request_stands_alone(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery, sessions=False)
    refused = []

    async def exchange(message: Any, outlet: Outlet) -> None:
        try:
            outlet.post(question("q"))
        except trio.BrokenResourceError as no_way_back:
            refused.append(no_way_back)
        outlet.post(answer(1))

    listener.handler.on_exchange = exchange
    for message in (request(1, "initialize"), request(1)):
        response = listener.post(message)
        await trio.testing.wait_all_tasks_blocked()
        assert response.status == 200
        assert "mcp-session-id" not in response.headers
    assert len(refused) == 2
    assert not listener.handler.sessions
    # Whoever names a session had one, elsewhere or before: it has to begin anew.
    assert listener.post(request(1), "old").status == 404
