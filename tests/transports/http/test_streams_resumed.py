"""How a client that lost a stream gets the exact rest of it, wherever it was cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors.abc import Replay
from mcp_actors.shared import MemoryEventLog
from tests.transports.http.fakes import FakeListener, answer, notification, numbers, question, request, resume


async def test_a_client_that_lost_a_call_gets_the_rest_and_what_is_to_come(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    first = listener.post(request(1), session)
    outlet = engine.outlet_of(1)
    outlet.post(notification("0"))
    outlet.post(notification("1"))
    first.leave()
    outlet.post(notification("2"))
    outlet.post(question("q", about=1))
    second = await resume(listener, session, first.ids[1])
    assert [message["method"] for message in second.messages] == ["1", "2", "ping"]
    outlet.post(notification("3"))
    outlet.post(answer(1))
    assert [message.get("method", "answer") for message in second.messages][3:] == ["3", "answer"]
    assert second.ended
    # The whole is over, but may still be asked for.
    third = await resume(listener, session, second.ids[-2])
    assert [message["result"] for message in third.messages] == ["done"]
    assert third.ended
    nothing = await resume(listener, session, second.ids[-1])
    assert (nothing.status, nothing.messages, nothing.ended) == (200, [], True)
    assert len(listener.open_streams) == 0


async def test_the_newest_consumer_wins(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    old = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    new = await resume(listener, session, old.ids[0])
    assert old.ended
    engine.outlet_of(1).post(notification("1"))
    assert (numbers(old), numbers(new)) == ([0], [0, 1])
    # Its leaving is not that of the new one.
    old.leave()
    engine.outlet_of(1).post(answer(1))
    assert new.messages[-1]["result"] == "done"


async def test_who_comes_back_need_not_wait_for_the_response_that_is_stuck(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    stuck = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    stuck.full = True
    nursery.start_soon(engine.outlet_of(1).send, notification("1"))
    await trio.testing.wait_all_tasks_blocked()
    new = await resume(listener, session, stuck.ids[0])
    assert stuck.aborted
    # The sender finds out about the old response after the new one has taken its place.
    assert numbers(new) == [0, 1]
    engine.outlet_of(1).post(answer(1))
    assert new.messages[-1]["result"] == "done"


async def test_the_standalone_stream_is_resumed_too(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    first = listener.get(session)
    assert first.events == [(first.ids[0], None)]
    engine.outlet.post(notification("0"))
    first.leave()
    engine.outlet.post(notification("1"))
    second = await resume(listener, session, first.ids[0])
    engine.outlet.post(notification("2"))
    assert numbers(second) == [0, 1, 2]
    assert not second.ended
    assert listener.get(session).status == 409


async def test_a_stream_can_be_closed_under_a_client_that_comes_back(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    first = listener.post(request(1), session)
    outlet = engine.outlet_of(1)
    outlet.close_stream()
    assert first.ended
    assert b"".join(first.chunks).endswith(b"retry: 700\n\n")
    assert len(first.ids) == 1
    outlet.close_stream()
    outlet.post(notification("0"))
    second = await resume(listener, session, first.ids[0])
    outlet.close_stream()
    assert second.ended
    outlet.post(answer(1))
    third = await resume(listener, session, second.ids[-1])
    assert (numbers(second), third.messages[0]["result"], third.ended) == ([0], "done", True)


async def test_what_nobody_can_come_back_for_is_not_kept() -> None:
    listener = FakeListener()
    session, engine = listener.open()
    response = listener.post(request(1), session)
    response.leave()
    outlet = engine.outlet_of(1)
    outlet.post(notification("0"))
    with pytest.raises(trio.BrokenResourceError):
        outlet.post(question("q", about=1))
    outlet.close_stream()
    outlet.post(answer(1))
    engine.outlet.post(notification("1"))
    assert isinstance(listener.store, MemoryEventLog)
    assert listener.store.statistics().events == 0
    assert listener.table.statistics().calls == 0
    assert not response.ended


async def test_a_question_waits_for_a_client_that_can_come_back(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    session, engine = listener.open()
    first = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    first.leave()
    engine.outlet_of(1).post(question("q", about=1))
    second = await resume(listener, session, first.ids[-1])
    assert [message["id"] for message in second.messages] == ["q"]


@pytest.mark.parametrize("id", ["x", "0-0-0", "é", "a" * 4000, "1"])
async def test_an_unknown_event_is_404_in_words(nursery: trio.Nursery, id: str) -> None:
    listener = FakeListener(nursery)
    session, _ = listener.open()
    listener.get(session)
    response = await resume(listener, session, id)
    assert response.status == 404
    assert "last-event-id" in response.json["error"]["message"]


async def test_events_of_another_session_are_unknown(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    mine, engine = listener.open()
    other, _ = listener.open()
    response = listener.post(request(1), mine)
    engine.outlet_of(1).post(notification("0"))
    listener.get(other)
    for id in response.ids:
        assert (await resume(listener, other, id)).status == 404
        assert (await resume(listener, mine, id)).status == 200


async def test_a_gap_is_not_replayed_over(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery, store=MemoryEventLog(max_events=3))
    session, engine = listener.open()
    response = listener.post(request(1), session)
    for number in range(6):
        engine.outlet_of(1).post(notification(str(number)))
    response.leave()
    assert (await resume(listener, session, response.ids[1])).status == 404
    kept = await resume(listener, session, response.ids[-2])
    assert numbers(kept) == [5]


class SlowStore(MemoryEventLog):
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
    listener = FakeListener(nursery, store=store)
    session, engine = listener.open()
    first = listener.post(request(1), session)
    engine.outlet_of(1).post(notification("0"))
    first.leave()
    second = await resume(listener, session, first.ids[0])
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
    listener = FakeListener(nursery, store=store)
    session, _ = listener.open()
    first = listener.get(session)
    first.leave()
    second = await resume(listener, session, first.ids[0])
    listener.delete(session)
    store.go.release()
    await trio.testing.wait_all_tasks_blocked()
    assert second.status == 404


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_however_it_is_cut_the_client_sees_everything_once_and_in_order(data: st.DataObject) -> None:
    """Random cuts: a client that always comes back with its last id misses nothing and gets nothing twice."""
    trio.run(_cut_at_random, data)


async def _cut_at_random(data: st.DataObject) -> None:
    async with trio.open_nursery() as nursery:
        listener = FakeListener(nursery)
        session, engine = listener.open()
        mine, other = listener.post(request(1), session), listener.post(request(2), session)
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
                    mine = await resume(listener, session, last)
                else:
                    break
        else:
            seen += [message for _, message in mine.events if message is not None]
            if mine.events:
                last = mine.events[-1][0] or last
            while not (seen and "result" in seen[-1]):
                mine = await resume(listener, session, last)
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
