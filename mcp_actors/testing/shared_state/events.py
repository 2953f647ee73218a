"""Checks of the bus with its events and mailboxes, and of the event log."""

from __future__ import annotations

from collections.abc import Callable

from mcp_actors.abc.shared import OpenState, Replay
from mcp_actors.testing.conformance.rules import Check, expect
from mcp_actors.testing.shared_state.subject import (
    COALESCED,
    ENDED_STREAM,
    EVENT_IDS,
    FORGOTTEN_EVENTS,
    KEPT,
    MAILBOXES,
    MESSAGES,
    MISSED,
    NODE_GONE,
    PUBLISHED,
    REPLAYED,
    UNKNOWN_EVENTS,
    UNSUBSCRIBED,
    StateUnderTest,
    all_at_once,
)

__all__ = ["BUS", "EVENTS", "BusSubscriber", "append_kept"]


# -- the bus -------------------------------------------------------------------------------------------

SAMPLES = (
    ("resource_updated", "file:///é"),
    ("list_changed", ""),
    ("task", "a:b|c d\n"),
    ("task", "x" * 2000),
)
# Events that are published at once, without a chance to be sent: more than a bus has to hold.
FLOOD = 200_000


class BusSubscriber:
    """A subscriber that keeps what it receives."""

    def __init__(self, node: OpenState) -> None:
        self.taken: list[tuple[str, str]] = []
        self.missed = 0
        self.unsubscribe: Callable[[], None] = node.bus.subscribe(self._take, self._note_missed)

    def _take(self, topic: str, key: str) -> None:
        self.taken.append((topic, key))

    def _note_missed(self) -> None:
        self.missed += 1


async def events_reach_every_other_node(tested: StateUnderTest) -> None:
    """Three nodes, two subscribers at one of them: all but those of the publisher hear every event."""
    async with tested.nodes(3) as nodes:
        spans = nodes[0].bus.spans_processes
        own, second, another, third = (BusSubscriber(nodes[index]) for index in (0, 1, 1, 2))
        await tested.subject.pass_time(tested.quiet)
        for topic, key in SAMPLES:
            nodes[0].bus.publish(topic, key)
        for listener in (second, another, third) if spans else ():
            await tested.until_true(
                lambda listener=listener: set(listener.taken) >= set(SAMPLES),  # type: ignore[misc]
                PUBLISHED,
                f"of {len(SAMPLES)} events another node heard only some",
            )
            expect(set(listener.taken) == set(SAMPLES), PUBLISHED, "an event came with another topic or key")
        await tested.subject.pass_time(tested.quiet)
        expect(not own.taken, PUBLISHED, "a node received its own event")
        if spans:
            nodes[2].bus.publish("task", "back")
            await tested.until_true(
                lambda: ("task", "back") in own.taken, PUBLISHED, "an event did not reach the first node"
            )


async def waiting_events_are_put_once(tested: StateUnderTest) -> None:
    """One event is published a thousand times without a pause, then again when it was heard."""
    async with tested.nodes() as (publisher, other):
        if not publisher.bus.spans_processes:
            return
        listener = BusSubscriber(other)
        await tested.subject.pass_time(tested.quiet)
        for _ in range(1000):
            publisher.bus.publish("task", "same")
        await tested.until_true(lambda: bool(listener.taken), PUBLISHED, "an event did not arrive")
        await tested.subject.pass_time(tested.quiet)
        expect(
            len(listener.taken) <= 10,
            COALESCED,
            f"{len(listener.taken)} events arrived of one that was published 1000 times at once",
        )
        before = len(listener.taken)
        publisher.bus.publish("task", "same")
        await tested.until_true(
            lambda: len(listener.taken) > before,
            PUBLISHED,
            "an event that was heard before did not arrive again",
        )


async def lost_events_are_reported(tested: StateUnderTest) -> None:
    """More events than a bus can hold: each is heard, or the others learn that they missed some."""
    async with tested.nodes() as (publisher, other):
        if not publisher.bus.spans_processes:
            return
        listener = BusSubscriber(other)
        await tested.subject.pass_time(tested.quiet)
        for number in range(FLOOD):
            publisher.bus.publish("task", str(number))
        publisher.bus.publish("end", "")
        await tested.until_true(
            lambda: listener.missed > 0 or len(set(listener.taken)) > FLOOD,
            MISSED,
            f"of {FLOOD} events at once {len(set(listener.taken))} were heard, and missed() was not called",
        )


async def unsubscribed_functions_are_not_called(tested: StateUnderTest) -> None:
    """One of two subscribers of a node leaves, twice."""
    async with tested.nodes() as (publisher, other):
        if not publisher.bus.spans_processes:
            BusSubscriber(publisher).unsubscribe()
            return
        leaves, stays = BusSubscriber(other), BusSubscriber(other)
        leaves.unsubscribe()
        leaves.unsubscribe()
        await tested.subject.pass_time(tested.quiet)
        publisher.bus.publish("task", "late")
        await tested.until_true(
            lambda: bool(stays.taken), UNSUBSCRIBED, "with one subscriber another was taken out"
        )
        expect(not leaves.taken, UNSUBSCRIBED, "a subscriber that has left was called")


async def messages_arrive_in_order(tested: StateUnderTest) -> None:
    """Two senders, one mailbox of each node: short, empty and long messages, once, in each sender's order."""
    async with tested.nodes() as nodes:
        senders = nodes if nodes[0].bus.spans_processes else nodes[:1]
        got: list[bytes] = []
        others: list[bytes] = []
        address, _ = nodes[0].bus.open_mailbox(got.append)
        other_address, _ = nodes[0].bus.open_mailbox(others.append)
        expect(address != other_address, MESSAGES, "two mailboxes have the same address")
        await tested.subject.pass_time(tested.quiet)
        count = min(tested.many, 300)

        def sending(number: int, node: OpenState) -> Callable[[], object]:
            async def send() -> None:
                for index in range(count):
                    filling = bytes(range(256)) * (1000 if index % 100 == 50 else index % 2)
                    there = await node.bus.send(address, b"%d:%d:" % (number, index) + filling)
                    expect(there, MAILBOXES, "send says that the node of an open mailbox is not there")
                    if index % 50 == 0:
                        await node.bus.send(other_address, b"")

            return send

        await all_at_once([sending(number, node) for number, node in enumerate(senders)])  # type: ignore[misc]
        await tested.until_true(
            lambda: len(got) >= count * len(senders),
            MESSAGES,
            f"{len(got)} of {count * len(senders)} arrived",
        )
        await tested.subject.pass_time(tested.quiet)
        for number in range(len(senders)):
            order = [int(each.split(b":", 2)[1]) for each in got if each.startswith(b"%d:" % number)]
            expect(order == list(range(count)), MESSAGES, f"messages arrived as {order[:20]}…")
        torn = [each for each in got if each.split(b":", 2)[2] not in _FILLINGS]
        expect(not torn, MESSAGES, "a message arrived changed")
        expect(
            others == [b""] * (-(-count // 50) * len(senders)),
            MESSAGES,
            "a mailbox got another's messages, or not its own",
        )


_FILLINGS = (b"", bytes(range(256)), bytes(range(256)) * 1000)


async def closed_mailboxes_get_nothing(tested: StateUnderTest) -> None:
    """A mailbox is closed, twice; another one of its node stays; addresses that never were."""
    async with tested.nodes() as nodes:
        sender = nodes[1] if nodes[0].bus.spans_processes else nodes[0]
        closed: list[bytes] = []
        stays: list[bytes] = []
        address, close = nodes[0].bus.open_mailbox(closed.append)
        address_that_stays, _ = nodes[0].bus.open_mailbox(stays.append)
        close()
        close()
        await sender.bus.send(address, b"late")
        expect(await sender.bus.send(address_that_stays, b"x"), MAILBOXES, "an open mailbox was closed too")
        await tested.until_true(lambda: stays == [b"x"], MESSAGES, "an open mailbox was closed too")
        expect(not closed, MAILBOXES, "a closed mailbox got a message")
        for unknown in (f"never{address}", "never/1", "", "é:1"):
            there = await sender.bus.send(unknown, b"x")
            expect(not there, MAILBOXES, f"send says that the node of {unknown!r} is there")


async def mailboxes_of_a_node_that_ended_are_gone(tested: StateUnderTest) -> None:
    """A node ends in good order: `send` says so at once."""
    async with tested.node() as stays:
        if not stays.bus.spans_processes:
            return
        async with tested.node() as leaves:
            address, _ = leaves.bus.open_mailbox(lambda message: None)
            expect(await stays.bus.send(address, b"x"), MAILBOXES, "send says that an open node is not there")
        there = await stays.bus.send(address, b"x")
        expect(not there, NODE_GONE, "send says that a node that ended is there")


BUS = (
    Check(events_reach_every_other_node, PUBLISHED),
    Check(waiting_events_are_put_once, COALESCED),
    Check(lost_events_are_reported, MISSED),
    Check(unsubscribed_functions_are_not_called, UNSUBSCRIBED),
    Check(messages_arrive_in_order, MESSAGES),
    Check(closed_mailboxes_get_nothing, MAILBOXES),
    Check(mailboxes_of_a_node_that_ended_are_gone, NODE_GONE),
)


# -- the event log -------------------------------------------------------------------------------------

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
    """Events of several streams of two sessions: every id fits in a header and names one event."""
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
    """Waits until pending changes have taken effect."""
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
