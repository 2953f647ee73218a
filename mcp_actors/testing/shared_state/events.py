"""Checks of the event log."""

from __future__ import annotations

from collections.abc import Callable

from mcp_actors.abc.shared import OpenState, Replay
from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.rules import (
    ENDED_STREAM,
    EVENT_IDS,
    FORGOTTEN_EVENTS,
    KEPT,
    REPLAYED,
    UNKNOWN_EVENTS,
)
from mcp_actors.testing.shared_state.subject import StateUnderTest

__all__ = ["EVENTS", "append_kept"]

DATA = (b"{}", b"", b"a\nb", "é漢".encode(), b"\x00\xff", b"x" * 100_000, b"{}")
NOT_IDS = ("", "-", "x", "0", "a-b-c", "é", "\x00", "1" * 10_000, "-1", "%s", "*", " ", "0-0", "None")


async def append_kept(
    tested: StateUnderTest, node: OpenState, session: str, stream: str, events: list[bytes]
) -> list[str]:
    """Appends events, waits until the log has said of each that it is kept, and returns their ids."""
    taken: list[tuple[int, bool]] = []
    spans = node.events.spans_processes
    ids = []

    def note(number: int) -> Callable[[bool], None]:
        return lambda kept: taken.append((number, kept))

    for number, data in enumerate(events):
        ids.append(node.events.append(session, stream, data, note(number)))
        expect(
            spans or len(taken) == number + 1,
            KEPT,
            "append returned before kept was called, and the log does not span processes",
        )
    await tested.until_true(
        lambda: len(taken) >= len(events), KEPT, f"kept was called {len(taken)} times for {len(events)}"
    )
    expect(
        taken == [(number, True) for number in range(len(events))],
        KEPT,
        f"kept was called for {taken[:6]}… of {len(events)}, in this order",
    )
    return ids


async def events_are_replayed_exactly(tested: StateUnderTest) -> None:
    """Two streams, one in the other, of any bytes: after each event come those behind it, at every node."""
    async with tested.nodes() as nodes:
        writer, reader = nodes[0], nodes[1] if nodes[0].events.spans_processes else nodes[0]
        ids: dict[str, list[str]] = {"a": [], "b_2": []}
        for data in DATA:
            for stream in ids:
                ids[stream] += await append_kept(tested, writer, "session", stream, [data])
        for stream, own in ids.items():
            for index, event_id in enumerate(own):
                wanted = Replay(stream, list(zip(own, DATA, strict=True))[index + 1 :])
                replay = await reader.events.after("session", event_id)
                expect(
                    replay is not None and Replay(replay.stream, list(replay.events)) == wanted,
                    REPLAYED,
                    f"after event {index + 1} of {len(own)} of stream {stream} came {str(replay)[:200]}",
                )


async def event_ids_are_unique(tested: StateUnderTest) -> None:
    """Events of several streams of two sessions: an id can stand in a header, and stands for one event."""
    async with tested.node() as node:
        ids = [
            node.events.append("session", stream, b"{}", None)
            for stream in ("a", "b", "a1")
            for _ in range(20)
        ]
        expect(len(set(ids)) == len(ids), EVENT_IDS, "two events of a session have the same id")
        wrong = [each for each in ids if not each or not all("!" <= letter <= "~" for letter in each)]
        expect(not wrong, EVENT_IDS, f"{wrong[:1]} is no visible ASCII")


async def unknown_events_are_not_replayed(tested: StateUnderTest) -> None:
    """Ids that are malformed, changed, of another session, or of one that never was."""
    async with tested.nodes() as nodes:
        writer, reader = nodes[0], nodes[1] if nodes[0].events.spans_processes else nodes[0]
        ids = await append_kept(tested, writer, "session", "a", [b"1", b"2"])
        other = await append_kept(tested, writer, "other", "a", [b"3", b"4"])
        changed = [f"{ids[0]}0", f" {ids[0]}", ids[0][:-1], ids[0].upper() + "X", f"0{ids[0]}"]
        for event_id in (*NOT_IDS, *changed, *other):
            if event_id in ids:
                continue
            replay = await reader.events.after("session", event_id)
            expect(replay is None, UNKNOWN_EVENTS, f"{replay} for the id {event_id[:60]!r}")
        replay = await reader.events.after("never", ids[0])
        expect(replay is None, UNKNOWN_EVENTS, "an id was taken in a session that never was")


async def ended_streams_are_replayed(tested: StateUnderTest) -> None:
    """A stream ends, and so do streams that never were."""
    async with tested.nodes() as nodes:
        writer, reader = nodes[0], nodes[1] if nodes[0].events.spans_processes else nodes[0]
        ids = await append_kept(tested, writer, "session", "a", [b"1", b"2"])
        for stream in ("a", "a", "never"):
            writer.events.end("session", stream)
        writer.events.end("never", "a")
        await let_take_effect(tested)
        replay = await reader.events.after("session", ids[0])
        expect(
            replay is not None and list(replay.events) == [(ids[1], b"2")],
            ENDED_STREAM,
            f"{replay} after the first of two events of a stream that ended",
        )


async def forgotten_events_are_not_replayed(tested: StateUnderTest) -> None:
    """One of two sessions is forgotten."""
    async with tested.nodes() as nodes:
        writer, reader = nodes[0], nodes[1] if nodes[0].events.spans_processes else nodes[0]
        ids = await append_kept(tested, writer, "session", "a", [b"1", b"2"])
        other = await append_kept(tested, writer, "other", "a", [b"3", b"4"])
        for session in ("session", "session", "never"):
            writer.events.forget(session)

        async def is_gone() -> bool:
            return await reader.events.after("session", ids[0]) is None

        await tested.until(is_gone, FORGOTTEN_EVENTS, "events of a session that was forgotten are replayed")
        replay = await reader.events.after("other", other[0])
        expect(
            replay is not None and len(replay.events) == 1,
            FORGOTTEN_EVENTS,
            "another session's events went too",
        )


async def long_streams_have_no_gaps(tested: StateUnderTest) -> None:
    """Many events of one stream: what follows the first is all there, or not known."""
    async with tested.node() as node:
        ids: list[str] = []
        for begin in range(0, tested.many, 200):
            events = [b"%d" % number for number in range(begin, min(begin + 200, tested.many))]
            ids += await append_kept(tested, node, "session", "a", events)
        replay = await node.events.after("session", ids[0])
        expect(
            replay is None
            or [data for _, data in replay.events] == [b"%d" % n for n in range(1, tested.many)],
            REPLAYED,
            f"after the first of {tested.many} events not all were replayed, or in another order",
        )


async def events_of_a_node_that_ended_are_replayed(tested: StateUnderTest) -> None:
    """The node that appended them ends in good order, without forgetting its session."""
    async with tested.node() as stays:
        if not stays.events.spans_processes:
            return
        async with tested.node() as leaves:
            ids = await append_kept(tested, leaves, "session", "a", [b"1", b"2", b"3"])
        replay = await stays.events.after("session", ids[0])
        expect(
            replay is not None and [data for _, data in replay.events] == [b"2", b"3"],
            REPLAYED,
            f"{replay} after the first of three events of a node that ended",
        )


async def let_take_effect(tested: StateUnderTest) -> None:
    """Lets what takes effect soon take effect."""
    await tested.subject.pass_time(tested.quiet)


EVENTS = (
    Check(events_are_replayed_exactly, REPLAYED),
    Check(event_ids_are_unique, EVENT_IDS),
    Check(unknown_events_are_not_replayed, UNKNOWN_EVENTS),
    Check(ended_streams_are_replayed, ENDED_STREAM),
    Check(forgotten_events_are_not_replayed, FORGOTTEN_EVENTS),
    Check(long_streams_have_no_gaps, REPLAYED),
    Check(events_of_a_node_that_ended_are_replayed, REPLAYED),
)
