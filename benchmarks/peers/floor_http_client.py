"""The floor of a client: bare httpx2 under Trio POSTs the same call, and decodes the answer."""

from __future__ import annotations

import json
import sys
import time

import httpx2
import trio

from benchmarks.http.load import open_session
from benchmarks.http.wire import FIRST_ID, call
from benchmarks.load import Era


async def measure(
    client: httpx2.AsyncClient, request: httpx2.Request, window: int, seconds: float
) -> dict[str, float]:
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            response = await client.post(request.url, content=request.content, headers=request.headers)
            assert json.loads(response.content)["result"]["structuredContent"]["total"] > 0
            done += 1

    started, cpu_started = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(window):
            nursery.start_soon(caller)
    cpu_used = time.process_time() - cpu_started
    return {"per_second": done / (time.perf_counter() - started), "cpu_us": cpu_used / done * 1e6}


async def main(url: str, era: str, window: int, seconds: float) -> None:
    which: Era = "legacy" if era == "legacy" else "modern"
    port = httpx2.URL(url).port or 80
    session = open_session(port) if which == "legacy" else ""
    head, _, body = call(port, which, session, FIRST_ID, "add", {"a": 1, "b": 1}).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    request = httpx2.Request("POST", url, headers=headers, content=body)
    limits = httpx2.Limits(max_connections=window, max_keepalive_connections=window)
    async with httpx2.AsyncClient(limits=limits, timeout=30.0) as client:
        await measure(client, request, window, min(0.5, seconds))
        print(json.dumps(await measure(client, request, window, seconds)))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
