"""Streams of a session: which message goes where, and how a client that lost one gets the exact rest of it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.transports.http.fakes import FakeListener, answer, notification, numbers, question, request, resume

# -- one POST ---------------------------------------------------------------------------------------------------------


async def test_an_answer_alone_is_json() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    response = listener.post(request(1), session)
    assert response.status is None
    engine.outlet_of(1).post(answer(1))
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.json["result"] == "done"
    assert listener.table.statistics().calls == 0


async def test_anything_before_the_answer_makes_a_stream_that_ends_with_it() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    response = listener.post(request(1), session)
    outlet = engine.outlet_of(1)
    assert outlet.send_nowait(notification("0", about=1))
    await outlet.send(question("q", about=1))
    assert not response.ended
    outlet.post(answer(1))
    assert response.ended
    assert [message.get("method", "answer") for message in response.messages] == ["0", "ping", "answer"]
    # The first event tells an id before anything happened; no id comes twice.
    assert response.events[0][1] is None
    assert len(set(response.ids)) == len(response.events) == 4
    assert len(listener.open_streams) == 0


async def test_an_older_client_is_told_no_event_without_data() -> None:
    listener = FakeListener()
    session, engine = listener.open(resumes=False)
    response, standalone = listener.post(request(1), session), listener.get(session)
    engine.outlet_of(1).post(notification())
    engine.outlet_of(1).close_stream()
    assert not response.ended
    engine.outlet_of(1).post(answer(1))
    engine.outlet.post(notification())
    assert [data is None for _, data in response.events + standalone.events] == [False] * 3
    assert len(response.ids + standalone.ids) == 3


async def test_without_a_store_there_are_no_ids() -> None:
    listener = FakeListener(store=None)
    session, engine = listener.open()
    response = listener.post(request(1), session)
    engine.outlet_of(1).post(notification())
    engine.outlet_of(1).close_stream()
    engine.outlet_of(1).post(answer(1))
    assert response.ids == []
    assert len(response.messages) == 2


async def test_a_batch_is_one_answer() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    batch = [request(1), request(2)]
    response = listener.post(batch, session)
    whole = answer(1)
    whole.data = b"[" + answer(1).data + b"," + answer(2).data + b"]"
    engine.delivered[0][1].post(whole)
    assert [each["id"] for each in response.json] == [1, 2]


@pytest.mark.parametrize("said", [False, True])
async def test_a_call_that_was_cancelled_by_message_ends_its_response(said: bool) -> None:
    listener = FakeListener()
    session, engine = listener.open()
    response = listener.post(request(1), session)
    if said:
        engine.outlet_of(1).post(notification())
    engine.outlet_of(1).settle()
    assert response.ended
    assert response.status == (200 if said else 202)
    assert listener.table.statistics().calls == 0


async def test_no_message_of_a_call_gets_into_another_stream() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    responses = [listener.post(request(id), session) for id in range(3)]
    standalone = listener.get(session)
    for number in range(9):
        engine.outlet_of(number % 3).post(notification(str(number)))
    engine.outlet.post(notification("9"))
    assert [numbers(response) for response in responses] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert numbers(standalone) == [9]


async def test_with_json_replies_all_but_the_answer_goes_to_the_standalone_stream() -> None:
    listener = FakeListener(json_replies=True)
    session, engine = listener.open()
    response, standalone = listener.post(request(1), session), listener.get(session)
    outlet = engine.outlet_of(1)
    assert outlet.send_nowait(notification("0", about=1))
    await outlet.send(notification("1", about=1))
    outlet.post(question("q", about=1))
    outlet.close_stream()
    assert response.status is None
    await outlet.send(answer(1))
    assert response.json["result"] == "done"
    assert [message["method"] for message in standalone.messages] == ["0", "1", "ping"]
    standalone.leave()
    second = listener.post(request(2), session)
    with pytest.raises(trio.BrokenResourceError):
        engine.outlet_of(2).post(question("q", about=2))
    assert engine.outlet_of(2).send_nowait(answer(2))
    assert second.status == 200


async def test_a_slow_reader_holds_its_own_call_only(nursery: trio.Nursery) -> None:
    listener = FakeListener()
    session, engine = listener.open()
    slow, quick = listener.post(request(1), session), listener.post(request(2), session)
    engine.outlet_of(1).post(notification("0"))
    slow.full = True
    assert not engine.outlet_of(1).send_nowait(notification("lost"))
    nursery.start_soon(engine.outlet_of(1).send, notification("1"))
    await trio.testing.wait_all_tasks_blocked()
    await engine.outlet_of(2).send(notification("2"))
    assert (numbers(slow), numbers(quick)) == ([0], [2])
    slow.make_room()
    await trio.testing.wait_all_tasks_blocked()
    assert numbers(slow) == [0, 1]


async def test_a_reader_that_stopped_for_good_is_dropped_and_the_call_goes_on(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    slow = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    slow.full = True
    nursery.start_soon(engine.outlet_of(1).send, notification("1"))
    await trio.testing.wait_all_tasks_blocked()
    slow.leave()  # what the connection does when nothing was taken for too long
    await trio.testing.wait_all_tasks_blocked()
    engine.outlet_of(1).post(answer(1))
    rest = await resume(listener, session, slow.ids[-1])
    assert numbers(rest) == [1]
    assert rest.ended


# -- silence ----------------------------------------------------------------------------------------------------------


async def test_a_silent_stream_gets_comments_and_a_busy_one_none(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(nursery, keepalive=15, idle=10_000)
    nursery.start_soon(listener.open_streams.keep_alive)
    session, engine = listener.open()
    silent, busy, full = (
        listener.get(session),
        listener.post(request(1), session),
        listener.post(request(2), session),
    )
    engine.outlet_of(2).post(notification("0"))
    full.full = True
    for number in range(60):
        engine.outlet_of(1).post(notification(str(number)))
        await trio.sleep(5)
    assert 300 / 15 - 1 <= silent.chunks.count(b":\n\n") <= 300 / 15
    assert b":\n\n" not in busy.chunks
    assert b":\n\n" not in full.chunks
    silent.leave()
    assert len(listener.open_streams) == 2


async def test_a_comment_finds_out_that_a_peer_has_gone(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    listener = FakeListener(nursery, keepalive=15)
    nursery.start_soon(listener.open_streams.keep_alive)
    session, _ = listener.open()
    stream = listener.get(session)
    stream.gone = True  # without having told: `write` is the first to notice
    await trio.sleep(40)
    assert len(listener.open_streams) == 0
