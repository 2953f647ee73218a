"""Calls through a gateway with 200 upstreams for 2,000 clients, while one upstream stalls and another one floods.

::

    python -m benchmarks.isolation
    python -m benchmarks.isolation --upstreams 20 --clients 100 --rate 300 --seconds 1 --windows 1      # a small one

A gateway in a process of its own serves HTTP. 198 of its upstreams are the least server there is, over TCP, in another
process. Of the clients half are legacy sessions and half have none; together they make so many calls a second at
upstreams of all, in an open loop: a call's time counts from when it was due. Windows take turns, and what is compared
is the 99th percentile of these calls: alone; beside a stalled upstream, which reads nothing, while ten clients call it
without end; beside a flooding one, which sends log messages, progress, changes of lists and results of a megabyte as
fast as it can be read, while ten clients call it; and beside both. The gateway has a processor of its own, and the two
and their clients have what the others leave of the rest, as programs on another machine would take none of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

import trio

from benchmarks.fairness import Telling, percentile
from benchmarks.suite.programs.floor import serve_sockets
from benchmarks.windows import Others, Window, processor_time, summary
from mcp_actors import Client
from mcp_actors.cli.bench.field import run_blocking
from mcp_actors.cli.bench.http import HttpField
from mcp_actors.cli.bench.plan import Calls, Era, answer_to, id_of
from mcp_actors.errors import McpError
from mcp_actors.gateway import Gateway, Upstream
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.server import HttpServerTransport

STALLED, FLOODING = "stalled", "flooding"
KINDS: dict[str, tuple[str, ...]] = {
    "alone": (),
    "beside the stalled one": (STALLED,),
    "beside the flooding one": (FLOODING,),
    "beside both": (STALLED, FLOODING),
}
ERAS: tuple[Era, ...] = ("legacy", "modern")
CALLERS_OF_BAD = 10
MEBIBYTE = 2**20
# Seconds that a window has before its calls count: the bad ones begin, and what they fill is full.
LEAD = 0.5
GRACE = 30.0
LAST = 19
TICK = 0.001
BAD_TIMEOUT = 10.0
LOOK_EVERY = 0.02
LOG = {"level": "error", "data": "x" * 200}


def serve_good(count: int, first: bool, reports: Connection) -> None:
    """Serves the upstreams that are as they should be, and tells their ports."""
    come_first(first)

    async def main() -> None:
        listeners = [(await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] for _ in range(count)]
        reports.send([each.socket.getsockname()[1] for each in listeners])
        await serve_sockets(listeners)

    trio.run(main)


def serve_bad(orders: Connection) -> None:
    """Serves the stalled and the flooding upstream, sends their ports, and lets those misbehave that it is sent."""
    os.setpriority(os.PRIO_PROCESS, 0, LAST)
    bad: set[str] = set()
    flood = (
        line("notifications/message", LOG) * 100
        + line("notifications/tools/list_changed", {})
        + line("notifications/progress", {"progressToken": 1, "progress": 1}) * 10
    ) * 5

    async def handle(name: str, stream: trio.SocketStream) -> None:
        lock = trio.Lock()

        async def send(data: bytes) -> None:
            async with lock:
                await stream.send_all(data)

        async def flood_it() -> None:
            while True:
                if FLOODING in bad:
                    await send(flood)
                else:
                    await trio.sleep(LOOK_EVERY)

        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream, trio.open_nursery() as nursery:
                if name == FLOODING:
                    nursery.start_soon(flood_it)
                rest = b""
                while data := await stream.receive_some():
                    *lines, rest = (rest + data).split(b"\n")
                    for each in lines:
                        if (text := answer(json.loads(each))) is not None:
                            await send(text)
                    while name == STALLED and STALLED in bad:  # noqa: ASYNC110 - nothing tells when it ends
                        await trio.sleep(LOOK_EVERY)
                nursery.cancel_scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ports = {}
            for name in (STALLED, FLOODING):
                [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
                ports[name] = listener.socket.getsockname()[1]

                async def serve(stream: trio.SocketStream, name: str = name) -> None:
                    await handle(name, stream)

                nursery.start_soon(trio.serve_listeners, serve, [listener])
            orders.send(ports)
            while (order := await trio.to_thread.run_sync(orders.recv)) is not None:
                bad.clear()
                bad.update(order)
            nursery.cancel_scope.cancel()

    trio.run(main)


def come_first(wanted: bool) -> None:
    """Lets this process run before all others of the machine, which are not measured."""
    if wanted:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def line(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


def answer(request: dict[str, Any]) -> bytes | None:
    """Answers as a legacy server does; a call with a megabyte."""
    if "id" not in request or "method" not in request:
        return None
    text = {"type": "text", "text": "x" * MEBIBYTE}
    schema = {"type": "object"}
    answers: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
            "serverInfo": {"name": "bad", "version": "0"},
        },
        "tools/list": {"tools": [{"name": "add", "inputSchema": schema}]},
        "tools/call": {"content": [text], "isError": False},
        "ping": {},
        "logging/setLevel": {},
    }
    found = answers.get(request["method"])
    error = {"error": {"code": -32601, "message": "method not found"}}
    outcome = error if found is None else {"result": found}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}).encode() + b"\n"


def serve_gateway(ports: dict[str, int], first: bool, reports: Connection) -> None:
    """Serves the gateway, and tells its port."""
    os.sched_setaffinity(0, {0})
    come_first(first)
    upstreams = [Upstream(name=name, target=f"tcp://127.0.0.1:{port}") for name, port in ports.items()]
    limits = HttpLimits(connections=20_000)
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", limits=limits, json_replies=True)
    Gateway(upstreams).run(transport, task_status=Telling(reports))


def call_bad(port: int, orders: Connection) -> None:
    """Calls those that are bad, from ten clients each without end, and says how many were answered or failed."""
    os.setpriority(os.PRIO_PROCESS, 0, LAST)
    counts = {"answered": 0, "failed": 0}
    bad: set[str] = set()

    async def one(name: str, client: Client) -> None:
        while True:
            if name not in bad:
                await trio.sleep(LOOK_EVERY)
                continue
            try:
                await client.call_tool(f"{name}_add", {})
                counts["answered"] += 1
            except McpError:
                counts["failed"] += 1

    async def main() -> None:
        async with AsyncExitStack() as stack:
            clients = []
            for name in (STALLED, FLOODING):
                for _ in range(CALLERS_OF_BAD):
                    client = Client(f"http://127.0.0.1:{port}/mcp", era="legacy", timeout=BAD_TIMEOUT)
                    clients.append((name, await stack.enter_async_context(client)))
            nursery = await stack.enter_async_context(trio.open_nursery())
            for name, client in clients:
                nursery.start_soon(one, name, client)
            orders.send("ready")
            while (order := await trio.to_thread.run_sync(orders.recv)) is not None:
                bad.clear()
                bad.update(order)
                orders.send(dict(counts))
                counts.update(answered=0, failed=0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def open_field(era: Era, port: int) -> HttpField:
    def opener() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), GRACE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return connection

    return HttpField(era, opener, f"127.0.0.1:{port}", "/mcp")


class Load:
    """The clients of one era, each with a connection of its own, and the calls that they make."""

    def __init__(self, era: Era, port: int, clients: int, upstreams: list[str]) -> None:
        self._chance = random.Random(era)
        self._field = open_field(era, port)
        self._lanes = [run_blocking(self._field.begin()) for _ in range(clients)]
        self._calls = [Calls(era, f"{name}_add") for name in upstreams]
        self._ids = itertools.count(1)

    def window(self, rate: float, seconds: float) -> list[float]:
        """Makes calls at a rate, each of a client at random; returns the milliseconds that each took."""
        clock, took, due_of = time.perf_counter, list[float](), dict[int, float]()
        begun, number, total = clock(), 0, round(rate * seconds)
        while number < total or due_of:
            while number < total and (due := begun + number / rate) <= clock():
                id = next(self._ids)
                self._field.post(self._chance.choice(self._lanes), self._chance.choice(self._calls)[id])
                due_of[id] = due
                number += 1
            if clock() > begun + seconds + GRACE:
                raise SystemExit(f"{len(due_of)} calls were not answered within {GRACE:g} s")
            arrived = run_blocking(self._field.arrivals(clock()))
            if not arrived:
                # Looking without end would take the processor from the upstreams.
                time.sleep(TICK)
            now = clock()
            for _, data in arrived:
                id_found = id_of(data)
                if id_found in due_of:
                    answer_to(data)
                    took.append((now - due_of.pop(id_found)) * 1000)
        return took


def window_of(loads: list[Load], rate: float, seconds: float) -> list[float]:
    """Returns what the calls of all loads took, each of which has a thread, sorted."""
    with ThreadPoolExecutor() as threads:
        parts = threads.map(lambda load: load.window(rate / len(loads), seconds), loads)
        return sorted(itertools.chain.from_iterable(parts))


def compare(
    loads: list[Load], servers: Connection, callers: Connection, pids: list[int], options: Any
) -> float:
    """Returns the median ratio of the 99th percentile beside both to that alone."""
    every: dict[str, list[float]] = {kind: [] for kind in KINDS}
    ratios: dict[str, list[Window]] = {kind: [] for kind in KINDS}
    window_of(loads, options.rate, 1.0)
    for _ in range(options.windows):
        alone = 0.0
        for kind, bad in KINDS.items():
            for orders in (servers, callers):
                orders.send(bad)
            callers.recv()
            window_of(loads, options.rate, LEAD)
            others, used = Others(pids), processor_time(pids[:1])
            took = window_of(loads, options.rate, options.seconds)
            share = (processor_time(pids[:1]) - used) / options.seconds
            servers.send(())
            callers.send(())
            counts = callers.recv()
            every[kind].extend(took)
            p99 = percentile(took, 0.99)
            alone = alone or p99
            ratios[kind].append(Window(p99 / alone, others.share()))
            print(
                f"  {kind:24} p50 {percentile(took, 0.5):6.1f} p99 {p99:6.1f} ms, {p99 / alone:.2f}x; the gateway used "
                f"{share:.0%} of a processor; the bad ones' calls: {counts}; other programs {others.share():.0%}",
                flush=True,
            )
    alone = percentile(sorted(every["alone"]), 0.99)
    for kind, each in every.items():
        p99 = percentile(sorted(each), 0.99)
        print(
            f"  all calls {kind}: p99 {p99:.1f} ms, {p99 / alone:.2f}x; {summary(ratios[kind])}", flush=True
        )
    return statistics.median(window.value for window in ratios["beside both"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstreams", type=int, default=200, help="with the two that are bad")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=800.0, help="calls a second of all clients")
    parser.add_argument("--windows", type=int, default=5, help="of each kind")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument(
        "--first", action="store_true", help="before all other programs of the machine, which needs root"
    )
    options = parser.parse_args(arguments)
    come_first(options.first)
    # The gateway has the first processor.
    os.sched_setaffinity(0, set(range(1, os.cpu_count() or 1)) or {0})
    context = multiprocessing.get_context("spawn")
    processes = []

    def begin(target: Any, *arguments: Any) -> Connection:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*arguments, there), daemon=True)
        process.start()
        processes.append(process)
        return here

    try:
        good = begin(serve_good, options.upstreams - 2, options.first)
        bad = begin(serve_bad)
        ports = {f"u{number}": port for number, port in enumerate(good.recv())}
        gateway = begin(serve_gateway, ports | bad.recv(), options.first)
        port = gateway.recv()
        callers = begin(call_bad, port)
        loads = [Load(era, port, options.clients // 2, list(ports)) for era in ERAS]
        callers.recv()
        pids = [each.pid for each in (processes[2], *processes[:2], processes[3]) if each.pid is not None]
        compare(loads, bad, callers, pids, options)
    finally:
        for process in processes:
            process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
