"""Checks of the task store: creating, bounds, replacing and pages, and how long tasks live.

The life of a task depends on its time, its node and its processes.
"""

from __future__ import annotations

from functools import partial

import msgspec

from mcp_actors.abc.shared import OpenState, TaskBounds, TaskRecord
from mcp_actors.testing.conformance.rules import Check, expect
from mcp_actors.testing.shared_state.subject import (
    ABANDONED,
    BOUNDS,
    COMPARED,
    CREATED,
    EXPIRED,
    LAST_VALUE,
    PAGES,
    ROOMY,
    SURVIVES,
    StateUnderTest,
    all_at_once,
    make_task,
)

__all__ = ["TASK_LIVES", "TASK_STORES", "next_value"]


# -- the task store ------------------------------------------------------------------------------------

LARGE = 1 << 40


def next_value(record: TaskRecord, **changes: object) -> TaskRecord:
    """Returns the next value of a task."""
    return msgspec.structs.replace(record, revision=record.revision + 1, **changes)


def _with(nodes: list[OpenState]) -> list[OpenState]:
    return nodes if nodes[0].tasks.spans_processes else nodes[:1]


async def created_tasks_are_read_everywhere(tested: StateUnderTest) -> None:
    """Tasks with odd and with empty members are read at every node as they were given, and others are not."""
    async with tested.nodes() as nodes:
        odd = make_task(
            tested,
            nodes[0],
            owner="é\x00 漢",
            ttl=None,
            state="input_required",
            message="a\nb 漢",
            questions=b'{"a":1}',
            answers=b'{"b":2}',
            restartable=True,
            runs=3,
            created=tested.subject.now() - 0.123456789,
        )
        done = make_task(
            tested, nodes[0], owner="", state="completed", outcome=b"\x00\xff" * 50_000, revision=7
        )
        records = {each.id: each for each in (odd, done, make_task(tested, nodes[0]))}
        for record in records.values():
            refused = await nodes[0].tasks.create(record, ROOMY)
            expect(refused is None, CREATED, f"create returned {refused!r} although there was room")
            for node in _with(nodes):
                found = dict(await node.tasks.get([record.id]))
                expect(
                    found == {record.id: record},
                    CREATED,
                    f"{str(found)[:300]} was read for {str(record)[:300]}",
                )
        for node in _with(nodes):
            some = await node.tasks.get([*records, "never", odd.id])
            expect(
                dict(some) == records, CREATED, f"of three tasks and one that never was {len(some)} were read"
            )
            nothing = dict(await node.tasks.get([]))
            expect(not nothing, CREATED, "tasks were read that were not asked for")


async def bounds_are_kept(tested: StateUnderTest) -> None:
    """Each bound is reached and no further; another owner has room, and what was refused is not there."""
    async with tested.node() as node:
        weight = make_task(tested, node).weight
        for bounds, room, answer in (
            (TaskBounds(3, 100, LARGE, LARGE), 3, "owner"),
            (TaskBounds(100, 5, LARGE, LARGE), 2, "all"),
            (TaskBounds(100, 100, weight * 7 - 1, LARGE), 1, "owner"),
            (TaskBounds(100, 100, LARGE, weight * 9), 3, "all"),
        ):
            for _ in range(room):
                refused = await node.tasks.create(make_task(tested, node), bounds)
                expect(refused is None, BOUNDS, f"create returned {refused!r} although {bounds} had room")
            last = make_task(tested, node)
            refused = await node.tasks.create(last, bounds)
            expect(
                refused == answer, BOUNDS, f"create returned {refused!r}, {bounds} having no room ({answer})"
            )
            expect(not await node.tasks.get([last.id]), BOUNDS, "a task that was refused is there")
        refused = await node.tasks.create(
            make_task(tested, node, owner="bob"), TaskBounds(9, 99, weight, LARGE)
        )
        expect(refused is None, BOUNDS, f"create returned {refused!r} to an owner without tasks")


async def results_count_against_bounds(tested: StateUnderTest) -> None:
    """The result of a task makes it heavier, and that of one owner does not count for another."""
    async with tested.node() as node:
        record = make_task(tested, node)
        await node.tasks.create(record, ROOMY)
        await node.tasks.replace(next_value(record, state="completed", outcome=b"x" * 10_000))
        bounds = TaskBounds(100, 100, 10_000, LARGE)
        refused = await node.tasks.create(make_task(tested, node), bounds)
        expect(
            refused == "owner",
            BOUNDS,
            f"create returned {refused!r}: a result of 10,000 bytes is not counted",
        )
        refused = await node.tasks.create(make_task(tested, node, owner="bob"), bounds)
        expect(refused is None, BOUNDS, f"create returned {refused!r}: another owner's result is counted")


async def bounds_are_kept_at_once(tested: StateUnderTest) -> None:
    """Twenty tasks are created at the same time at two nodes where there is room for five."""
    async with tested.nodes() as nodes:
        using = _with(nodes)
        records = [make_task(tested, using[number % len(using)]) for number in range(20)]
        bounds = TaskBounds(5, 100, LARGE, LARGE)
        acts = [
            partial(using[number % len(using)].tasks.create, record, bounds)
            for number, record in enumerate(records)
        ]
        kept = (await all_at_once(acts)).count(None)
        there = len(await nodes[0].tasks.get([record.id for record in records]))
        expect(kept == there == 5, BOUNDS, f"where five had room {kept} were created, and {there} are there")


async def only_the_next_value_is_kept(tested: StateUnderTest) -> None:
    """Values with the revision that is stored, one too old and one too new are not kept."""
    async with tested.nodes() as nodes:
        writer = _with(nodes)[-1]
        record = make_task(tested, nodes[0], revision=3)
        await nodes[0].tasks.create(record, ROOMY)
        for revision in (0, 2, 3, 5, 6):
            wrong = msgspec.structs.replace(record, revision=revision, message="wrong")
            kept = await writer.tasks.replace(wrong)
            there = (await nodes[0].tasks.get([record.id])).get(record.id)
            expect(not kept and there == record, COMPARED, f"revision {revision} was kept over revision 3")
        value = next_value(record, message="right", state="input_required", questions=b'{"q":1}')
        expect(await writer.tasks.replace(value), COMPARED, "the next value was not kept")
        for node in _with(nodes):
            there = (await node.tasks.get([record.id])).get(record.id)
            expect(there == value, COMPARED, f"{there} is read where {value} was kept")
        unknown = make_task(tested, nodes[0], revision=1)
        kept = await writer.tasks.replace(unknown)
        there_too = await writer.tasks.get([unknown.id])
        expect(not kept and not there_too, COMPARED, "a task that never was has been replaced")


async def one_of_several_values_wins(tested: StateUnderTest) -> None:
    """Twenty next values at the same time, from two nodes, ten times."""
    async with tested.nodes() as nodes:
        using = _with(nodes)
        for _ in range(10):
            record = make_task(tested, nodes[0])
            await nodes[0].tasks.create(record, ROOMY)
            values = [next_value(record, message=str(number)) for number in range(20)]
            acts = [
                partial(using[number % len(using)].tasks.replace, value)
                for number, value in enumerate(values)
            ]
            kept = await all_at_once(acts)
            there = (await nodes[0].tasks.get([record.id])).get(record.id)
            winners = [value for value, won in zip(values, kept, strict=True) if won]
            expect(winners == [there], COMPARED, f"{len(winners)} of 20 next values were kept")


async def terminal_values_are_the_last(tested: StateUnderTest) -> None:
    """A task that completed, failed or was cancelled keeps that value."""
    async with tested.nodes() as nodes:
        for state in ("completed", "failed", "cancelled"):
            record = make_task(tested, nodes[0])
            await nodes[0].tasks.create(record, ROOMY)
            last = next_value(record, state=state, outcome=b'{"result":{}}')
            expect(await nodes[0].tasks.replace(last), LAST_VALUE, f"a task could not become {state}")
            for other in ("working", "completed", "failed", "cancelled"):
                kept = await _with(nodes)[-1].tasks.replace(next_value(last, state=other, outcome=None))
                there = (await nodes[0].tasks.get([record.id])).get(record.id)
                expect(
                    not kept and there == last, LAST_VALUE, f"a {state} task was replaced by a {other} one"
                )


async def pages_are_whole(tested: StateUnderTest) -> None:
    """Two owners' tasks, created in turn, are paged through at each node, in pages of each size."""
    async with tested.nodes() as nodes:
        records = [make_task(tested, nodes[0], owner=("alice", "bob")[number % 2]) for number in range(14)]
        for record in records:
            await nodes[0].tasks.create(record, ROOMY)
        await nodes[0].tasks.replace(next_value(records[4], message="changed, not moved"))
        for node in _with(nodes):
            for owner in ("alice", "bob", "nobody"):
                wanted = [record.id for record in records if record.owner == owner]
                for limit in (1, 2, 3, 7, 100):
                    got: list[str] = []
                    page = await node.tasks.page(owner, None, limit)
                    while page and len(got) <= len(wanted):
                        expect(len(page) <= limit, PAGES, f"a page of {limit} has {len(page)} tasks")
                        got += [record.id for record in page]
                        page = await node.tasks.page(owner, got[-1], limit)
                    expect(got == wanted, PAGES, f"in pages of {limit} came {got}, in place of {wanted}")
            strange = await node.tasks.page("bob", records[0].id, 100)
            owners = {record.owner for record in strange}
            expect(owners <= {"bob"}, PAGES, "a page behind another owner's task has that owner's tasks")


async def pages_survive_dropped_tasks(tested: StateUnderTest) -> None:
    """The task at which a page ended is dropped, and others before and behind it, before the next page."""
    async with tested.node() as node:
        short, is_early = tested.quiet * 2.5, False
        # Nothing is known of a page that came when its tasks may have been dropped: then they get more time.
        while not is_early:
            short *= 2
            early, owner = tested.earlier_than(short), f"alice, {short} s"
            ttls = (None, short, short, 3600.0, short, 3600.0, None)
            records = [make_task(tested, node, ttl=ttl, owner=owner) for ttl in ttls]
            for record in records:
                await node.tasks.create(record, ROOMY)
            first = [record.id for record in await node.tasks.page(owner, None, 3)]
            is_early = early()
        expect(first == [record.id for record in records[:3]], PAGES, f"the first page was {first}")
        await tested.subject.pass_time(short * 1.2)
        rest = [record.id for record in await node.tasks.page(owner, first[-1], 10)]
        wanted = [records[index].id for index in (3, 5, 6)]
        expect(rest == wanted, PAGES, f"behind a task that was dropped came {rest}, in place of {wanted}")


TASK_STORES = (
    Check(created_tasks_are_read_everywhere, CREATED),
    Check(bounds_are_kept, BOUNDS),
    Check(results_count_against_bounds, BOUNDS),
    Check(bounds_are_kept_at_once, BOUNDS),
    Check(only_the_next_value_is_kept, COMPARED),
    Check(one_of_several_values_wins, COMPARED),
    Check(terminal_values_are_the_last, LAST_VALUE),
    Check(pages_are_whole, PAGES),
    Check(pages_survive_dropped_tasks, PAGES),
)


# -- the lives of tasks --------------------------------------------------------------------------------


async def tasks_live_for_their_time(tested: StateUnderTest) -> None:
    """A task whose time is over is not read, replaced or listed any more, and makes room; others stay."""
    short = tested.quiet * 5
    async with tested.node() as node:
        early = tested.earlier_than(short)
        over = make_task(tested, node, ttl=short)
        stays = [make_task(tested, node, ttl=3600.0), make_task(tested, node, ttl=None)]
        ended = make_task(tested, node, ttl=short)
        for record in (over, *stays, ended):
            await node.tasks.create(record, ROOMY)
        await node.tasks.replace(next_value(ended, state="completed", outcome=b"{}"))
        found = await node.tasks.get([over.id, ended.id])
        expect(len(found) == 2 or not early(), EXPIRED, "a task was dropped before its time")
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
