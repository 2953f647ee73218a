"""Checks of cancelled methods, and of outages: what fails, how fast, and what is there again when they are over.

A method is cancelled at each of its first checkpoints in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mcp_actors.abc.shared import OpenState, SessionPlace, TaskBounds
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.testing.conformance.cancelling import cancelled_at_step
from mcp_actors.testing.conformance.rules import Check, expect
from mcp_actors.testing.shared_state.events import BusSubscriber, append_kept
from mcp_actors.testing.shared_state.stored_tasks import next_value
from mcp_actors.testing.shared_state.subject import (
    CANCELLED,
    FLUSHED,
    FORGOTTEN,
    KEPT,
    MISSED,
    NAME,
    OPENED,
    REACHED,
    REPLAYED,
    ROOMY,
    UNAVAILABLE,
    StateUnderTest,
    make_task,
)

__all__ = ["CANCELLED_METHODS", "OUTAGES"]


# -- cancelled methods ---------------------------------------------------------------------------------

STEPS = 8
LARGE = 1 << 40


async def _at_each_step(
    act: Callable[[], Awaitable[object]], judge: Callable[[int], Awaitable[None]]
) -> None:
    """Runs ``act`` cancelled at its first checkpoint, then at later ones, and ``judge`` after each."""

    async def run() -> None:
        await act()

    for step in range(STEPS):
        was_cancelled = await cancelled_at_step(step, run)
        await judge(step)
        if not was_cancelled:
            return


async def cancelled_creations_leave_a_task_or_none(tested: StateUnderTest) -> None:
    """A cancelled ``create`` left a task that is read, listed and counted, or nothing."""
    async with tested.node() as node:
        records = [make_task(tested, node, owner=f"owner {number}") for number in range(STEPS)]
        index = 0

        async def create() -> None:
            await node.tasks.create(records[index], ROOMY)

        async def judge(step: int) -> None:
            nonlocal index
            record = records[index]
            await tested.subject.pass_time(tested.quiet)
            bounds = TaskBounds(1, 1000, LARGE, LARGE)
            # First, because on a slow disk it waits behind the cancelled one, and reading does not.
            counted = await node.tasks.create(make_task(tested, node, owner=record.owner), bounds) is not None
            there = bool(await node.tasks.get([record.id]))
            listed = record.id in [each.id for each in await node.tasks.page(record.owner, None, 10)]
            expect(
                there == listed == counted,
                CANCELLED,
                f"create, cancelled at checkpoint {step}: read {there}, listed {listed}, counted {counted}",
            )
            index += 1

        await _at_each_step(create, judge)


async def cancelled_replacements_leave_one_value(tested: StateUnderTest) -> None:
    """A cancelled ``replace`` left the old value or the new one, and the one after it is kept."""
    async with tested.node() as node:
        record = make_task(tested, node)
        await node.tasks.create(record, ROOMY)
        value = record

        async def replace() -> None:
            await node.tasks.replace(next_value(value, message=f"at {value.revision + 1}"))

        async def judge(step: int) -> None:
            nonlocal value
            await tested.subject.pass_time(tested.quiet)
            # On a slow disk it waits behind the cancelled one, and reading does not.
            await node.tasks.create(make_task(tested, node), ROOMY)
            there = (await node.tasks.get([record.id]))[record.id]
            new = next_value(value, message=f"at {value.revision + 1}")
            expect(there in (value, new), CANCELLED, f"replace, cancelled at checkpoint {step}, left {there}")
            value = next_value(there, message="after")
            expect(await node.tasks.replace(value), CANCELLED, "after a cancelled replace none is kept")

        await _at_each_step(replace, judge)


async def cancelled_uses_are_first_uses_or_none(tested: StateUnderTest) -> None:
    """After a cancelled ``first_use`` of a name, and one that was not, the name is used."""
    async with tested.node() as node:
        index = 0

        async def use() -> None:
            await node.replays.first_use(b"%d" % index, 60)

        async def judge(step: int) -> None:
            nonlocal index
            await tested.subject.pass_time(tested.quiet)
            await node.replays.first_use(b"%d" % index, 60)
            again = await node.replays.first_use(b"%d" % index, 60)
            expect(
                not again, CANCELLED, f"after a first_use cancelled at checkpoint {step} a name is used twice"
            )
            index += 1

        await _at_each_step(use, judge)


async def cancelled_calls_disturb_nothing(tested: StateUnderTest) -> None:
    """Reading methods, ``register`` and ``send`` are cancelled at each checkpoint, and work the next time."""
    async with tested.nodes() as nodes:
        node = nodes[0]
        sender = nodes[1] if node.bus.spans_processes else node
        got: list[bytes] = []
        address, _ = node.bus.open_mailbox(got.append)
        record = make_task(tested, node)
        await node.tasks.create(record, ROOMY)
        ids = await append_kept(tested, node, "session", "a", [b"1", b"2"])
        place = SessionPlace(address, "alice", True)

        async def get() -> bool:
            return dict(await node.tasks.get([record.id])) == {record.id: record}

        async def page() -> bool:
            return [each.id for each in await node.tasks.page("alice", None, 10)] == [record.id]

        async def abandoned() -> bool:
            return not await node.tasks.abandoned(10)

        async def after() -> bool:
            replay = await node.events.after("session", ids[0])
            return replay is not None and len(replay.events) == 1

        async def register() -> bool:
            await node.sessions.register("session", "alice", address)
            return await node.sessions.find("session") == place

        async def send() -> bool:
            return await sender.bus.send(address, b"x")

        for act in (get, page, abandoned, after, register, send):

            async def judge(step: int, act: Callable[[], Awaitable[bool]] = act) -> None:
                name = act.__name__
                with tested.soon(CANCELLED, f"after {name} was cancelled at checkpoint {step}, it hangs"):
                    works = await act()
                    expect(works, CANCELLED, f"after {name} was cancelled at checkpoint {step}, it fails")

            await _at_each_step(act, judge)
        expect(set(got) == {b"x"}, CANCELLED, "a message was changed by a cancelled send")


CANCELLED_METHODS = (
    Check(cancelled_creations_leave_a_task_or_none, CANCELLED),
    Check(cancelled_replacements_leave_one_value, CANCELLED),
    Check(cancelled_uses_are_first_uses_or_none, CANCELLED),
    Check(cancelled_calls_disturb_nothing, CANCELLED),
)


# -- outages -------------------------------------------------------------------------------------------


async def unreachable_state_says_so(tested: StateUnderTest) -> None:
    """During an outage every method that waits raises its error in time, and none of the others does anything."""
    assert tested.subject.cut is not None
    assert tested.subject.mend is not None
    async with tested.nodes() as (node, other):
        address, _ = other.bus.open_mailbox(lambda message: None)
        record = make_task(tested, node)
        await node.tasks.create(record, ROOMY)
        ids = await append_kept(tested, node, "session", "a", [b"1"])
        own_address, _ = node.bus.open_mailbox(lambda message: None)
        position = node.bus.position
        handed = ["first", "second"]
        for session in handed:
            await node.sessions.register(session, "alice", own_address)
        await tested.subject.cut()
        calls: list[tuple[str, bool, Callable[[], Awaitable[object]]]] = [
            (
                "register",
                node.sessions.spans_processes,
                lambda: node.sessions.register("s", "alice", address),
            ),
            ("find", node.sessions.spans_processes, lambda: node.sessions.find("s")),
            (
                "hand_over",
                node.sessions.spans_processes,
                lambda: node.sessions.hand_over({handed.pop(): b"1"}, 60),
            ),
            (
                "take_over",
                node.sessions.spans_processes,
                lambda: node.sessions.take_over("s", "alice", address),
            ),
            ("after", node.events.spans_processes, lambda: node.events.after("session", ids[0])),
            ("since", node.bus.spans_processes, lambda: node.bus.since(position)),
            ("shut", node.bus.spans_processes, lambda: node.bus.shut(own_address)),
            ("send", node.bus.spans_processes, lambda: node.bus.send(address, b"x")),
            ("create", node.tasks.spans_processes, lambda: node.tasks.create(make_task(tested, node), ROOMY)),
            ("get", node.tasks.spans_processes, lambda: node.tasks.get([record.id])),
            ("replace", node.tasks.spans_processes, lambda: node.tasks.replace(next_value(record))),
            ("page", node.tasks.spans_processes, lambda: node.tasks.page("alice", None, 10)),
            ("abandoned", node.tasks.spans_processes, lambda: node.tasks.abandoned(10)),
            ("load", node.values.spans_processes, lambda: node.values.load("alice")),
            ("replace_value", node.values.spans_processes, lambda: node.values.replace("a", None, b"1", 60)),
            ("first_use", node.replays.spans_processes, lambda: node.replays.first_use(b"n", 60)),
        ]
        for _ in range(2):
            for name, spans, call in calls:
                with tested.soon(UNAVAILABLE, f"{name} does not end during an outage", tested.subject.bound):
                    try:
                        await call()
                        answered = True
                    except SharedStateUnavailable:
                        answered = False
                    expect(answered != spans, UNAVAILABLE, f"{name}, during an outage: answered={answered}")
        _use_without_waiting(node)
        with tested.soon(OPENED, "open does not end during an outage", tested.subject.bound):
            try:
                async with tested.subject.share().open(NAME):
                    opened = True
            except SharedStateUnavailable:
                opened = False
            needed = any(spans for _, spans, _ in calls)
            expect(opened != needed, OPENED, f"during an outage opened={opened}")
        await tested.subject.mend()


def _use_without_waiting(node: OpenState) -> None:
    for number in range(100):
        node.sessions.forget(f"never {number}")
        node.events.append("another", "a", b"1", None)
        node.events.end("another", "a")
        node.events.go_on("another", {"a": "1"})
        node.events.forget("another")
        node.bus.publish("task", str(number))
        node.bus.open_mailbox(lambda message: None)[1]()
        node.bus.subscribe(lambda topic, key: None, lambda: None)()


async def outages_end_by_themselves(tested: StateUnderTest) -> None:
    """An outage longer than a lease: afterwards sessions, mailboxes, events, tasks and subscribers are there again."""
    assert tested.subject.cut is not None
    assert tested.subject.mend is not None
    async with tested.nodes() as (node, other):
        got: list[bytes] = []
        address, _ = other.bus.open_mailbox(got.append)
        for session in ("stays", "goes"):
            await other.sessions.register(session, "alice", address)
        record = make_task(tested, other)
        await other.tasks.create(record, ROOMY)
        ids = await append_kept(tested, other, "stays", "a", [b"1", b"2"])
        listener = BusSubscriber(node)
        await tested.subject.pass_time(tested.quiet)
        await tested.subject.cut()
        other.sessions.forget("goes")
        for number in range(10):
            other.bus.publish("task", str(number))
        kept: list[tuple[bytes, bool]] = []
        late = other.events.append("stays", "late", b"0", lambda answer: kept.append((b"0", answer)))
        for data in (b"1", b"2"):
            other.events.append(
                "stays",
                "late",
                data,
                lambda answer, data=data: kept.append((data, answer)),  # type: ignore[misc]
            )
        await tested.subject.pass_time(tested.subject.lease * 1.5)
        await tested.subject.mend()
        await _expect_all_back(tested, node, other, address)
        if node.tasks.spans_processes:
            there = (await node.tasks.get([record.id])).get(record.id)
            expect(there == record, REACHED, "a task is not there any more after an outage")

            async def is_its_own() -> bool:
                return not await node.tasks.abandoned(10)

            await tested.until(
                is_its_own, REACHED, "after an outage tasks of a node that is there are abandoned"
            )
        if node.bus.spans_processes:
            await tested.until_true(
                lambda: listener.missed > 0 or {key for _, key in listener.taken} >= set("0123456789"),
                MISSED,
                "events of an outage were lost, and missed() was not called",
            )
        await tested.until_true(
            lambda: len(kept) == 3, KEPT, f"kept was called {len(kept)} times for 3 events"
        )
        answers = [answer for _, answer in kept]
        expect(
            [data for data, _ in kept] == [b"0", b"1", b"2"] and sorted(answers, reverse=True) == answers,
            KEPT,
            f"kept was called as {kept} for events of an outage",
        )
        replay = await node.events.after("stays", late) if node.events.spans_processes else None
        wanted = [b"1", b"2"] if all(answers) else None
        seen = None if replay is None else [data for _, data in replay.events]
        expect(
            not node.events.spans_processes or seen == wanted, KEPT, f"{kept}, and then {replay} is replayed"
        )
        replay = await (node if node.events.spans_processes else other).events.after("stays", ids[0])
        expect(
            replay is not None and len(replay.events) == 1,
            REPLAYED,
            "events before an outage are lost after it",
        )


async def _expect_all_back(tested: StateUnderTest, node: OpenState, other: OpenState, address: str) -> None:
    async def session_is_alive() -> bool:
        try:
            place = await node.sessions.find("stays")
        except SharedStateUnavailable:
            return False
        return place is not None and place.alive and place.address == address

    async def session_is_forgotten() -> bool:
        try:
            return await node.sessions.find("goes") is None
        except SharedStateUnavailable:
            return False

    async def mailbox_is_there() -> bool:
        try:
            return await node.bus.send(address, b"x")
        except SharedStateUnavailable:
            return False

    async def tasks_are_read() -> bool:
        try:
            await node.tasks.get(["never"])
        except SharedStateUnavailable:
            return False
        return True

    if node.sessions.spans_processes:
        await tested.until(session_is_alive, REACHED, "a session is not found after an outage")
        await tested.until(
            session_is_forgotten, FORGOTTEN, "a session forgotten during an outage is found after it"
        )
    if node.bus.spans_processes:
        await tested.until(mailbox_is_there, REACHED, "a mailbox is not there after an outage")
        listener = BusSubscriber(other)

        async def event_arrives() -> bool:
            node.bus.publish("task", "after")
            await trio.sleep(tested.quiet)
            return ("task", "after") in listener.taken

        await tested.until(event_arrives, REACHED, "no event arrives after an outage")
    await tested.until(tasks_are_read, REACHED, "tasks cannot be read after an outage")


async def _expect_never_missing(tested: StateUnderTest, node: OpenState, address: str) -> None:
    """An existing session is found, or refused until it is: a client that hears that it is gone would give it up."""

    async def session_is_found() -> bool:
        try:
            place = await node.sessions.find("stays")
        except SharedStateUnavailable:
            return False
        expect(place == SessionPlace(address, "alice", True), FLUSHED, f"after a flush find returned {place}")
        return True

    if node.sessions.spans_processes:
        await tested.until(session_is_found, FLUSHED, "after a flush a session cannot be found any more")


async def flushed_state_works_again(tested: StateUnderTest) -> None:
    """All is lost while two nodes are there: nothing is replayed with a gap, and both go on working."""
    assert tested.subject.flush is not None
    async with tested.nodes() as (node, other):
        address, _ = other.bus.open_mailbox(lambda message: None)
        for session in ("stays", "goes"):
            await other.sessions.register(session, "alice", address)
        ids = await append_kept(tested, other, "stays", "a", [b"1", b"2"])
        record = make_task(tested, other)
        await other.tasks.create(record, ROOMY)
        await tested.subject.flush()
        other.sessions.forget("goes")
        kept: list[bool] = []
        other.events.append("stays", "a", b"3", kept.append)
        if other.tasks.spans_processes:
            expect(
                not await other.tasks.replace(next_value(record)),
                FLUSHED,
                "a task that was lost was replaced",
            )
        await tested.until_true(lambda: len(kept) == 1, KEPT, "kept was not called after a flush")
        reader = node if node.events.spans_processes else other
        replay = await reader.events.after("stays", ids[0])
        expect(
            replay is None or [data for _, data in replay.events] == [b"2", b"3"],
            FLUSHED,
            f"{replay} was replayed after a flush, in place of two events or nothing",
        )
        await _expect_never_missing(tested, node, address)
        await _expect_all_back(tested, node, other, address)
        await append_kept(tested, other, "new", "a", [b"1", b"2"])
        again = make_task(tested, other)
        refused = await other.tasks.create(again, ROOMY)
        expect(refused is None, FLUSHED, f"after a flush create returned {refused!r}")

        async def is_its_own() -> bool:
            return not await node.tasks.abandoned(10)

        await tested.until(is_its_own, FLUSHED, "after a flush tasks of a node that is there are abandoned")


OUTAGES = (
    Check(unreachable_state_says_so, UNAVAILABLE, needs="cut"),
    Check(outages_end_by_themselves, REACHED, needs="cut"),
    Check(flushed_state_works_again, FLUSHED, needs="flush"),
)
