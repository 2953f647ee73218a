"""Shared state in memory keeps the contracts of `mcp_actors.abc.shared`, as far as one process can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from mcp_actors.shared import MemoryShared
from mcp_actors.testing import SharedStateSubject, check_shared_state


@asynccontextmanager
async def in_memory() -> AsyncIterator[SharedStateSubject]:
    async def do_nothing() -> None:
        await trio.lowlevel.checkpoint()

    yield SharedStateSubject(
        share=lambda: MemoryShared(clock=trio.current_time),
        cut=do_nothing,
        mend=do_nothing,
        flush=None,
    )


async def test_memory_keeps_the_contracts(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_shared_state(in_memory)
    assert "pages_survive_dropped_tasks" in report.passed
    assert {name for name, _ in report.skipped} == {
        "lost_nodes_are_gone",
        "tasks_of_a_lost_node_are_abandoned",
        "flushed_state_works_again",
    }
