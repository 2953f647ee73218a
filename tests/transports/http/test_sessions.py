"""How legacy sessions begin and end, and to whom they belong."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.abc import EventLog, Replay
from mcp_actors.shared import EVENT_OVERHEAD, EventLogStatistics, MemoryEventLog
from tests.shared.spanning import Spanning
from tests.transports.http.fakes import INITIALIZED, FakeListener, answer, notification, question, request
from tests.transports.http.nodes import nodes
from tests.transports.http.site import bare, call, message_of, text


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


# -- With a log that other nodes read, an event leaves only once it is kept there ------------------------


async def test_no_event_leaves_before_it_is_kept_and_none_overtakes_another() -> None:
    async with nodes(1, Spanning()) as (a,):
        session = await a.open()
        a.state.events.hold = True
        async with a.stream("POST", call(1, "wait"), session) as events:
            await a.called.wait()
            a.go.set()
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.05) as early:
                await events.__anext__()
            assert early.cancelled_caught
            held = a.state.events.held
            # The last event is kept first: it still goes out last.
            held.reverse()
            a.state.events.release()
            assert (await events.__anext__()).data == b""
            assert (await message_of(events))["params"]["progress"] == 1
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            assert [event async for event in events] == []


async def test_a_stream_whose_events_cannot_be_kept_goes_on_without_ids() -> None:
    async with nodes(1, shared := Spanning()) as (a,):
        session = await a.open()
        shared.keeps = False
        a.go.set()
        async with a.stream("POST", call(1, "wait"), session) as events:
            found = [event async for event in events if event.is_message]
        assert [event.id for event in found] == [None] * 3
        assert text(json.loads(found[-1].data)) == "waited"
        assert (await a.post(call(2, "add", a=1, b=1), session)).status_code == 200


async def test_a_client_resumes_at_another_node_and_gets_the_rest_once() -> None:
    async with nodes(3, Spanning()) as (a, b, c):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            assert (await events.__anext__()).data == b""
            last = (await events.__anext__()).id or ""
        async with c.stream("GET", None, session, **{"last-event-id": last}) as events:
            a.go.set()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            assert [event async for event in events] == []
        again = await b.http.get(
            b.url, headers={**bare(session), "accept": "text/event-stream", "last-event-id": last}
        )
        assert again.text.count("id: ") == 2


async def test_a_client_that_resumes_waits_for_events_that_are_not_kept_yet() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            assert (await events.__anext__()).data == b""
            last = (await events.__anext__()).id or ""
            a.state.events.hold = True
            a.go.set()
        async with b.stream("GET", None, session, **{"last-event-id": last}) as events:
            await trio.testing.wait_all_tasks_blocked()
            a.state.events.release()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"


# -- The store of events: exact suffixes, of the right stream and session, within its bounds -------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Callable[[], float] = lambda: 0.0, **bounds: float) -> MemoryEventLog:
    return MemoryEventLog(clock=clock, **bounds)  # type: ignore[arg-type]


def after(store: EventLog, session: str, event_id: str) -> Replay | None:
    """Asks outside of Trio: the store in memory never waits."""
    asked = store.after(session, event_id)
    with pytest.raises(StopIteration) as done:
        asked.send(None)
    result: Replay | None = done.value.value
    return result


def texts(replay: Replay | None) -> list[bytes] | None:
    return None if replay is None else [data for _, data in replay.events]


def test_the_rest_of_a_stream_comes_in_order_and_with_its_ids() -> None:
    store = make()
    first = store.append("s", "1", b"")
    store.append("s", "2", b"of another stream")
    later = [store.append("s", "1", b"%d" % number) for number in range(3)]
    assert after(store, "s", first) == Replay("1", [(later[0], b"0"), (later[1], b"1"), (later[2], b"2")])
    assert after(store, "s", later[1]) == Replay("1", [(later[2], b"2")])
    assert after(store, "s", later[2]) == Replay("1", [])


def test_ids_are_unique_over_the_streams_and_can_stand_in_a_header() -> None:
    store = make()
    ids = [store.append("s", stream, b"x") for stream in ("1", "2", "get", "1", "2") for _ in range(20)]
    assert len(set(ids)) == len(ids)
    assert all(each.isascii() and each.isprintable() and " " not in each for each in ids)


def test_an_id_comes_never_twice_even_if_a_streams_name_does() -> None:
    clock = Clock()
    store = make(clock, max_age=1)
    seen = {store.append("s", "open", b"")}
    for _ in range(3):
        seen.add(store.append("s", "1", b""))
        store.end("s", "1")
        clock.now += 2
    assert len(seen) == 4


def test_an_id_of_another_session_is_unknown_although_both_have_such_a_stream() -> None:
    store = make()
    mine = store.append("mine", "1", b"a")
    store.append("mine", "1", b"b")
    theirs = store.append("theirs", "1", b"a")
    store.append("theirs", "1", b"b")
    assert after(store, "mine", theirs) is None
    assert after(store, "theirs", mine) is None
    assert after(store, "nobody", mine) is None


def test_what_was_never_given_out_is_unknown() -> None:
    store = make()
    first = store.append("s", "1", b"a")
    other = store.append("s", "2", b"b")
    tag, _, number = first.split("-")
    bad = [
        "",
        "-",
        "--",
        "---",
        tag,
        f"{tag}-1",
        f"{tag}-1-",
        f"{tag}-1-0",
        f"{tag}-1-01",
        f"{tag}-1-+1",
        f"{tag}-1- 1",
        f"{tag}-1-1 ",
        f"{tag}-1-\u0661",
        f"{tag}-1-\u00b2",
        f"{tag}-1--1",
        f"{tag}-1-99",
        f"{tag}-1-" + "9" * 5000,
        f"{tag}-1-{other.rpartition('-')[2]}",
        f"{tag}-2-{number}",
        f"{tag}-3-{number}",
        f"{tag}--{number}",
        f"{tag.upper()}x-1-{number}",
        f"-1-{number}",
        first + "\x00",
        first + "-1",
        "x" * 100_000,
    ]
    assert [each for each in bad if after(store, "s", each) is not None] == []
    assert texts(after(store, "s", first)) == []


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_events": 2},
        {"max_bytes": 2 * (EVENT_OVERHEAD + 1)},
        {"max_total_bytes": 2 * (EVENT_OVERHEAD + 1)},
    ],
)
def test_an_id_before_the_gap_is_unknown_and_the_one_at_its_edge_is_not(bounds: dict[str, float]) -> None:
    store = make(Clock(), **bounds)
    ids = [store.append("s", "1", b"%d" % number) for number in range(5)]
    assert [texts(after(store, "s", each)) for each in ids] == [None, None, [b"3", b"4"], [b"4"], []]
    assert store.statistics().events == 2


def test_all_sessions_together_are_bounded_and_the_oldest_gives_way() -> None:
    store = make(max_total_bytes=3 * (EVENT_OVERHEAD + 10))
    old = store.append("old", "1", b"")
    store.append("old", "1", b"x" * 10)
    new = store.append("new", "1", b"")
    for _ in range(2):
        store.append("new", "1", b"x" * 10)
    assert after(store, "old", old) is None
    assert texts(after(store, "new", new)) == [b"x" * 10] * 2
    assert store.statistics().bytes <= 3 * (EVENT_OVERHEAD + 10)


def test_events_grow_old() -> None:
    clock = Clock()
    store = make(clock, max_age=10)
    first = store.append("s", "1", b"a")
    clock.now = 6
    second = store.append("s", "1", b"b")
    clock.now = 10
    assert texts(after(store, "s", first)) == [b"b"]
    clock.now = 17
    assert after(store, "s", first) is None
    assert texts(after(store, "s", second)) == []
    assert store.statistics() == EventLogStatistics(sessions=1, events=0, bytes=0)


def test_a_quiet_open_stream_can_be_resumed_after_any_time_whatever_the_others_do() -> None:
    clock = Clock()
    store = make(clock, max_age=10, max_events=4)
    primed = store.append("s", "slow", b"")
    for _ in range(100):
        clock.now += 60
        store.append("s", "busy", b"x")
    answer = store.append("s", "slow", b"answer")
    assert after(store, "s", primed) == Replay("slow", [(answer, b"answer")])


def test_an_event_over_the_bound_is_not_kept_and_leaves_a_known_gap() -> None:
    store = make(max_bytes=1000)
    first = store.append("s", "1", b"a")
    big = store.append("s", "1", b"x" * 2000)
    assert store.statistics().bytes == 0
    assert after(store, "s", first) is None
    last = store.append("s", "1", b"b")
    assert after(store, "s", big) == Replay("1", [(last, b"b")])


def test_a_bound_of_nothing_keeps_nothing() -> None:
    store = make(max_events=0)
    first = store.append("s", "1", b"a")
    second = store.append("s", "1", b"b")
    assert after(store, "s", first) is None
    assert texts(after(store, "s", second)) == []
    assert store.statistics().events == 0


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        make(max_age=-1)


def test_an_ended_stream_can_be_read_and_costs_nothing_once_its_events_are_gone() -> None:
    clock = Clock()
    store = make(clock, max_age=10)
    first = store.append("s", "1", b"")
    store.append("s", "1", b"answer")
    store.end("s", "1")
    assert texts(after(store, "s", first)) == [b"answer"]
    clock.now = 11
    store.append("other", "1", b"")
    assert store.statistics().sessions == 1
    assert after(store, "s", first) is None


def test_ending_a_stream_without_events_gives_its_entry_back() -> None:
    clock = Clock()
    store = make(clock, max_age=10)
    store.append("s", "1", b"")
    clock.now = 11
    assert after(store, "nobody", "x") is None
    assert store.statistics().sessions == 1
    store.end("s", "1")
    assert store.statistics() == EventLogStatistics(sessions=0, events=0, bytes=0)


def test_a_session_outlives_those_of_its_streams_that_ended() -> None:
    clock = Clock()
    store = make(clock, max_age=10)
    ended = store.append("s", "1", b"")
    store.end("s", "1")
    clock.now = 9
    other = store.append("s", "2", b"")
    store.append("s", "2", b"a")
    clock.now = 11
    assert after(store, "s", ended) is None
    assert texts(after(store, "s", other)) == [b"a"]
    assert store.statistics() == EventLogStatistics(sessions=1, events=2, bytes=1 + 2 * EVENT_OVERHEAD)


def test_a_forgotten_session_leaves_nothing_behind() -> None:
    store = make()
    gone = store.append("gone", "1", b"x")
    kept = store.append("kept", "1", b"")
    store.append("kept", "1", b"y")
    store.forget("gone")
    store.forget("gone")
    store.end("gone", "1")
    store.end("kept", "2")
    assert after(store, "gone", gone) is None
    assert texts(after(store, "kept", kept)) == [b"y"]
    assert store.statistics() == EventLogStatistics(sessions=1, events=2, bytes=1 + 2 * EVENT_OVERHEAD)
    store.append("gone", "1", b"x")
    assert after(store, "gone", gone) is None


def test_data_is_kept_without_a_copy() -> None:
    store = make()
    data = b"x" * 1000
    first = store.append("s", "1", b"")
    store.append("s", "1", data)
    replay = after(store, "s", first)
    assert replay is not None
    assert replay.events[0][1] is data


def test_the_overhead_that_is_counted_is_not_less_than_what_it_takes() -> None:
    store = make(max_events=10_000, max_bytes=10**9)
    for _ in range(5000):
        store.append("s", "1", b"")
    event = store._sessions["s"].events[-1]
    numbers = sum(sys.getsizeof(each) for each in (event.number, event.serial, event.at))
    tables = sys.getsizeof(store._order) + sys.getsizeof(store._sessions["s"].events)
    assert sys.getsizeof(event) + numbers + tables / 5000 <= EVENT_OVERHEAD


async def test_the_default_clock_is_that_of_the_loop(autojump_clock: trio.testing.MockClock) -> None:
    store = MemoryEventLog(max_age=5)
    first = store.append("s", "1", b"a")
    store.append("s", "1", b"b")
    assert texts(await store.after("s", first)) == [b"b"]
    await trio.sleep(6)
    assert await store.after("s", first) is None


def test_its_repr_is_its_state() -> None:
    store = make()
    store.append("s", "1", b"four")
    assert repr(store) == f"<MemoryEventLog: 1 events of 1 sessions, {4 + EVENT_OVERHEAD} bytes>"


SESSIONS = ("a", "b", "c")
STREAMS = ("1", "2", "get")
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(SESSIONS), st.sampled_from(STREAMS), st.integers(0, 400)),
    st.tuples(st.just("end"), st.sampled_from(SESSIONS), st.sampled_from(STREAMS), st.just(0)),
    st.tuples(st.just("forget"), st.sampled_from(SESSIONS), st.just(""), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.just(""), st.integers(1, 20)),
)


@given(st.lists(STEPS, max_size=60), st.integers(0, 8), st.integers(0, 3000), st.integers(0, 6000))
def test_any_cut_gives_the_exact_rest_or_nothing(
    steps: list[tuple[str, str, str, int]], max_events: int, max_bytes: int, max_total_bytes: int
) -> None:
    clock = Clock()
    store = make(
        clock, max_events=max_events, max_bytes=max_bytes, max_total_bytes=max_total_bytes, max_age=30
    )
    # session -> stream -> every event that was ever appended in this life of the session
    told: dict[str, dict[str, list[tuple[str, bytes]]]] = {each: {} for each in SESSIONS}
    ids: set[str] = set()
    for count, (what, session, stream, size) in enumerate(steps):
        if what == "append":
            data = b"%d " % count + b"x" * size
            event_id = store.append(session, stream, data)
            assert event_id not in ids
            ids.add(event_id)
            told[session].setdefault(stream, []).append((event_id, data))
        elif what == "end":
            store.end(session, stream)
        elif what == "forget":
            store.forget(session)
            told[session] = {}
        else:
            clock.now += size
        held = store.statistics()
        assert held.bytes <= max_total_bytes
        assert held.bytes == 0 or held.events > 0
        assert held.events <= max_events * len(SESSIONS)
    known = 0
    for session in SESSIONS:
        for event_id in ids:
            owner = [
                (stream, events[[each for each, _ in events].index(event_id) + 1 :])
                for stream, events in told[session].items()
                if event_id in [each for each, _ in events]
            ]
            replay = after(store, session, event_id)
            if replay is not None:
                known += 1
                assert owner == [(replay.stream, replay.events)]
    # Whatever is held can be asked for.
    assert all(after(store, each.session.key, each.id) is not None for each in store._order.values())
    assert known >= store.statistics().events
