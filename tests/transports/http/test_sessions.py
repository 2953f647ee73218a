"""How legacy sessions begin and end, and to whom they belong."""

from __future__ import annotations

import string

import pytest
import trio
import trio.testing

from tests.transports.http.fakes import INITIALIZED, FakeListener, answer, notification, question, request


async def test_initialize_makes_a_session_with_an_id_that_nobody_guesses() -> None:
    listener = FakeListener()
    ids = {listener.open()[0] for _ in range(5)}
    assert len(ids) == 5
    for id in ids:
        assert len(id) >= 32
        assert set(id) <= set(string.ascii_letters + string.digits + "-_")
    response = listener.post(request(7, "initialize"))
    assert response.json["id"] == 7
    assert response.headers["content-type"] == "application/json"


async def test_a_refused_initialize_leaves_nothing_behind() -> None:
    listener = FakeListener()
    for params, status in (({"refuse": True}, 200), ({"hold": True}, 500)):
        response = listener.post(request(1, "initialize", **params))
        assert response.status == status
        assert "mcp-session-id" not in response.headers
        assert listener.handler.sessions[-1].closed
    assert listener.table.statistics().open == 0
    assert listener.table.statistics().opened == 0


async def test_over_the_cap_sessions_are_refused_until_one_ends() -> None:
    listener = FakeListener(max_sessions=2)
    first, _ = listener.open()
    listener.open()
    refused = listener.post(request(1, "initialize"))
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert len(listener.handler.sessions) == 2
    assert listener.delete(first).status == 200
    assert listener.post(request(1, "initialize")).status == 200
    assert listener.table.statistics().refused == 1


async def test_delete_ends_a_session_and_everything_that_waits_for_it() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    waiting, streaming = listener.post(request(1), session), listener.post(request(2), session)
    engine.outlet_of(2).post(notification())
    standalone = listener.get(session)
    late = engine.outlet_of(2)

    assert listener.delete(session).status == 200
    assert engine.closed
    # As a call that was cancelled: the official Python client fails by an answer that nobody waits for.
    assert (waiting.status, waiting.body) == (202, b"")
    assert streaming.ended
    assert standalone.ended
    assert listener.delete(session).status == 404
    assert listener.post(INITIALIZED, session).status == 404
    assert len(listener.open_streams) == 0
    assert listener.store is not None
    # A handler that is still unwinding makes the store remember nothing.
    late.post(notification())
    late.settle()
    assert repr(listener.store) == "<MemoryEventLog: 0 events of 0 sessions, 0 bytes>"


async def test_a_session_in_which_something_broke_is_over() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    assert listener.post({"crash": 1}, session).status == 500
    assert engine.closed
    assert listener.post(request(1), session).status == 404


async def test_closing_the_endpoint_ends_all_sessions() -> None:
    listener = FakeListener()
    opened = [listener.open() for _ in range(3)]
    listener.endpoint.close()
    listener.endpoint.close()
    assert all(engine.closed for _, engine in opened)
    assert listener.table.statistics().open == 0


async def test_an_idle_session_expires_in_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(idle=100)
    nursery.start_soon(listener.table.expire)
    await trio.sleep(10)
    session, engine = listener.open()
    await trio.sleep(90)
    assert listener.post(INITIALIZED, session).status == 202
    await trio.sleep(99)
    assert not engine.closed
    await trio.sleep(27)
    assert engine.closed
    assert listener.post(INITIALIZED, session).status == 404
    assert listener.table.statistics().expired == 1


async def test_a_session_in_use_never_expires(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(idle=100)
    nursery.start_soon(listener.table.expire)
    opened = [listener.open() for _ in range(4)]
    (busy, busy_engine), (posting, posting_engine), (listening, _), _ = opened
    busy_engine.busy = True
    call = listener.post(request(1), posting)
    stream = listener.get(listening)

    await trio.sleep(1000)
    assert [engine.closed for _, engine in opened] == [False, False, False, True]

    # The time begins when the last of it is over.
    busy_engine.busy = False
    posting_engine.outlet_of(1).post(answer(1))
    assert call.ended
    stream.leave()
    await trio.sleep(99)
    assert [engine.closed for _, engine in opened] == [False, False, False, True]
    await trio.sleep(60)
    assert all(engine.closed for _, engine in opened)
    assert busy != listening


async def test_a_call_whose_client_left_keeps_the_session_only_while_it_runs(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(idle=100)
    nursery.start_soon(listener.table.expire)
    session, engine = listener.open()
    engine.busy = True
    call = listener.post(request(1), session)
    engine.outlet_of(1).post(notification())
    call.leave()
    await trio.sleep(500)
    assert not engine.closed
    engine.outlet_of(1).post(answer(1))
    engine.busy = False
    await trio.sleep(150)
    assert engine.closed


async def test_two_requests_with_one_id_each_get_their_own_answer() -> None:
    listener = FakeListener()
    one, engine_one = listener.open()
    other, engine_other = listener.open()
    responses = [
        listener.post(request(1), one),
        listener.post(request(1), one),
        listener.post(request(1), other),
    ]
    outlets = [outlet for _, outlet in engine_one.delivered + engine_other.delivered]
    for number in (2, 0, 1):
        outlets[number].post(answer(1, f"for {number}"))
    assert [response.json["result"] for response in responses] == ["for 0", "for 1", "for 2"]


async def test_what_belongs_to_no_call_flows_while_a_get_is_open() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    engine.outlet.post(notification("before"))
    with pytest.raises(trio.BrokenResourceError):
        engine.outlet.post(question("q"))
    stream = listener.get(session)
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    second = listener.get(session)
    assert (second.status, second.json["error"]["code"]) == (409, -32000)
    engine.outlet.post(notification("during"))
    engine.outlet.post(question("q"))
    assert [message["method"] for message in stream.messages] == ["during", "ping"]
    stream.leave()
    assert len(listener.open_streams) == 0
    with pytest.raises(trio.BrokenResourceError):
        engine.outlet.post(question("q"))
    assert listener.get(session).status == 200


@pytest.mark.parametrize("attempts", [20, 200])
async def test_the_sessions_of_one_address_leave_room_for_those_of_others(attempts: int) -> None:
    listener = FakeListener(max_sessions=10, max_sessions_per_peer=None)
    listener.peer = "10.0.0.1:1"
    answers = [listener.post(request(1, "initialize")) for _ in range(attempts)]
    assert [answer.status for answer in answers] == [200] * 5 + [503] * (attempts - 5)
    assert "principal or address" in answers[-1].json["error"]["message"]
    listener.peer = "10.0.0.2:1"
    assert listener.post(request(1, "initialize")).status == 200
    statistics = listener.table.statistics()
    assert (statistics.open, statistics.refused, statistics.by_peer.largest) == (6, attempts - 5, 5)
    # A session that ends makes room for another one of the same address.
    listener.table.close(next(iter(listener.table._sessions.values())))
    listener.peer = "10.0.0.1:2"
    assert listener.post(request(1, "initialize")).status == 200
    listener.table.close_all()
    assert listener.table.statistics().by_peer.holders == 0


async def test_the_sessions_of_one_principal_are_counted_together() -> None:
    listener = FakeListener(
        max_sessions=10, max_sessions_per_peer=None, authenticate=lambda request: request.headers["x-name"]
    )

    def begin(name: str, number: int) -> int:
        listener.peer = f"10.0.0.{number}:1"
        return listener.post(request(1, "initialize"), x_name=name).status

    assert [begin("alice", number) for number in range(7)] == [200] * 5 + [503] * 2
    assert begin("bob", 1) == 200
