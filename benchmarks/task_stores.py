"""How many steps a second the task stores take, and what a task costs them.

::

    python -m benchmarks.task_stores memory: sqlite:/tmp/state.db unix:///tmp/redis.sock

Each store gets ``--tasks`` tasks, with an argument of 100 bytes and a result of 200, from ``--at-once`` Trio tasks.
"""

from __future__ import annotations

import argparse
import secrets
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from mcp_actors.abc.shared import TaskBounds, TaskRecord, TaskStore
from mcp_actors.shared import shared_state

ROOMY = TaskBounds(1 << 30, 1 << 30, 1 << 50, 1 << 50)


def make_record(node: str) -> TaskRecord:
    now = time.time()
    return TaskRecord(
        id=secrets.token_urlsafe(16),
        owner="alice",
        tool="work",
        version="any",
        request=bytes(100),
        created=now,
        updated=now,
        ttl=3600.0,
        poll_interval=1.0,
        node=node,
    )


async def timed(
    records: Sequence[TaskRecord], act: Callable[[TaskRecord], Awaitable[object]], at_once: int
) -> float:
    left = iter(records)

    async def work() -> None:
        for record in left:
            await act(record)

    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
    return len(records) / (time.perf_counter() - begin)


def ended(record: TaskRecord) -> TaskRecord:
    return msgspec.structs.replace(record, revision=1, state="completed", outcome=bytes(200))


async def measure(store: TaskStore, node: str, tasks: int, at_once: int) -> dict[str, float]:
    records = [make_record(node) for _ in range(tasks)]
    return {
        "create": await timed(records, lambda record: store.create(record, ROOMY), at_once),
        "get": await timed(records, lambda record: store.get([record.id]), at_once),
        "replace": await timed(records, lambda record: store.replace(ended(record)), at_once),
    }


async def run(options: argparse.Namespace) -> None:
    for url in options.urls:
        async with shared_state(url).open(f"benchmark {secrets.token_hex(4)}") as state:
            for at_once in options.at_once:
                rates = await measure(state.tasks, state.node, options.tasks, at_once)
                shown = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())
                print(f"{url}, {at_once} at once: {shown}", flush=True)
        if url == "memory:":
            tracemalloc.start()
            async with shared_state(url).open("benchmark") as state:
                before, _ = tracemalloc.get_traced_memory()
                await measure(state.tasks, state.node, options.tasks, 1)
                after, _ = tracemalloc.get_traced_memory()
                print(f"{url}, bytes per task: {(after - before) / options.tasks:,.0f}")
            tracemalloc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 64])
    trio.run(run, parser.parse_args())
