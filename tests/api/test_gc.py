"""A server that owns its process lets the garbage collector rest; one that is embedded touches nothing."""

from __future__ import annotations

import gc
from typing import Any

import trio

from mcp_actors import Server


class Looks:
    """A transport that has a look at the collector and is done."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    async def serve(
        self, handler: Any, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started("here")
        self.seen.append(gc.get_threshold())


def test_only_a_server_that_is_run_has_rare_full_passes() -> None:
    before, looks = gc.get_threshold(), Looks()
    trio.run(Server("embedded").serve, looks)
    Server("run").run(looks)
    assert looks.seen[0] == before
    assert looks.seen[1] != before
    assert gc.get_threshold() == before
