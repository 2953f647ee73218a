"""Checks of the replay guard."""

from __future__ import annotations

from functools import partial

from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.rules import USED_ONCE
from mcp_actors.testing.shared_state.subject import StateUnderTest, all_at_once

__all__ = ["REPLAYS"]


async def names_are_used_once(tested: StateUnderTest) -> None:
    """Names of any bytes, at the same and at another node, and 20 uses at once."""
    async with tested.nodes() as nodes:
        used = nodes if nodes[0].replays.spans_processes else nodes[:1]
        for name in (b"", b"\x00", b"\x00\x00", b"\xff\xfe", b"a b", b"*", b"x" * 64):
            expect(await used[0].replays.first_use(name, 60), USED_ONCE, f"{name!r} counts as used before")
            for node in used:
                again = await node.replays.first_use(name, 60)
                expect(not again, USED_ONCE, f"{name!r} was taken twice")
        acts = [
            partial(used[number % len(used)].replays.first_use, b"all at once", 60) for number in range(20)
        ]
        taken = sum(await all_at_once(acts))
        expect(taken == 1, USED_ONCE, f"of 20 uses of one name at the same time {taken} were the first")


async def names_are_free_after_their_time(tested: StateUnderTest) -> None:
    """A name is free when its seconds are over, not earlier, and a longer one beside it is not."""
    seconds = tested.quiet * 5
    async with tested.node() as node:
        for name, time in ((b"short", seconds), (b"long", 3600.0)):
            await node.replays.first_use(name, time)
        expect(not await node.replays.first_use(b"short", seconds), USED_ONCE, "a name was free at once")
        await tested.subject.pass_time(seconds * 1.2)
        expect(await node.replays.first_use(b"short", 60), USED_ONCE, "a name was not free after its time")
        expect(not await node.replays.first_use(b"long", 60), USED_ONCE, "a name was free before its time")


async def many_names_are_remembered(tested: StateUnderTest) -> None:
    """Many names are used, and the first of them is still known."""
    async with tested.node() as node:
        names = [b"%d" % number for number in range(tested.many)]
        for begin in range(0, len(names), 50):
            part = [partial(node.replays.first_use, name, 3600) for name in names[begin : begin + 50]]
            taken = sum(await all_at_once(part))
            expect(taken == len(part), USED_ONCE, f"of {len(part)} new names {taken} counted as new")
        for name in names[:50]:
            expect(not await node.replays.first_use(name, 3600), USED_ONCE, "an early name was forgotten")


REPLAYS = (
    Check(names_are_used_once, USED_ONCE),
    Check(names_are_free_after_their_time, USED_ONCE),
    Check(many_names_are_remembered, USED_ONCE),
)
