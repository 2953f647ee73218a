"""A great many calls through the asyncio face, in loops that come and go; in the end nothing may be left of them.

::

    python -m benchmarks.soak_asyncio --calls 1000000

Calls are plain, report progress, ask back, are cancelled at any time or run out of it. Loops end in order, with an
exception, with a client left open, and closed in mid-call. At points between and at the end the process is
measured: tasks of the engine, threads, futures of asyncio, descriptors, children, objects and memory. Raises
`AssertionError` where something is left or a call got a wrong answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks.soak_server import hanging, server
from benchmarks.suite.process import resident_kib
from mcp_actors.asyncio import Client
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.supervision.task_kinds import BRIDGED_CALL
from mcp_actors.types import ElicitResult

__all__ = ["Levels", "Soak"]

CALLERS = 16
CALLS_OF_A_LOOP = 800
# Every so many loops one has a server in a process of its own.
LOOPS_OF_A_CHILD = 10
POINTS = 10
# Seconds in which the engine must notice the end of a loop by itself.
QUIET_WITHIN = 15.0
LOOK_EVERY = 0.1
# Caches of the interpreter and of the engine fill for a while: less than one object in so many calls is not a leak.
CALLS_OF_AN_OBJECT = 1000
SPARE_OBJECTS = 1500
# The allocator keeps pages for itself.
SPARE_KIB = 6 * 1024
CHILD = [sys.executable, "-m", "benchmarks.soak_server"]


COUNTED = ("tasks", "threads", "futures", "descriptors", "children")


class Ended(Exception):
    """Ends a loop from within."""


@dataclass(frozen=True)
class Levels:
    """The amounts of what a process holds. A thread that Trio keeps for ten seconds counts as no thread."""

    tasks: int
    threads: int
    futures: int
    descriptors: int
    children: int
    objects: int
    kib: int

    @classmethod
    def now(cls) -> Levels:
        # It is the first to ask for the engine, so that even the fresh levels have its thread and its descriptors.
        tasks = engine_tasks()
        for _ in range(3):
            gc.collect()
        found = gc.get_objects()
        futures = sum(isinstance(each, asyncio.Future) for each in found)
        objects = len(found)
        del found
        children = [each.read_text().split() for each in Path("/proc/self/task").glob("*/children")]
        threads = [each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")]
        return cls(
            tasks,
            len(threads),
            futures,
            len(os.listdir("/proc/self/fd")),
            sum(map(len, children)),
            objects,
            resident_kib(os.getpid()),
        )

    def is_quiet(self, fresh: Levels) -> bool:
        """Whether nothing runs and nothing is open that was not before the first call."""
        return not hanging and all(getattr(self, name) <= getattr(fresh, name) for name in COUNTED)

    def is_small(self, warm: Levels, calls: int) -> bool:
        """Whether so many calls have left nothing in memory."""
        objects = SPARE_OBJECTS + calls / CALLS_OF_AN_OBJECT
        return self.objects <= warm.objects + objects and self.kib <= warm.kib + SPARE_KIB


def engine_tasks() -> int:
    """Returns the number of tasks in the engine's loop, without those that are kept for calls to come."""
    answer: queue.SimpleQueue[int] = queue.SimpleQueue()
    engine_thread().post(lambda: answer.put(sum(not is_kept(each) for each in tasks_of(current_root()))))
    return answer.get(timeout=QUIET_WITHIN)


def current_root() -> trio.lowlevel.Task:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return root


def tasks_of(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield root
    for nursery in root.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks_of(child)


def is_kept(task: trio.lowlevel.Task) -> bool:
    """Whether it waits for a call: then it has the context of no caller."""
    return task.name == BRIDGED_CALL.name and task.context.get(calling_bridge) is None


class Soak:
    """``loops`` are the kinds of loops; ``done`` counts calls by what became of them."""

    def __init__(self, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.complaints: list[str] = []
        self._chance = random.Random(seed)
        self._number = 0
        self.loops: dict[str, Callable[[Any, int], None]] = {
            "in order": self._in_order,
            "raising": self._raising,
            "left open": self._left_open,
            "cancelled": self._cancelled,
            "closed early": self._closed_early,
        }

    @property
    def calls(self) -> int:
        return sum(number for name, number in self.done.items() if not name.startswith("loops"))

    def loop(self, turn: int, calls: int) -> None:
        """One loop from its beginning to its end."""
        names = list(self.loops)
        target = CHILD if turn % LOOPS_OF_A_CHILD == LOOPS_OF_A_CHILD - 1 else server
        kind = names[turn % len(names)]
        self.loops[kind](target, calls)
        self.done[f"loops {kind}"] += 1

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _work(self, client: Any, calls: int) -> None:
        async def caller() -> None:
            for _ in range(calls // CALLERS):
                await self._one(client)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    async def _one(self, client: Any) -> None:
        chance = self._chance.random()
        kinds: list[tuple[float, Callable[[Any], Awaitable[str]]]] = [
            (0.60, self._plain),
            (0.75, self._reported),
            (0.85, self._taken_back),
            (0.92, self._out_of_time),
            (0.97, self._asked),
            (1.00, self._beside_a_failure),
        ]
        kind = next(function for below, function in kinds if chance < below)
        self.done[await kind(client)] += 1

    async def _plain(self, client: Any) -> str:
        self._number += 1
        text = str(self._number)
        result = await client.call_tool("echo", {"text": text})
        assert result.content[0].text == text
        return "plain"

    async def _reported(self, client: Any) -> str:
        reports = []

        async def later(progress: Any) -> None:
            await asyncio.sleep(0)
            reports.append(progress.progress)

        def at_once(progress: Any) -> None:
            reports.append(progress.progress)

        function = self._chance.choice((later, at_once))
        count = self._chance.randint(1, 4)
        await client.call_tool("steps", {"count": count}, on_progress=function)
        assert reports == list(range(1, count + 1)), reports
        return "with progress"

    async def _taken_back(self, client: Any) -> str:
        """Cancels a call after some turns of the loop, or in the function that gets its report."""
        self._number += 1
        tool = self._chance.choice(("hang", "echo"))
        arguments: dict[str, Any] = {"number": self._number} if tool == "hang" else {"text": "x"}
        turns = self._chance.randint(0, 12)
        reported = asyncio.Event()

        async def report(_: Any) -> None:
            reported.set()
            await asyncio.sleep(0)

        on_progress = report if tool == "hang" and turns % 2 else None
        task = asyncio.create_task(client.call_tool(tool, arguments, on_progress=on_progress))
        if on_progress is not None:
            await reported.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        assert tool == "echo"
        return "done before it was cancelled"

    async def _out_of_time(self, client: Any) -> str:
        self._number += 1
        try:
            async with asyncio.timeout(self._chance.uniform(0, 0.004)):
                await client.call_tool("hang", {"number": self._number})
        except TimeoutError:
            return "out of time"
        raise AssertionError("a call that hangs has returned")

    async def _asked(self, client: Any) -> str:
        result = await client.call_tool("ask", {})
        assert result.content[0].text == "Ada", result
        return "with a question"

    async def _beside_a_failure(self, client: Any) -> str:
        self._number += 1

        async def fail() -> None:
            await asyncio.sleep(0)
            raise Ended

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(client.call_tool("hang", {"number": self._number}))
                group.create_task(fail())
        return "cancelled by its group"

    @staticmethod
    async def _answer(_: Any) -> ElicitResult:
        await asyncio.sleep(0)
        return ElicitResult(action="accept", content={"name": "Ada"})

    def _client(self, target: Any) -> Any:
        return Client(target, elicitation=self._answer, era=self._chance.choice(("legacy", "modern")))

    # -- loops -------------------------------------------------------------------------------------------------------

    def _in_order(self, target: Any, calls: int) -> None:
        async def main() -> None:
            async with self._client(target) as client:
                await self._work(client, calls)

        asyncio.run(main())

    def _raising(self, target: Any, calls: int) -> None:
        async def main() -> None:
            async with self._client(target) as client:
                await self._work(client, calls)
                raise Ended

        with contextlib.suppress(Ended):
            asyncio.run(main())

    def _left_open(self, target: Any, calls: int) -> None:
        async def main() -> None:
            await self._work(await self._client(target).open(), calls)

        asyncio.run(main())

    def _cancelled(self, target: Any, calls: int) -> None:
        """Ends the loop with calls in flight, which ``asyncio.run`` cancels."""

        async def main() -> None:
            client = await self._client(target).open()
            await self._work(client, calls)
            await self._begin_hanging(client)

        asyncio.run(main())

    def _closed_early(self, target: Any, calls: int) -> None:
        """Closes the loop with calls in flight, and without a word to the engine."""
        loop = asyncio.new_event_loop()
        # By default it would report each task that is left, which is intended here.
        loop.set_exception_handler(lambda _loop, _context: None)

        async def main() -> None:
            client = await self._client(target).open()
            await self._work(client, calls)
            await self._begin_hanging(client)

        loop.run_until_complete(main())
        loop.close()

    async def _begin_hanging(self, client: Any) -> None:
        tasks = []
        for turns in range(CALLERS):
            self._number += 1
            tasks.append(asyncio.create_task(client.call_tool("hang", {"number": self._number})))
            self.done["in flight at the end of its loop"] += 1
            for _ in range(turns % 3):
                await asyncio.sleep(0)
        await asyncio.sleep(0)


def settled(fresh: Levels) -> Levels:
    """Returns the levels when all is quiet, or at the latest after `QUIET_WITHIN` seconds."""
    deadline = time.monotonic() + QUIET_WITHIN
    while not (levels := Levels.now()).is_quiet(fresh) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    return levels


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak_asyncio")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    soak = Soak(options.seed)
    sys.unraisablehook = lambda hooked: soak.complaints.append(repr(hooked.exc_value))
    each = min(CALLS_OF_A_LOOP, max(CALLERS, options.calls // (4 * LOOPS_OF_A_CHILD)))
    started = time.monotonic()
    fresh = warm = Levels.now()
    print("fresh", asdict(fresh), flush=True)
    turn = 0
    for point in range(POINTS + 1):
        # Each kind of loop runs with each kind of server before memory is measured for the first time.
        while turn < 2 * LOOPS_OF_A_CHILD or soak.calls < options.calls * point / POINTS:
            soak.loop(turn, each)
            turn += 1
        levels = settled(fresh)
        warm = warm if point else levels
        print(f"{soak.calls:,} calls, {time.monotonic() - started:.0f} s", asdict(levels), flush=True)
        assert levels.is_quiet(fresh), f"left of {fresh}: {levels}, {len(hanging)} calls that hang"
        assert levels.is_small(warm, soak.calls), f"grown from {warm}: {levels}"
        assert not soak.complaints, soak.complaints[:3]
    print(dict(soak.done))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
