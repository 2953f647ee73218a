"""Our client in a program without a loop, a thread for each call: ``client_sync WORK``. See `scenarios.clients`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.suite.loading import load_files
from mcp_actors import Server
from mcp_actors.errors import ConnectFailed
from mcp_actors.sync import Client

CONNECT_WITHIN_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.02


def measure(add: Callable[[int], int], window: int, seconds: float) -> dict[str, float]:
    """See `calling.measure`. With one call in flight the main thread is the caller, as it is in most programs."""
    deadline = time.perf_counter() + seconds

    def caller() -> int:
        done = 0
        while time.perf_counter() < deadline:
            assert add(done) == done + 1
            done += 1
        return done

    started, cpu_started = time.perf_counter(), time.process_time()
    if window == 1:
        done = caller()
    else:
        with ThreadPoolExecutor(window) as threads:
            done = sum(each.result() for each in [threads.submit(caller) for _ in range(window)])
    cpu, elapsed = time.process_time() - cpu_started, time.perf_counter() - started
    return {"in_flight": window, "calls": done, "seconds": elapsed, "cpu": cpu}


def opened(work: dict[str, Any]) -> Client:
    target: Server | str = work["url"]
    if work["url"] == "memory:":
        target = importlib.import_module("benchmarks.suite.programs.ours").server
    deadline = time.monotonic() + CONNECT_WITHIN_SECONDS
    while True:
        try:
            return Client(target, era="legacy" if work["era"] == "legacy" else "auto").open()
        except ConnectFailed:
            # The server may be one that has just been started.
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY_SECONDS)


def main(work: dict[str, Any]) -> None:
    load_files(work["loads"])
    client = opened(work)
    try:

        def add(number: int) -> int:
            result = client.call_tool("add", {"a": number, "b": 1})
            total: int = result.structured_content["total"]
            return total

        measure(add, max(work["windows"]), work["warm_up"])
        print(json.dumps([measure(add, window, work["seconds"]) for window in work["windows"]]))
    finally:
        client.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
