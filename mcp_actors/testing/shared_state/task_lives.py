"""Checks of how long the tasks of a store live: their time, their node, their processes."""

from __future__ import annotations

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.rules import ABANDONED, EXPIRED, SURVIVES
from mcp_actors.testing.shared_state.subject import ROOMY, StateUnderTest, make_task
from mcp_actors.testing.shared_state.tasks import next_value

__all__ = ["TASK_LIVES"]


async def tasks_live_for_their_time(tested: StateUnderTest) -> None:
    """A task whose time is over is not read, replaced or listed any more, and makes room; others stay."""
    short = tested.quiet * 5
    async with tested.node() as node:
        over = make_task(tested, node, ttl=short)
        stays = [make_task(tested, node, ttl=3600.0), make_task(tested, node, ttl=None)]
        ended = make_task(tested, node, ttl=short)
        for record in (over, *stays, ended):
            await node.tasks.create(record, ROOMY)
        await node.tasks.replace(next_value(ended, state="completed", outcome=b"{}"))
        expect(
            len(await node.tasks.get([over.id, ended.id])) == 2, EXPIRED, "a task was dropped before its time"
        )
        await tested.subject.pass_time(short * 1.2)
        there = set(await node.tasks.get([each.id for each in (over, *stays, ended)]))
        expect(
            there == {each.id for each in stays},
            EXPIRED,
            f"{len(there)} tasks are there, two of them having time",
        )
        expect(not await node.tasks.replace(next_value(over)), EXPIRED, "a task was replaced after its time")
        page = [each.id for each in await node.tasks.page("alice", None, 10)]
        expect(page == [each.id for each in stays], EXPIRED, "a task is listed after its time, or not in it")
        large = 1 << 40
        refused = await node.tasks.create(make_task(tested, node), TaskBounds(3, 3, large, large))
        expect(refused is None, EXPIRED, f"create returned {refused!r}: tasks whose time is over take room")


async def tasks_of_a_node_that_ended_are_abandoned(tested: StateUnderTest) -> None:
    """A node ends in good order. Its tasks that have not ended are reported, those of nodes that are there are not."""
    async with tested.node() as stays:
        if not stays.tasks.spans_processes:
            expect(not await stays.tasks.abandoned(10), ABANDONED, "tasks of the only node are abandoned")
            return
        own = make_task(tested, stays)
        await stays.tasks.create(own, ROOMY)
        async with tested.node() as leaves:
            records = [
                make_task(tested, leaves, state=state) for state in ("working", "input_required", "working")
            ]
            for record in records:
                await leaves.tasks.create(record, ROOMY)
            ended = make_task(tested, leaves)
            await leaves.tasks.create(ended, ROOMY)
            await leaves.tasks.replace(next_value(ended, state="completed", outcome=b"{}"))
            for node in (stays, leaves):
                early = await node.tasks.abandoned(10)
                expect(not early, ABANDONED, f"{len(early)} tasks of nodes that are there are abandoned")
        await _expect_abandoned(tested, await stays.tasks.abandoned(10), records)
        few = await stays.tasks.abandoned(2)
        expect(len(few) == 2, ABANDONED, f"of three abandoned tasks, two being asked for, {len(few)} came")
        taken = next_value(records[0], node=stays.node, runs=2)
        expect(await stays.tasks.replace(taken), ABANDONED, "an abandoned task could not be taken over")
        failed = next_value(records[1], state="failed", outcome=b"{}")
        expect(await stays.tasks.replace(failed), ABANDONED, "an abandoned task could not be ended")
        await _expect_abandoned(tested, await stays.tasks.abandoned(10), records[2:])


async def _expect_abandoned(tested: StateUnderTest, got: object, wanted: list[TaskRecord]) -> None:
    assert isinstance(got, (list, tuple))
    ids = sorted(each.id for each in got)
    expect(
        ids == sorted(each.id for each in wanted),
        ABANDONED,
        f"{len(ids)} of {len(wanted)} are abandoned, or others",
    )


async def tasks_of_a_lost_node_are_abandoned(tested: StateUnderTest) -> None:
    """A node vanishes without a word: its tasks are abandoned once its lease is over, and those of live nodes never."""
    assert tested.subject.lose is not None
    async with tested.node() as stays:
        if not stays.tasks.spans_processes:
            return
        async with tested.node() as lost, tested.node() as other:
            live = make_task(tested, other)
            record, ended = make_task(tested, lost), make_task(tested, lost)
            for each in (live, record, ended):
                await stays.tasks.create(each, ROOMY)
            await lost.tasks.replace(next_value(ended, state="failed", outcome=b"{}"))
            await tested.subject.lose(lost)
            for _ in range(8):
                await tested.subject.pass_time(tested.subject.lease / 4)
                found = await stays.tasks.abandoned(10)
                wrong = [each.id for each in found if each.id != record.id]
                expect(not wrong, ABANDONED, "a task is abandoned that has ended, or whose node is there")
            await _expect_abandoned(tested, list(found), [record])


async def tasks_survive_their_processes(tested: StateUnderTest) -> None:
    """All nodes end; a new one reads every task, and those that had not ended are abandoned."""
    async with tested.node() as node:
        if not node.tasks.survives:
            return
        record, ended = make_task(tested, node), make_task(tested, node)
        for each in (record, ended):
            await node.tasks.create(each, ROOMY)
        last = next_value(ended, state="completed", outcome=b'{"result":{}}')
        await node.tasks.replace(last)
    async with tested.node() as node:
        there = dict(await node.tasks.get([record.id, ended.id]))
        expect(
            there == {record.id: record, ended.id: last},
            SURVIVES,
            f"{len(there)} of two tasks are left, or changed",
        )
        await _expect_abandoned(tested, list(await node.tasks.abandoned(10)), [record])


TASK_LIVES = (
    Check(tasks_live_for_their_time, EXPIRED),
    Check(tasks_of_a_node_that_ended_are_abandoned, ABANDONED),
    Check(tasks_of_a_lost_node_are_abandoned, ABANDONED, needs="lose"),
    Check(tasks_survive_their_processes, SURVIVES),
)
