"""How often a call switches between tasks, which costs more than everything else that is done for it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.supervision.task_kinds import CALL_WORKER

CALLS = 20
ROUNDS = 12


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and those of the tasks in which a server's calls run."""

    def __init__(self) -> None:
        self.count = 0
        self.of_calls = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        self.of_calls += task.name.partition(" ")[0] == CALL_WORKER.name


def adding() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def steps_of_calls(client: Client) -> int:
    """Calls a tool again and again, and returns the steps of all tasks meanwhile."""
    await client.call_tool("add", {"a": 1, "b": 1})
    await trio.testing.wait_all_tasks_blocked()
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for number in range(CALLS):
        result = await client.call_tool("add", {"a": number, "b": 1})
        assert result.text == str(number + 1)
    trio.lowlevel.remove_instrument(steps)
    return steps.count


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_call_in_memory_is_one_step_of_its_own_task_and_one_of_its_caller(era: str) -> None:
    async with Client(adding(), era=era) as client:  # type: ignore[arg-type]
        assert await steps_of_calls(client) == 2 * CALLS


async def test_a_client_that_follows_changes_takes_no_more_steps() -> None:
    async with Client(adding(), era="modern", on_change=lambda kind, uri: None) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert await steps_of_calls(client) == 2 * CALLS


async def test_calls_that_come_together_and_do_not_wait_share_a_step() -> None:
    async with Client(adding()) as client:
        await client.call_tool("add", {"a": 1, "b": 1})
        for _ in range(ROUNDS):
            await trio.testing.wait_all_tasks_blocked()
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            async with trio.open_nursery() as nursery:
                for number in range(CALLS):
                    nursery.start_soon(client.call_tool, "add", {"a": number, "b": 1})
            trio.lowlevel.remove_instrument(steps)
            # The first one finds the connection idle, and runs before the others are read.
            assert 1 <= steps.of_calls <= 2
