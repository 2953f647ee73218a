"""Checks of what moves from a node that ends to the others: sessions, their streams, what changes, and requests."""

from __future__ import annotations

from functools import partial

import trio

from mcp_actors.abc.shared import OpenState, SessionPlace
from mcp_actors.testing.conformance.rules import Check, expect
from mcp_actors.testing.shared_state.events import append_kept
from mcp_actors.testing.shared_state.subject import (
    FORGOTTEN_EVENTS,
    HANDED_OVER,
    PUBLISHED_SINCE,
    REPLAYED,
    SHUT,
    StateUnderTest,
    all_at_once,
)

__all__ = ["MOVING"]

RECORDS = (b"", b"\x00\xff\n", b"{}" * 20_000)
KEPT_FOR = 3600.0


async def _held(node: OpenState, records: dict[str, bytes], owner: str) -> str:
    """Has a node hold sessions, and returns their address."""
    address, _ = node.bus.open_mailbox(lambda message: None)
    for session in records:
        await node.sessions.register(session, owner, address)
    return address


async def handed_over_sessions_are_taken_once(tested: StateUnderTest) -> None:
    """Sessions with odd records: found as free at every node, and taken by one of ten that try, with the record."""
    async with tested.nodes(3) as nodes:
        holder = nodes[0]
        takers = nodes[1:] if holder.sessions.spans_processes else [holder]
        records = {f"session-{number}": record for number, record in enumerate(RECORDS)}
        address = await _held(holder, records, "é\nalice")
        await holder.sessions.hand_over(records, KEPT_FOR)
        places = [node.bus.open_mailbox(lambda message: None)[0] for node in takers]
        for session, record in records.items():
            for node in takers:
                place = await node.sessions.find(session)
                free = SessionPlace(address, "é\nalice", True, True)
                expect(place == free, HANDED_OVER, f"{place} was found for a session that was handed over")
            acts = [
                partial(node.sessions.take_over, session, "é\nalice", place)
                for node, place in zip(takers * 5, places * 5, strict=True)
            ]
            taken = [each for each in await all_at_once(acts) if each is not None]
            expect(taken == [record], HANDED_OVER, f"{len(taken)} of {len(acts)} nodes took one session")
            place = await takers[-1].sessions.find(session)
            expect(
                place is not None and place.address in places and not place.is_free,
                HANDED_OVER,
                f"{place} was found for a session that was taken",
            )
        for session in ("session-0", "session", "never"):
            again = await takers[0].sessions.take_over(session, "alice", places[0])
            expect(again is None, HANDED_OVER, f"{session} was taken, and was not to be had")


async def handed_over_sessions_outlive_their_node(tested: StateUnderTest) -> None:
    """The node that has handed a session over ends, and another one takes it, hands it on, and forgets it."""
    async with tested.nodes() as (first, second):
        if not first.sessions.spans_processes:
            return
        async with tested.node() as ends:
            await _held(ends, {"session": b""}, "alice")
            await ends.sessions.hand_over({"session": b"1"}, KEPT_FOR)
        place = await first.sessions.find("session")
        expect(place is not None and place.is_free, HANDED_OVER, f"{place} was found when its node had ended")
        for number, node in enumerate((first, second), 1):
            address, _ = node.bus.open_mailbox(lambda message: None)
            record = await node.sessions.take_over("session", "alice", address)
            expect(record == b"%d" % number, HANDED_OVER, f"{record!r} is the record of node {number}")
            if node is first:
                await node.sessions.hand_over({"session": b"2"}, KEPT_FOR)
        second.sessions.forget("session")

        async def is_forgotten() -> bool:
            return await first.sessions.find("session") is None

        await tested.until(is_forgotten, HANDED_OVER, "a session that moved and was forgotten is still found")


async def handed_over_sessions_are_kept_for_their_time(tested: StateUnderTest) -> None:
    """Nobody takes a session: it is there before its time is over, and gone after it."""
    seconds = tested.quiet * 10
    async with tested.nodes() as (holder, other):
        if not holder.sessions.spans_processes:
            return
        await _held(holder, {"short": b"", "long": b""}, "alice")
        early = tested.earlier_than(seconds)
        await holder.sessions.hand_over({"short": b"short"}, seconds)
        await holder.sessions.hand_over({"long": b"long"}, KEPT_FOR)
        address, _ = other.bus.open_mailbox(lambda message: None)
        place = await other.sessions.find("short")
        is_there = place is not None and place.is_free
        expect(is_there or not early(), HANDED_OVER, "a session was gone before its time was over")
        await tested.subject.pass_time(seconds * 1.5)
        late = await other.sessions.take_over("short", "alice", address)
        expect(late is None, HANDED_OVER, "a session was there after its time")
        long = await other.sessions.take_over("long", "alice", address)
        expect(long == b"long", HANDED_OVER, "with the end of one session's time another one was gone")


async def streams_go_on_at_another_node(tested: StateUnderTest) -> None:
    """One stream of a session goes on at another node, one stays: both are replayed as if nothing had been."""
    async with tested.nodes(3) as nodes:
        if not nodes[0].events.spans_processes:
            return
        former, following, reader = nodes
        ids = await append_kept(tested, former, "session", "moves", [b"1", b"2"])
        stays = await append_kept(tested, former, "session", "stays", [b"a"])
        await former.events.leave({"session": ["moves"]})
        following.events.go_on("session", {"moves": ids[-1]})
        ids += await append_kept(tested, following, "session", "moves", [b"3"])
        stays += await append_kept(tested, former, "session", "stays", [b"b"])
        ids += await append_kept(tested, following, "session", "moves", [b"4"])
        await append_kept(tested, following, "session", "new", [b"x"])
        former.events.end("session", "stays")
        for wanted, own in (([b"1", b"2", b"3", b"4"], ids), ([b"a", b"b"], stays)):
            for index, id in enumerate(own):
                replay = await reader.events.after("session", id)
                found = None if replay is None else [data for _, data in replay.events]
                expect(
                    found == wanted[index + 1 :],
                    REPLAYED,
                    f"after event {index + 1} of a stream came {found}",
                )
        following.events.forget("session")

        async def is_forgotten() -> bool:
            return await reader.events.after("session", ids[0]) is None

        await tested.until(
            is_forgotten, FORGOTTEN_EVENTS, "the events of a session that moved outlive the session"
        )


async def published_events_are_read_again(tested: StateUnderTest) -> None:
    """Behind a position of one node, every node finds what all of them have published since, its own too."""
    async with tested.nodes(3) as nodes:
        if not nodes[0].bus.spans_processes:
            return
        heard: list[tuple[str, str]] = []
        nodes[0].bus.subscribe(lambda topic, key: heard.append((topic, key)), lambda: None)
        await tested.subject.pass_time(tested.quiet)
        nodes[1].bus.publish("task", "before")
        await tested.until_true(lambda: bool(heard), PUBLISHED_SINCE, "an event was not heard")
        position = nodes[0].bus.position
        wanted = {("task", f"é {number}\n") for number in range(len(nodes))}
        for node, (topic, key) in zip(nodes, sorted(wanted), strict=True):
            node.bus.publish(topic, key)
        for node in nodes:

            async def finds_all(node: OpenState = node) -> bool:
                found = await node.bus.since(position)
                return found is not None and set(found) == wanted

            await tested.until(
                finds_all, PUBLISHED_SINCE, "behind a position is not what was published since"
            )
        own = await nodes[2].bus.since(position)
        nodes[2].bus.publish("end", "")
        at_once = await nodes[2].bus.since(position)
        expect(
            at_once is None or set(at_once) - set(own or ()) == {("end", "")},
            PUBLISHED_SINCE,
            "what a node itself has published just now is not behind a position",
        )


async def shut_mailboxes_take_nothing_that_begins(tested: StateUnderTest) -> None:
    """Two senders begin all the time while a mailbox is shut: each learns exactly what was taken."""
    async with tested.nodes(3) as nodes:
        if not nodes[0].bus.spans_processes:
            return
        owner, *senders = nodes
        taken: list[bytes] = []
        address, _ = owner.bus.open_mailbox(taken.append)
        accepted: list[bytes] = []
        over = trio.Event()

        async def begin(node: OpenState, name: int) -> None:
            number = 0
            while await node.bus.send(address, message := b"%d %d" % (name, number), begins=True):
                accepted.append(message)
                number += 1
                if number == tested.many:
                    over.set()
                    return
                # Not a checkpoint alone: a virtual clock would never move on.
                await trio.sleep(tested.quiet / 100)

        async with trio.open_nursery() as nursery:
            for name, node in enumerate(senders):
                nursery.start_soon(begin, node, name)
            await tested.until_true(lambda: len(accepted) > 5, SHUT, "a mailbox takes nothing")
            with tested.soon(SHUT, "shut does not end"):
                await owner.bus.shut(address)
            at_return = set(taken)
        expect(not over.is_set(), SHUT, "a mailbox that was shut takes what begins something")
        expect(set(accepted) <= at_return, SHUT, "what was sent before came after shut had returned")
        expect(set(taken) == set(accepted), SHUT, "what was refused arrived all the same")
        there = await senders[0].bus.send(address, b"goes on")
        expect(there, SHUT, "a mailbox that was shut takes nothing else either")
        await tested.until_true(lambda: taken[-1] == b"goes on", SHUT, "a message to it did not arrive")


MOVING = (
    Check(handed_over_sessions_are_taken_once, HANDED_OVER),
    Check(handed_over_sessions_outlive_their_node, HANDED_OVER),
    Check(handed_over_sessions_are_kept_for_their_time, HANDED_OVER),
    Check(streams_go_on_at_another_node, REPLAYED),
    Check(published_events_are_read_again, PUBLISHED_SINCE),
    Check(shut_mailboxes_take_nothing_that_begins, SHUT),
)
