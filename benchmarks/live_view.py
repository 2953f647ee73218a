"""What it costs a server under full load that ``mcp-actors top`` looks at it.

::

    python -m benchmarks.live_view --windows 10

Clients in a process of their own make calls over HTTP, many in flight, in windows of some seconds, two and two: in one
of each pair ``mcp-actors top`` runs on a pseudo-terminal and draws a snapshot a second. It compares the calls a second,
and the processor time that the server spends on a call, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import trio

from benchmarks.windows import QUIET, Others, Window, processor_time, summary
from mcp_actors import Client

PROGRAM = """
from mcp_actors import Server
server = Server("adding")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
# Seconds for `top` to be imported, which do not count, and what it draws then.
_LONGEST_START = 30.0
_DRAWN = b"q quit"


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, int]]:
    """A server: its URL, the place of its admin endpoint, and the id of its process."""
    program, admin = folder / "adding.py", f"unix:{folder}/admin.sock"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mcp_actors", "serve", str(program)]
    command += ["--listen", "http://127.0.0.1:0/mcp", "--admin", admin]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[-1], admin, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def looking(admin: str) -> Iterator[int]:
    """``mcp-actors top`` on a terminal of 100 columns; the id of its process."""
    master, slave = _terminal()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "mcp_actors", "top", admin]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(slave)
        drawn = threading.Event()
        drain = threading.Thread(target=_drain, args=(master, drawn), daemon=True)
        drain.start()
        drawn.wait(_LONGEST_START)
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            drain.join()
            os.close(master)


def _terminal() -> tuple[int, int]:
    if sys.platform != "win32":
        return pty.openpty()
    raise SystemExit("Windows has no pseudo-terminals")


def _drain(master: int, drawn: threading.Event) -> None:
    try:
        while data := os.read(master, 65536):
            if _DRAWN in data:
                drawn.set()
    except OSError:
        # The other side is closed.
        return


async def _calls(client: Client, end: float, made: list[int]) -> None:
    while time.perf_counter() < end:
        await client.call_tool("add", {"a": 1, "b": 2})
        made[0] += 1


async def window(
    clients: list[Client], each: int, pid: int, top: list[int], seconds: float
) -> tuple[Window, Window]:
    """Returns calls a second, and microseconds of the server's processor time for a call.

    What ``top`` takes of the machine itself is not counted as that of other programs.
    """
    made, others, before, began = [0], Others([pid, *top]), processor_time([pid]), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for client in clients:
            for _ in range(each):
                nursery.start_soon(_calls, client, began + seconds, made)
    spent, took, share = processor_time([pid]) - before, time.perf_counter() - began, others.share()
    return Window(made[0] / took, share), Window(spent / made[0] * 1e6, share)


async def measure(options: argparse.Namespace, url: str, admin: str, pid: int) -> None:
    async with AsyncExitStack() as opened:
        clients = [
            await opened.enter_async_context(Client(url, era="legacy")) for _ in range(options.clients)
        ]
        each = options.in_flight // options.clients
        await window(clients, each, pid, [], options.seconds)
        rates: dict[bool, list[Window]] = {False: [], True: []}
        costs: dict[bool, list[Window]] = {False: [], True: []}
        for pair in range(options.windows):
            # In turns, so that what changes slowly on the machine favours neither.
            for watched in (False, True) if pair % 2 else (True, False):
                with ExitStack() as stack:
                    top = [stack.enter_context(looking(admin))] if watched else []
                    rate, cost = await window(clients, each, pid, top, options.seconds)
                rates[watched].append(rate)
                costs[watched].append(cost)
    for watched, name in ((False, "no viewer"), (True, "top is attached")):
        print(
            f"{name}: calls a second {summary(rates[watched])}; us of the server a call {summary(costs[watched])}"
        )
    print(f"processor time of the server for a call, with top / without: {_ratio(costs[True], costs[False])}")
    print(f"calls a second, without top / with: {_ratio(rates[False], rates[True])}")


def _ratio(windows: list[Window], others: list[Window]) -> str:
    """Returns the ratio of neighbouring windows: the median of all pairs, their quartiles, and the quiet pairs."""
    pairs = list(zip(windows, others, strict=True))
    ratios = [one.value / other.value for one, other in pairs]
    text = f"median {statistics.median(ratios):.3f}"
    if len(ratios) > 1:
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive")
        text += f", half of them {first:.3f} to {third:.3f}, all {min(ratios):.3f} to {max(ratios):.3f}"
    quiet = [one.value / other.value for one, other in pairs if max(one.others, other.others) <= QUIET]
    return f"{text}; {statistics.median(quiet):.3f} of {len(quiet)} quiet pairs" if quiet else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=10, help="of each kind")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--clients", type=int, default=8, help="each with a session")
    parser.add_argument("--in-flight", type=int, default=64, help="calls of all clients together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (url, admin, pid):
        trio.run(measure, options, url, admin, pid)


if __name__ == "__main__":
    main()
