"""What becomes of a POST that is let in: exchanges of the modern era, sessions of the legacy one."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.principal import Principal
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
