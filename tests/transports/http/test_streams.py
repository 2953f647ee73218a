"""Streams of a session: which message goes where, and how a client that lost one gets the exact rest of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_transports.http.server.events import MemoryEventStore, Replay
from tests.transports.http.fakes import Door, FakeResponse, answer, notification, question, request


def numbers(response: FakeResponse) -> list[int]:
    return [int(message["method"]) for message in response.messages if "method" in message]


# -- one POST ---------------------------------------------------------------------------------------------------------


async def test_an_answer_alone_is_json() -> None:
    door = Door()
    session, engine = door.open()
    response = door.post(request(1), session)
    assert response.status is None
    engine.outlet_of(1).post(answer(1))
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.json["result"] == "done"
    assert door.table.statistics().calls == 0


async def test_anything_before_the_answer_makes_a_stream_that_ends_with_it() -> None:
    door = Door()
    session, engine = door.open()
    response = door.post(request(1), session)
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
    assert len(door.open_streams) == 0


async def test_an_older_client_is_told_no_event_without_data() -> None:
    door = Door()
    session, engine = door.open(resumes=False)
    response, standalone = door.post(request(1), session), door.get(session)
    engine.outlet_of(1).post(notification())
    engine.outlet_of(1).close_stream()
    assert not response.ended
    engine.outlet_of(1).post(answer(1))
    engine.outlet.post(notification())
    assert [data is None for _, data in response.events + standalone.events] == [False] * 3
    assert len(response.ids + standalone.ids) == 3


async def test_without_a_store_there_are_no_ids() -> None:
    door = Door(store=None)
    session, engine = door.open()
    response = door.post(request(1), session)
    engine.outlet_of(1).post(notification())
    engine.outlet_of(1).close_stream()
    engine.outlet_of(1).post(answer(1))
    assert response.ids == []
    assert len(response.messages) == 2


async def test_a_batch_is_one_answer() -> None:
    door = Door()
    session, engine = door.open()
    batch = [request(1), request(2)]
    response = door.post(batch, session)
    whole = answer(1)
    whole.data = b"[" + answer(1).data + b"," + answer(2).data + b"]"
    engine.delivered[0][1].post(whole)
    assert [each["id"] for each in response.json] == [1, 2]


@pytest.mark.parametrize("said", [False, True])
async def test_a_call_that_was_cancelled_by_message_ends_its_response(said: bool) -> None:
    door = Door()
    session, engine = door.open()
    response = door.post(request(1), session)
    if said:
        engine.outlet_of(1).post(notification())
    engine.outlet_of(1).settle()
    assert response.ended
    assert response.status == (200 if said else 202)
    assert door.table.statistics().calls == 0


async def test_no_message_of_a_call_gets_into_another_stream() -> None:
    door = Door()
    session, engine = door.open()
    responses = [door.post(request(id), session) for id in range(3)]
    standalone = door.get(session)
    for number in range(9):
        engine.outlet_of(number % 3).post(notification(str(number)))
    engine.outlet.post(notification("9"))
    assert [numbers(response) for response in responses] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert numbers(standalone) == [9]


async def test_with_json_replies_all_but_the_answer_goes_to_the_standalone_stream() -> None:
    door = Door(json_replies=True)
    session, engine = door.open()
    response, standalone = door.post(request(1), session), door.get(session)
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
    second = door.post(request(2), session)
    with pytest.raises(trio.BrokenResourceError):
        engine.outlet_of(2).post(question("q", about=2))
    assert engine.outlet_of(2).send_nowait(answer(2))
    assert second.status == 200


async def test_a_slow_reader_holds_its_own_call_only(nursery: trio.Nursery) -> None:
    door = Door()
    session, engine = door.open()
    slow, quick = door.post(request(1), session), door.post(request(2), session)
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
    door = Door(nursery)
    session, engine = door.open()
    slow = door.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    slow.full = True
    nursery.start_soon(engine.outlet_of(1).send, notification("1"))
    await trio.testing.wait_all_tasks_blocked()
    slow.leave()  # what the connection does when nothing was taken for too long
    await trio.testing.wait_all_tasks_blocked()
    engine.outlet_of(1).post(answer(1))
    rest = await resume(door, session, slow.ids[-1])
    assert numbers(rest) == [1]
    assert rest.ended


# -- coming back ------------------------------------------------------------------------------------------------------


async def resume(door: Door, session: str, last_event_id: str) -> FakeResponse:
    response = door.get(session, last_event_id)
    await trio.testing.wait_all_tasks_blocked()
    return response


async def test_a_client_that_lost_a_call_gets_the_rest_and_what_is_to_come(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    first = door.post(request(1), session)
    outlet = engine.outlet_of(1)
    outlet.post(notification("0"))
    outlet.post(notification("1"))
    first.leave()
    outlet.post(notification("2"))
    outlet.post(question("q", about=1))
    second = await resume(door, session, first.ids[1])
    assert [message["method"] for message in second.messages] == ["1", "2", "ping"]
    outlet.post(notification("3"))
    outlet.post(answer(1))
    assert [message.get("method", "answer") for message in second.messages][3:] == ["3", "answer"]
    assert second.ended
    # The whole is over, but may still be asked for.
    third = await resume(door, session, second.ids[-2])
    assert [message["result"] for message in third.messages] == ["done"]
    assert third.ended
    nothing = await resume(door, session, second.ids[-1])
    assert (nothing.status, nothing.messages, nothing.ended) == (200, [], True)
    assert len(door.open_streams) == 0


async def test_the_newest_consumer_wins(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    old = door.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    new = await resume(door, session, old.ids[0])
    assert old.ended
    engine.outlet_of(1).post(notification("1"))
    assert (numbers(old), numbers(new)) == ([0], [0, 1])
    # Its leaving is not that of the new one.
    old.leave()
    engine.outlet_of(1).post(answer(1))
    assert new.messages[-1]["result"] == "done"


async def test_who_comes_back_need_not_wait_for_the_response_that_is_stuck(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    stuck = door.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    stuck.full = True
    nursery.start_soon(engine.outlet_of(1).send, notification("1"))
    await trio.testing.wait_all_tasks_blocked()
    new = await resume(door, session, stuck.ids[0])
    assert stuck.aborted
    # The sender finds out about the old response after the new one has taken its place.
    assert numbers(new) == [0, 1]
    engine.outlet_of(1).post(answer(1))
    assert new.messages[-1]["result"] == "done"


async def test_the_standalone_stream_is_resumed_too(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    first = door.get(session)
    assert first.events == [(first.ids[0], None)]
    engine.outlet.post(notification("0"))
    first.leave()
    engine.outlet.post(notification("1"))
    second = await resume(door, session, first.ids[0])
    engine.outlet.post(notification("2"))
    assert numbers(second) == [0, 1, 2]
    assert not second.ended
    assert door.get(session).status == 409


async def test_a_stream_can_be_closed_under_a_client_that_comes_back(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    first = door.post(request(1), session)
    outlet = engine.outlet_of(1)
    outlet.close_stream()
    assert first.ended
    assert b"".join(first.chunks).endswith(b"retry: 700\n\n")
    assert len(first.ids) == 1
    outlet.close_stream()
    outlet.post(notification("0"))
    second = await resume(door, session, first.ids[0])
    outlet.close_stream()
    assert second.ended
    outlet.post(answer(1))
    third = await resume(door, session, second.ids[-1])
    assert (numbers(second), third.messages[0]["result"], third.ended) == ([0], "done", True)


async def test_what_nobody_can_come_back_for_is_not_kept() -> None:
    door = Door()
    session, engine = door.open()
    response = door.post(request(1), session)
    response.leave()
    outlet = engine.outlet_of(1)
    outlet.post(notification("0"))
    with pytest.raises(trio.BrokenResourceError):
        outlet.post(question("q", about=1))
    outlet.close_stream()
    outlet.post(answer(1))
    engine.outlet.post(notification("1"))
    assert isinstance(door.store, MemoryEventStore)
    assert door.store.statistics().events == 0
    assert door.table.statistics().calls == 0
    assert not response.ended


async def test_a_question_waits_for_a_client_that_can_come_back(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    session, engine = door.open()
    first = door.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    first.leave()
    engine.outlet_of(1).post(question("q", about=1))
    second = await resume(door, session, first.ids[-1])
    assert [message["id"] for message in second.messages] == ["q"]


@pytest.mark.parametrize("id", ["x", "0-0-0", "é", "a" * 4000, "1"])
async def test_an_unknown_event_is_404_in_words(nursery: trio.Nursery, id: str) -> None:
    door = Door(nursery)
    session, _ = door.open()
    door.get(session)
    response = await resume(door, session, id)
    assert response.status == 404
    assert "last-event-id" in response.json["error"]["message"]


async def test_events_of_another_session_are_unknown(nursery: trio.Nursery) -> None:
    door = Door(nursery)
    mine, engine = door.open()
    other, _ = door.open()
    response = door.post(request(1), mine)
    engine.outlet_of(1).post(notification("0"))
    door.get(other)
    for id in response.ids:
        assert (await resume(door, other, id)).status == 404
        assert (await resume(door, mine, id)).status == 200


async def test_a_gap_is_not_replayed_over(nursery: trio.Nursery) -> None:
    door = Door(nursery, store=MemoryEventStore(max_events=3))
    session, engine = door.open()
    response = door.post(request(1), session)
    for number in range(6):
        engine.outlet_of(1).post(notification(str(number)))
    response.leave()
    assert (await resume(door, session, response.ids[1])).status == 404
    kept = await resume(door, session, response.ids[-2])
    assert numbers(kept) == [5]


class SlowStore(MemoryEventStore):
    """Answers late, so that more happens meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Semaphore(0)

    async def after(self, session: str, event_id: str) -> Replay | None:
        found = await super().after(session, event_id)
        await self.go.acquire()
        return found


async def test_nothing_is_lost_while_a_slow_store_is_asked(nursery: trio.Nursery) -> None:
    store = SlowStore()
    door = Door(nursery, store=store)
    session, engine = door.open()
    first = door.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    first.leave()
    second = await resume(door, session, first.ids[0])
    engine.outlet_of(1).post(notification("1"))
    store.go.release()
    await trio.testing.wait_all_tasks_blocked()
    assert second.status is None
    engine.outlet_of(1).post(answer(1))
    for _ in range(3):
        store.go.release()
        await trio.testing.wait_all_tasks_blocked()
    assert numbers(second) == [0, 1]
    assert second.messages[-1]["result"] == "done"
    assert second.ended


async def test_a_session_that_ends_while_a_slow_store_is_asked(nursery: trio.Nursery) -> None:
    store = SlowStore()
    door = Door(nursery, store=store)
    session, _ = door.open()
    first = door.get(session)
    first.leave()
    second = await resume(door, session, first.ids[0])
    door.delete(session)
    store.go.release()
    await trio.testing.wait_all_tasks_blocked()
    assert second.status == 404


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_however_it_is_cut_the_client_sees_everything_once_and_in_order(data: st.DataObject) -> None:
    """Random cuts: a client that always comes back with its last id misses nothing and gets nothing twice."""
    trio.run(_cut_at_random, data)


async def _cut_at_random(data: st.DataObject) -> None:
    async with trio.open_nursery() as nursery:
        door = Door(nursery)
        session, engine = door.open()
        mine, other = door.post(request(1), session), door.post(request(2), session)
        engine.outlet_of(2).post(notification("1000"))
        outlet, seen, last = engine.outlet_of(1), list[Any](), ""
        outlet.post(notification("0"))
        count = data.draw(st.integers(1, 12), label="messages")
        for number in _until_over(count, outlet):
            step = data.draw(st.sampled_from(["read", "cut", "lose", "close", "other"]), label=f"{number}")
            events = mine.events if mine is not None else []
            if step == "other":
                engine.outlet_of(2).post(notification("1001"))
            elif step == "close":
                outlet.close_stream()
            elif step in ("cut", "lose") and events:
                # Of what was sent the client has seen this much when its connection is gone.
                kept = len(events) if step == "cut" else data.draw(st.integers(0, len(events)), label="kept")
                seen += [message for _, message in events[:kept] if message is not None]
                last = events[kept - 1][0] or last if kept else last
                mine.leave()
                if last:
                    mine = await resume(door, session, last)
                else:
                    break
        else:
            seen += [message for _, message in mine.events if message is not None]
            if mine.events:
                last = mine.events[-1][0] or last
            while not (seen and "result" in seen[-1]):
                mine = await resume(door, session, last)
                assert mine.status == 200
                seen += mine.messages
            assert [message.get("method", "end") for message in seen] == [
                *(str(number) for number in range(count)),
                "end",
            ]
        assert set(numbers(other)) <= {1000, 1001}


def _until_over(count: int, outlet: Any) -> Iterator[int]:
    for number in range(1, count):
        yield number
        outlet.post(notification(str(number)))
    yield count
    outlet.post(answer(1))
    yield count + 1


# -- silence ----------------------------------------------------------------------------------------------------------


async def test_a_silent_stream_gets_comments_and_a_busy_one_none(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    door = Door(nursery, keepalive=15, idle=10_000)
    nursery.start_soon(door.open_streams.keep_alive)
    session, engine = door.open()
    silent, busy, full = door.get(session), door.post(request(1), session), door.post(request(2), session)
    engine.outlet_of(2).post(notification("0"))
    full.full = True
    for number in range(60):
        engine.outlet_of(1).post(notification(str(number)))
        await trio.sleep(5)
    assert 300 / 15 - 1 <= silent.chunks.count(b":\n\n") <= 300 / 15
    assert b":\n\n" not in busy.chunks
    assert b":\n\n" not in full.chunks
    silent.leave()
    assert len(door.open_streams) == 2


async def test_a_comment_finds_out_that_a_peer_has_gone(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    door = Door(nursery, keepalive=15)
    nursery.start_soon(door.open_streams.keep_alive)
    session, _ = door.open()
    stream = door.get(session)
    stream.gone = True  # without having told: `write` is the first to notice
    await trio.sleep(40)
    assert len(door.open_streams) == 0
