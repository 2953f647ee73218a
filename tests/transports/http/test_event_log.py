"""The store of events: exact suffixes, of the right stream and session, within its bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.abc import EventLog, Replay
from mcp_actors.shared import EVENT_OVERHEAD, EventLogStatistics, MemoryEventLog


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
