"""Steps that tasks of an asyncio loop post at about the same time, and how often the engine is woken for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mcp_actors.bridges.asyncio_bridge import MOST_TURNS, AsyncioBridge


class Engine:
    """An engine that takes steps without running them."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.wakes: list[list[Any]] = []

    def hold(self, step: Callable[[], object]) -> None:
        self.held.append(step())

    def wake(self) -> None:
        self.wakes.append(self.held)
        self.held = []


def bridge_and_engine() -> tuple[AsyncioBridge, Engine]:
    engine: Any = Engine()
    return AsyncioBridge(asyncio.get_running_loop(), engine), engine


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_steps_of_one_turn_and_of_the_next_ones_wake_the_engine_once() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()

        async def post(number: int, turn: int) -> None:
            await turns(turn)
            bridge.post_together(lambda: number)

        async with asyncio.TaskGroup() as tasks:
            for number, turn in enumerate((0, 0, 0, 1, 2, 3)):
                tasks.create_task(post(number, turn))
        await turns(3)
        assert engine.wakes == [[0, 1, 2, 3, 4, 5]]

    asyncio.run(run())


def test_a_step_alone_waits_for_no_other() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()
        for number in range(3):
            bridge.post_together(lambda number=number: number)
            await turns(1)
        assert engine.wakes == [[0], [1], [2]]

    asyncio.run(run())


def test_a_loop_that_has_steps_in_every_turn_wakes_the_engine_now_and_then() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()
        for number in range(10 * MOST_TURNS):
            bridge.post_together(lambda number=number: number)
            bridge.post_together(lambda number=number: number)
            await turns(1)
        await turns(3)
        assert max(len(each) for each in engine.wakes) <= 2 * (MOST_TURNS + 2)
        assert [step for wake in engine.wakes for step in wake] == [
            number for number in range(10 * MOST_TURNS) for _ in range(2)
        ]

    asyncio.run(run())
