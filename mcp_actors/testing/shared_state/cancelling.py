"""Checks of what cancelling a method leaves behind, tried at each of its first checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcp_actors.abc.shared import SessionPlace, TaskBounds
from mcp_actors.testing.conformance.cancelling import cancelled_at_step
from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.events import append_kept
from mcp_actors.testing.shared_state.rules import CANCELLED
from mcp_actors.testing.shared_state.subject import ROOMY, StateUnderTest, make_task
from mcp_actors.testing.shared_state.tasks import next_value

__all__ = ["CANCELLED_METHODS"]

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
            # First, because on a slow disk it waits behind the cancelled one, and a look does not.
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
            # On a slow disk it waits behind the cancelled one, and a look does not.
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
