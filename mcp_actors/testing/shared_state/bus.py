"""Checks of the bus: its events, and its mailboxes."""

from __future__ import annotations

from collections.abc import Callable

from mcp_actors.abc.shared import OpenState
from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.rules import (
    COALESCED,
    MAILBOXES,
    MESSAGES,
    MISSED,
    NODE_GONE,
    PUBLISHED,
    UNSUBSCRIBED,
)
from mcp_actors.testing.shared_state.subject import StateUnderTest, all_at_once

__all__ = ["BUS", "BusSubscriber"]

EVENTS = (
    ("resource_updated", "file:///é"),
    ("list_changed", ""),
    ("task", "a:b|c d\n"),
    ("task", "x" * 2000),
)
# Events that are published at once, without a chance to be sent: more than a bus has to hold.
FLOOD = 200_000


class BusSubscriber:
    """A subscriber that keeps what it is told."""

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
        for topic, key in EVENTS:
            nodes[0].bus.publish(topic, key)
        for listener in (second, another, third) if spans else ():
            await tested.until_true(
                lambda listener=listener: set(listener.taken) >= set(EVENTS),  # type: ignore[misc]
                PUBLISHED,
                f"of {len(EVENTS)} events another node heard only some",
            )
            expect(set(listener.taken) == set(EVENTS), PUBLISHED, "an event came with another topic or key")
        await tested.subject.pass_time(tested.quiet)
        expect(not own.taken, PUBLISHED, "a node was told of its own event")
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
    """More events than a bus can hold: each is heard, or the others are told that they missed some."""
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
    """A node ends in good order: at once send says so."""
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
