"""What a server's watchdog costs: the processor time of its thread, and that of a call with one and without.

::

    python -m benchmarks.watchdog
    python -m benchmarks.watchdog --rounds 2 --seconds 0.2      # a small one

Two processes each have a server and a client in memory, one of them a watchdog as `mcp-actors serve` has it. In a
window one of them makes calls without a pause, and the other one is idle. Of each round the ratio of the two is taken,
and of all rounds the median, so that what other programs do to the machine falls on both. The thread of the watchdog
has a clock of its own, which needs no comparison.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import trio

from mcp_actors import Client, Server
from mcp_actors.cli.serve_options import WATCHDOG

CALLS = 50


def clock_of_watchdog() -> int | None:
    """Returns the clock of the processor time of the watchdog's thread."""
    for each in threading.enumerate():
        if each.name == "mcp-actors-watchdog" and each.ident is not None:
            return time.pthread_getcpuclockid(each.ident)
    return None


def call(watchdog: float | None, orders: Connection) -> None:
    """Makes calls, or none, for as many seconds as it is told, and sends how many, with the seconds that passed, and
    the processor seconds of the loop's thread and of the watchdog's."""
    server = Server("watched", watchdog=watchdog)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async def main() -> None:
        async with Client(server) as client:
            clock = clock_of_watchdog()

            def now() -> tuple[float, float, float]:
                own = 0.0 if clock is None else time.clock_gettime(clock)
                return time.perf_counter(), time.thread_time(), own

            while (order := await trio.to_thread.run_sync(orders.recv)) is not None:
                seconds, is_idle = order
                calls, began = 0, now()
                if is_idle:
                    await trio.sleep(seconds)
                while not is_idle and time.perf_counter() - began[0] < seconds:
                    for _ in range(CALLS):
                        await client.call_tool("add", {"a": 1, "b": 2})
                    calls += CALLS
                orders.send((calls, *[after - before for after, before in zip(now(), began, strict=True)]))

    trio.run(main)


def percent(values: Sequence[float]) -> str:
    low, median, high = [each * 100 for each in statistics.quantiles(values, n=4)]
    return f"{median:+.2f} % (half of the rounds: {low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watchdog")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window (0.5)")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    children = []
    for watchdog in (None, WATCHDOG):
        pipe, theirs = context.Pipe()
        process = context.Process(target=call, args=(watchdog, theirs), daemon=True)
        process.start()
        children.append((process, pipe))
    plain, ratios, threads = [], [], []
    for number in range(options.rounds):
        found = {}
        for place in (0, 1) if number % 2 else (1, 0):
            pipe = children[place][1]
            pipe.send((options.seconds, False))
            found[place] = pipe.recv()
        (calls, _, loop, _), (watched_calls, took, watched_loop, own) = found[0], found[1]
        plain.append(loop / calls)
        ratios.append(watched_loop / watched_calls / plain[-1] - 1)
        threads.append(own / took)
    pipe = children[1][1]
    pipe.send((options.seconds * 20, True))
    _, took, loop, own = pipe.recv()
    for process, pipe in children:
        pipe.send(None)
        process.join()
    print(
        f"a call without a watchdog: {statistics.median(plain) * 1e6:.1f} us; load average {os.getloadavg()[0]:.1f}"
    )
    print(f"the loop's time for a call with one: {percent(ratios)}")
    print(f"the watchdog's thread beside it: {statistics.fmean(threads) * 100:.3f} % of a processor")
    print(f"idle: {own / took * 100:.3f} % of a processor, and the loop's thread {loop / took * 100:.3f} %")


if __name__ == "__main__":
    main()
