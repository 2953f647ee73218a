"""The status tables of protocol §6.3 and §6.4, row by row, and who is let in."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_transports.http.server.accept import is_json, takes_both, takes_events
from mcp_transports.http.server.endpoint import Authenticate
from mcp_transports.http.server.replies import Refusal
from mcp_transports.http.server.request import Request
from tests.transports.http.fakes import INITIALIZED, Door, answer, error, notification, question, request


def plain(frame: Frame) -> Any:
    async def exchange(message: Any, outlet: Outlet) -> None:
        await outlet.send(frame)

    return exchange


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
    response = Door().send(method, path)
    assert (response.status, response.headers["allow"]) == (405, allow)
    assert response.json["error"]["code"] == -32000
    assert "id" not in response.json


async def test_other_paths_lead_nowhere() -> None:
    for path in ("/", "/mcp/", "/MCP", "/.well-known/x", "/mcp%20", "*"):
        assert Door().send("POST", path).status == 404


async def test_a_server_without_sessions_has_neither_get_nor_delete() -> None:
    door = Door(sessions=False)
    for response in (door.get("x"), door.delete("x")):
        assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_a_server_without_the_legacy_era_has_neither_and_no_pipes() -> None:
    door = Door(legacy=False)
    for response in (door.get("x"), door.delete("x")):
        assert (response.status, response.headers["allow"]) == (405, "POST")
    assert door.send("GET", "/sse", headers={"accept": "text/event-stream"}).status == 404


async def test_a_version_that_no_session_has_is_400_with_any_method() -> None:
    door = Door()
    session, _ = door.open()
    unknown = {"mcp_protocol_version": "unknown"}
    assert door.get(session, **unknown).status == 400
    assert door.delete(session, **{"mcp-protocol-version": "unknown"}).status == 400
    assert door.post(request(1), session, **unknown).status == 400
    assert door.table.statistics().open == 1


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
async def test_a_foreign_host_or_origin_is_refused_in_words(headers: dict[str, str]) -> None:
    door = Door()
    for method, path in (("POST", "/mcp"), ("GET", "/sse"), ("POST", "/messages"), ("OPTIONS", "/mcp")):
        response = door.send(method, path, headers=headers)
        assert response.status == 403
        assert "allowed_" in response.json["error"]["message"]
    assert not door.handler.sessions


async def test_answers_to_a_browser_carry_cors_headers_whatever_their_status() -> None:
    door = Door()
    origin = "http://localhost:5173"
    for response in (
        door.post(request(1, "initialize"), origin=origin),
        door.post(request(1), origin=origin),
        door.send("PUT", headers={"origin": origin}),
        door.send("GET", "/nowhere", headers={"origin": origin}),
    ):
        assert response.headers["access-control-allow-origin"] == origin
    session, _ = door.open()
    assert door.get(session, origin=origin).headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in door.post(request(1)).headers


async def test_a_preflight_is_answered_without_authentication() -> None:
    def nobody(request: Request) -> Refusal:
        return Refusal(401, "who are you?")

    door = Door(authenticate=nobody)
    headers = {
        "origin": "http://localhost:1",
        "access-control-request-method": "POST",
        "access-control-request-headers": "mcp-param-city",
    }
    response = door.send("OPTIONS", headers=headers)
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
    response = Door().post(request(1, "initialize"), content_type=value or "")
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
    assert takes_both(value) is both
    assert takes_events(value) is events
    assert Door().post(request(1, "initialize"), accept=value or "").status == (200 if both else 406)
    door = Door()
    session, _ = door.open()
    assert door.get(session, accept=value or "").status == (200 if events else 406)


async def test_with_json_replies_nobody_has_to_take_events() -> None:
    assert Door(json_replies=True).post(request(1, "initialize"), accept="application/json").status == 200


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
    door = Door(nursery)
    door.handler.on_exchange = plain(frame)
    response = door.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert (response.status, response.body) == (status, frame.data)
    assert response.headers["content-type"] == "application/json"
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_a_modern_request_that_says_something_first_becomes_a_stream(nursery: trio.Nursery) -> None:
    door = Door(nursery)

    async def exchange(message: Any, outlet: Outlet) -> None:
        assert outlet.send_nowait(notification("one"))
        await outlet.send(notification("two"))
        outlet.close_stream()
        outlet.post(error(1, -32601))

    door.handler.on_exchange = exchange
    response = door.post(request(1), era="modern")
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
    assert len(door.open_streams) == 0


async def test_a_modern_notification_is_accepted_or_refused(nursery: trio.Nursery) -> None:
    door = Door(nursery)

    async def nothing(message: Any, outlet: Outlet) -> None:
        await trio.lowlevel.checkpoint()

    door.handler.on_exchange = nothing
    accepted = door.post(INITIALIZED, era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert (accepted.status, accepted.body) == (202, b"")
    door.handler.on_exchange = plain(error(None, -32022))
    refused = door.post(INITIALIZED, era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert refused.status == 400


async def test_what_cannot_be_read_is_400_in_both_eras() -> None:
    door = Door()
    session, _ = door.open()
    for response in (door.post(b"{"), door.post(b"{", era="modern"), door.post(b"{", session)):
        assert (response.status, response.json["error"]["code"]) == (400, -32700)


async def test_a_modern_client_that_leaves_cancels_its_call(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    cancelled = trio.Event()

    async def exchange(message: Any, outlet: Outlet) -> None:
        await outlet.send(notification())
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    door.handler.on_exchange = exchange
    response = door.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert len(door.open_streams) == 1
    response.leave()
    await cancelled.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert len(door.open_streams) == 0
    assert not response.ended


async def test_a_modern_client_that_reads_slowly_makes_its_call_wait(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    sent: list[int] = []

    async def exchange(message: Any, outlet: Outlet) -> None:
        for number in range(3):
            await outlet.send(notification(str(number)))
            sent.append(number)
            response.full = True
        assert not outlet.send_nowait(notification("no room"))
        outlet.post(answer(1))

    door.handler.on_exchange = exchange
    response = door.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert sent == [0]
    for _ in range(2):
        response.make_room()
        await trio.testing.wait_all_tasks_blocked()
    assert sent == [0, 1, 2]
    assert len(response.messages) == 4
    assert response.ended


async def test_what_breaks_in_an_exchange_is_500_without_a_word_about_it(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(nursery)

    async def before(message: Any, outlet: Outlet) -> None:
        raise RuntimeError("secret")

    async def after(message: Any, outlet: Outlet) -> None:
        await outlet.send(notification())
        raise RuntimeError("secret")

    with caplog.at_level(logging.ERROR):
        door.handler.on_exchange = before
        first = door.post(request(1), era="modern")
        await trio.testing.wait_all_tasks_blocked()
        door.handler.on_exchange = after
        second = door.post(request(1), era="modern")
        await trio.testing.wait_all_tasks_blocked()
    assert first.status == 500
    assert b"secret" not in first.body
    assert second.aborted
    assert "secret" in caplog.text


async def test_a_message_that_is_too_long_is_the_senders_mistake(nursery: trio.Nursery) -> None:
    door = Door(nursery, longest=100)

    async def exchange(message: Any, outlet: Outlet) -> None:
        assert outlet.longest == 100
        with pytest.raises(LocalProtocolError, match="limit is 100"):
            outlet.post(notification("x" * 100))
        outlet.post(answer(1))

    door.handler.on_exchange = exchange
    response = door.post(request(1), era="modern")
    await trio.testing.wait_all_tasks_blocked()
    assert response.status == 200


# -- the legacy era ---------------------------------------------------------------------------------------------------


async def test_legacy_requests_need_a_session_that_exists() -> None:
    door = Door()
    missing = door.post(request(1))
    assert missing.status == 400
    assert "mcp-session-id" in missing.json["error"]["message"]
    assert door.post(INITIALIZED).status == 400
    assert door.get().status == 400
    assert door.delete().status == 400
    for response in (
        door.post(request(1), "unknown"),
        door.post(INITIALIZED, "unknown"),
        door.post(request(1, "initialize"), "unknown"),
        door.get("unknown"),
        door.delete("unknown"),
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
    door = Door()
    session, engine = door.open()
    response = door.post(request(1), session)
    engine.outlet_of(1).post(frame)
    assert (response.status, response.body) == (status, frame.data)


async def test_what_is_owed_no_answer_is_accepted() -> None:
    door = Door()
    session, engine = door.open()
    for message in (INITIALIZED, {"jsonrpc": "2.0", "id": 1, "result": {}}, [INITIALIZED, INITIALIZED]):
        response = door.post(message, session)
        assert (response.status, response.body) == (202, b"")
        assert engine.delivered[-1][0] == message


async def test_without_sessions_a_legacy_request_stands_alone(nursery: trio.Nursery) -> None:
    door = Door(nursery, sessions=False)
    refused = []

    async def exchange(message: Any, outlet: Outlet) -> None:
        try:
            outlet.post(question("q"))
        except trio.BrokenResourceError as no_way_back:
            refused.append(no_way_back)
        outlet.post(answer(1))

    door.handler.on_exchange = exchange
    for message in (request(1, "initialize"), request(1)):
        response = door.post(message)
        await trio.testing.wait_all_tasks_blocked()
        assert response.status == 200
        assert "mcp-session-id" not in response.headers
    assert len(refused) == 2
    assert not door.handler.sessions
    # Whoever names a session had one, elsewhere or before: it has to begin anew.
    assert door.post(request(1), "old").status == 404


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
    door = Door(nursery, authenticate=authenticate)
    door.handler.on_exchange = plain(answer(1))

    async def settled(response: Any) -> Any:
        await trio.testing.wait_all_tasks_blocked()
        return response

    refused = await settled(door.post(request(1), era="modern"))
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await settled(door.post(request(1), era="modern", authorization="ann"))).status == 200
    assert (await settled(door.post(request(1), era="modern", authorization="guest"))).status == 200
    assert door.handler.principals == ["ann", None]
    opened = await settled(door.post(request(1, "initialize"), authorization="ann"))
    assert door.handler.sessions[0].principal == "ann"

    session = opened.headers["mcp-session-id"]
    assert (await settled(door.post(request(1), session))).status == 401
    for thief in ("bob", "guest"):
        assert (await settled(door.post(request(1), session, authorization=thief))).status == 404
        assert (await settled(door.get(session, authorization=thief))).status == 404
        assert (await settled(door.get(session, "some-event-1", authorization=thief))).status == 404
        assert (await settled(door.delete(session, authorization=thief))).status == 404
    assert not door.handler.sessions[0].delivered
    assert (await settled(door.delete(session, authorization="ann"))).status == 200


async def test_what_authentication_raises_is_not_swallowed() -> None:
    def broken(request: Request) -> None:
        raise RuntimeError("the token service is down")

    # The connection makes a 500 of it, without its text, and logs it.
    with pytest.raises(RuntimeError):
        Door(authenticate=broken).post(request(1))


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_a_stopping_server_takes_no_new_work_but_lets_old_work_end() -> None:
    door = Door()
    session, engine = door.open()
    call = door.post(request(1), session)
    engine.outlet_of(1).post(question("q", about=1))
    standalone = door.get(session)
    door.handler.stopping.set()
    door.endpoint.stop()

    assert standalone.ended
    assert not call.ended
    for response in (
        door.post(request(2), session),
        door.post(request(2, "initialize")),
        door.post(request(2), era="modern"),
        door.get(session),
        door.send("GET", "/sse", headers={"accept": "text/event-stream"}),
    ):
        assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert door.post({"jsonrpc": "2.0", "id": "q", "result": {}}, session).status == 202
    engine.outlet_of(1).post(answer(1))
    assert call.ended
    assert call.messages[-1]["result"] == "done"


async def test_state_can_be_looked_at() -> None:
    door = Door()
    session, engine = door.open()
    door.post(request(1), session)
    door.get(session)
    assert repr(door.endpoint) == (
        "<Endpoint /mcp, /sse, /messages: <SessionTable 1/10> <Pipes: 0 open> "
        "<OpenStreams: 1, a comment every 15 s of silence>>"
    )
    assert repr(engine.outlet) == "<StandaloneStream attached>"
    assert repr(engine.outlet_of(1)) == "<CallStream waits>"
    statistics = door.table.statistics()
    assert (statistics.open, statistics.opened, statistics.calls) == (1, 1, 1)
