"""Streams of a session: which message goes where, and how a client that lost one gets the exact rest of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import Context
from mcp_actors.abc import Replay
from mcp_actors.shared import MemoryEventLog
from mcp_transports.http.sse import SseDecoder
from tests.transports.http.fakes import FakeListener, answer, notification, numbers, question, request, resume
from tests.transports.http.raw import RawPeer
from tests.transports.http.site import Events, Site, bare, call, site

pytestmark = pytest.mark.slow

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


# -- How a client that lost a stream gets the exact rest of it, wherever it was cut ----------------------


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
async def test_an_unknown_event_is_a_bad_request_and_no_end_of_the_session(
    nursery: trio.Nursery, id: str
) -> None:
    listener = FakeListener(nursery)
    session, _ = listener.open()
    listener.get(session)
    response = await resume(listener, session, id)
    # A client takes 404 for the end of its session, which goes on.
    assert response.status == 400
    assert "last-event-id" in response.json["error"]["message"]
    assert listener.delete(session).status == 200


async def test_events_of_another_session_are_unknown(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery)
    mine, engine = listener.open()
    other, _ = listener.open()
    response = listener.post(request(1), mine)
    engine.outlet_of(1).post(notification("0"))
    listener.get(other)
    for id in response.ids:
        assert (await resume(listener, other, id)).status == 400
        assert (await resume(listener, mine, id)).status == 200


async def test_a_gap_is_not_replayed_over(nursery: trio.Nursery) -> None:
    listener = FakeListener(nursery, store=MemoryEventLog(max_events=3))
    session, engine = listener.open()
    response = listener.post(request(1), session)
    for number in range(6):
        engine.outlet_of(1).post(notification(str(number)))
    response.leave()
    assert (await resume(listener, session, response.ids[1])).status == 400
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


# -- A client whose network stalled comes back once, and has everything: what it missed, and an answer of any size ---

KIB, MIB = 1024, 1024 * 1024
ANSWER = 5 * MIB
SEVERAL = int(os.environ.get("MCP_STALLED_CLIENTS", "4"))


async def stalled_peer(here: Site, message: object, session: str) -> tuple[RawPeer, str]:
    """POSTs and reads the first event only, through a window so small that the server soon holds the rest."""
    narrow = trio.socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await narrow.connect(("127.0.0.1", int(here.url.split(":")[2].partition("/")[0])))
    peer = RawPeer(trio.SocketStream(narrow))
    body = json.dumps(message).encode()
    named = {"host": "localhost", "content-type": "application/json", **bare(session)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    await peer.send(f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    first = await anext(Events(peer))
    assert first.id is not None
    return peer, first.id


async def comes_back(here: Site, session: str, last_event_id: str) -> tuple[int, int]:
    """How many reports, and how long an answer, the first return brings."""
    reports = 0
    async with here.stream("GET", None, session, **{"last-event-id": last_event_id}) as events:
        events._decoder = SseDecoder(20 * MIB)
        async for event in events:
            if event.is_message:
                message = json.loads(event.data)
                if "result" in message:
                    return reports, len(message["result"]["content"][0]["text"])
                reports += 1
    raise AssertionError(f"the stream ended without an answer, after {reports} reports")


@pytest.mark.parametrize(
    ("size", "reports"),
    [(30 * KIB, 100), (300 * KIB, 10), (30 * KIB, 500), (150, 5000)],
    ids=["held here", "in few pieces", "more than is held", "in many pieces"],
)
@pytest.mark.parametrize("clients", [1, pytest.param(SEVERAL, marks=pytest.mark.long)])
async def test_the_first_return_to_a_stalled_stream_has_everything(
    size: int, reports: int, clients: int
) -> None:
    async with site() as here:
        told_all = trio.Event()

        @here.server.tool
        async def report(ctx: Context) -> str:
            for number in range(reports):
                await ctx.progress(number + 1, message="x" * size)
            told_all.set()
            return "y" * ANSWER

        async def one() -> None:
            session = await here.open()
            peer, first = await stalled_peer(here, call(1, "report"), session)
            with trio.move_on_after(0.2):  # as long as it takes to fill what lies between the two
                await told_all.wait()
            before = 0 if first.endswith("-1") else 1
            told, length = await comes_back(here, session, first)
            assert (told + before, length) == (reports, ANSWER)
            await peer.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(one)
