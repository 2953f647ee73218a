"""The waiting time of 49 callers beside a greedy one, over HTTP: without it, with it, and with it where nothing limits.

::

    python -m benchmarks.fairness
    python -m benchmarks.fairness --rude          # the greedy one sends again at once what was refused
    python -m benchmarks.fairness --apart         # the greedy one has a processor of its own, as another machine has

A server in a process of its own has a tool that takes 100 ms of one of 32 places. Each of the 49 calls it, waits a
second, and calls again. The greedy one keeps 200 calls in flight, from a third process. Three kinds of windows take
turns, and what is compared is the 99th percentile of the 49's calls: alone; beside a 50th caller that keeps 16 calls in
flight, which is its share, so that the server has as much to answer as beside the greedy one; and beside that. The
first says what the greedy one costs the others, and the second how much of it is its greed. The server's processor time
is counted, since the machine is that of all three: the server is not charged for what the greedy process takes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import trio

from benchmarks.windows import Others, Window, processor_time, summary
from mcp_actors import Server
from mcp_actors.middleware import ConcurrencyLimit
from mcp_transports.http.server import HttpServerTransport

PLACES = 32
SECONDS = 0.1
PAUSE = 1.0
OTHERS = 49
CALL = {"name": "work", "arguments": {}}
HEAD = (
    "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json, text/event-stream\r\n"
    "content-type: application/json\r\nx-name: {name}\r\n{session}content-length: {length}\r\n\r\n"
)


def serve(limited: bool, reports: Connection) -> None:
    """Serves, and tells the port."""
    server = Server("fair")
    places = trio.CapacityLimiter(PLACES)
    if limited:
        server.middleware(ConcurrencyLimit(PLACES))

    @server.tool
    async def work() -> str:
        async with places:
            await trio.sleep(SECONDS)
        return "done"

    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", authenticate=lambda request: request.headers["x-name"], json_replies=True
    )
    server.run(transport, task_status=Telling(reports))


class Telling:
    """Tells the port when the server listens."""

    def __init__(self, reports: Connection) -> None:
        self._reports = reports

    def started(self, places: Any = None) -> None:
        self._reports.send(int(str(places[0]).rpartition(":")[2].split("/")[0]))


class Caller:
    """A connection of one principal, with a session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._session = ""
        self._received = bytearray()

    async def open(self, port: int) -> Caller:
        self._stream = await trio.open_tcp_stream("127.0.0.1", port)
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        await self.post("initialize", params, id=0)
        await self.post("notifications/initialized", {})
        return self

    async def post(self, method: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Sends a message and returns the answer, empty for none."""
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more})
        head = HEAD.format(name=self._name, session=self._session, length=len(body))
        await self._stream.send_all((head + body).encode())
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            self._received += await self._more()
        lines = self._received[:end].decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines[1:]]
        headers = {name.lower(): value for name, value in pairs}
        if "mcp-session-id" in headers:
            self._session = f"mcp-session-id: {headers['mcp-session-id']}\r\n"
        whole = end + 4 + int(headers.get("content-length", 0))
        while len(self._received) < whole:
            self._received += await self._more()
        answer = bytes(self._received[end + 4 : whole])
        del self._received[:whole]
        return json.loads(answer) if answer else {}

    async def _more(self) -> bytes:
        data = await self._stream.receive_some()
        if not data:
            raise SystemExit("the server has closed a connection")
        return bytes(data)


def attack(port: int, calls: int, rude: bool, apart: bool, orders: Connection) -> None:
    """Keeps calls in flight during each window that it is sent, and reports how many were answered and refused."""
    if apart:
        os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    counts = {"answered": 0, "refused": 0}
    # It takes the part of another machine, and must not take the processor from the callers that are measured.
    os.nice(10)

    async def one(caller: Caller, ends: float) -> None:
        while trio.current_time() < ends:
            answer = await caller.post("tools/call", CALL, id=1)
            error = answer.get("error")
            counts["answered" if error is None else "refused"] += 1
            if error is not None and error["code"] != 429:
                raise SystemExit(f"the greedy caller was answered with {error}")
            if error is not None and not rude:
                await trio.sleep(error["data"]["retryAfterMs"] / 1000)

    async def main() -> None:
        callers = [await Caller("greedy").open(port) for _ in range(calls)]
        orders.send("ready")
        while (order := await trio.to_thread.run_sync(orders.recv)) is not None:
            seconds, in_flight = order
            ends = trio.current_time() + seconds
            async with trio.open_nursery() as nursery:
                for caller in callers[:in_flight]:
                    nursery.start_soon(one, caller, ends)
            orders.send(dict(counts))
            counts.update(answered=0, refused=0)

    trio.run(main)


async def window(callers: list[Caller], seconds: float) -> list[float]:
    """Returns the milliseconds that each call took, sorted."""
    took: list[float] = []
    ends = trio.current_time() + seconds

    async def one(caller: Caller, first: float) -> None:
        await trio.sleep(first)
        while trio.current_time() < ends:
            began = time.perf_counter()
            await caller.post("tools/call", CALL, id=1)
            took.append((time.perf_counter() - began) * 1000)
            await trio.sleep(PAUSE)

    async with trio.open_nursery() as nursery:
        for number, caller in enumerate(callers):
            nursery.start_soon(one, caller, PAUSE * number / len(callers))
    return sorted(took)


def percentile(took: list[float], share: float) -> float:
    return took[min(int(len(took) * share), len(took) - 1)]


async def compare(port: int, orders: Connection, pids: list[int], options: argparse.Namespace) -> None:
    callers = [await Caller(f"caller {number}").open(port) for number in range(OTHERS)]
    await window(callers, 1.0)
    kinds = {"alone": 0, "beside its share": PLACES // 2, "beside the greedy one": options.calls}
    every: dict[str, list[float]] = {kind: [] for kind in kinds}
    ratios: dict[str, list[Window]] = {kind: [] for kind in kinds}
    first = 0.0
    for _ in range(options.windows):
        for kind, in_flight in kinds.items():
            others = Others(pids)
            if in_flight:
                orders.send((options.seconds + 1.0, in_flight))
                await trio.sleep(0.5)
            used = processor_time(pids[:1])
            took = await window(callers, options.seconds)
            used = (processor_time(pids[:1]) - used) / options.seconds
            counts = await trio.to_thread.run_sync(orders.recv) if in_flight else {}
            every[kind].extend(took)
            p99 = percentile(took, 0.99)
            if kind == "alone":
                first = p99
            ratios[kind].append(Window(p99 / first, others.share()))
            print(
                f"  {kind:22} p50 {percentile(took, 0.5):6.1f} p99 {p99:6.1f} ms, {p99 / first:.2f}x; the server used "
                f"{used:.0%} of a processor; {counts}; other programs {ratios[kind][-1].others:.0%}",
                flush=True,
            )
    alone = percentile(sorted(every["alone"]), 0.99)
    for kind, took in every.items():
        p99 = percentile(sorted(took), 0.99)
        print(
            f"  all calls {kind}: p99 {p99:.1f} ms, {p99 / alone:.2f}x; {summary(ratios[kind])}", flush=True
        )


def measure(limited: bool, options: argparse.Namespace) -> None:
    print("ConcurrencyLimit(32)" if limited else "no limit", flush=True)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(limited, there), daemon=True)
    server.start()
    if options.apart:
        for pid in (0, server.pid or 0):
            os.sched_setaffinity(pid, {0})
    try:
        port = here.recv()
        orders, taken = context.Pipe()
        given = (port, options.calls, options.rude, options.apart, taken)
        greedy = context.Process(target=attack, args=given, daemon=True)
        greedy.start()
        try:
            orders.recv()
            pids = [each.pid for each in (server, greedy) if each.pid is not None]
            trio.run(compare, port, orders, pids, options)
            orders.send(None)
            greedy.join(10)
        finally:
            greedy.terminate()
    finally:
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=7, help="of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--calls", type=int, default=200, help="that the greedy one keeps in flight")
    parser.add_argument("--rude", action="store_true", help="it does not wait when it is refused")
    parser.add_argument(
        "--apart", action="store_true", help="it has the last processor, the others the first"
    )
    parser.add_argument("--limited", action="store_true", help="only the server that limits")
    parser.add_argument("--unlimited", action="store_true", help="only the server that limits nothing")
    options = parser.parse_args()
    for limited in (True, False):
        if not (options.unlimited if limited else options.limited):
            measure(limited, options)


if __name__ == "__main__":
    main()
