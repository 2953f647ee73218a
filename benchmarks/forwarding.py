"""A call on a session that another node holds beside a call at its own node, with two nodes and a Redis.

::

    python -m benchmarks.forwarding --windows 20
    python -m benchmarks.forwarding --redis redis://127.0.0.1:6379      # instead of one of its own, on a Unix socket

The two take turns in windows of half a second, with one call in flight. It says what each of the three processes spends
on a call.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.windows import Others, Window, processor_time, summary

PROGRAM = """
from mcp_actors import Server
server = Server("adding")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def redis(folder: Path) -> Iterator[tuple[str, int]]:
    """A Redis that keeps nothing on the disk: its URL and the id of its process."""
    path = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    with running(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        while not path.exists():
            time.sleep(0.01)
        yield f"unix://{path}", process.pid


@contextmanager
def node(program: Path, shared: str) -> Iterator[tuple[int, int]]:
    """A node: its port and the id of its process."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(program)]
    command += ["--listen", "http://127.0.0.1:0/mcp", "--shared", shared]
    with running(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        yield int(process.stderr.readline().rpartition(":")[2].split("/")[0]), process.pid


class Connection:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.session: dict[str, str] = {}

    def post(self, method: str, params: dict[str, Any], **more: Any) -> http.client.HTTPResponse:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more})
        self._connection.request("POST", "/mcp", body, {**HEADERS, **self.session})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 202) or b'"error"' in text:
            raise SystemExit(f"{method} was answered with {answer.status}: {text[:300]!r}")
        return answer

    def begin(self) -> None:
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        answer = self.post("initialize", params, id=0)
        self.session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        self.post("notifications/initialized", {})


def window(connection: Connection, pids: Sequence[int], seconds: float) -> tuple[Window, list[float]]:
    """Returns the median time of a call in milliseconds, and what each process spent on a call."""
    others, before = Others(pids), [processor_time([pid]) for pid in pids]
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.post("tools/call", CALL, id=1)
        took.append((time.perf_counter() - began) * 1000)
    spent = [(processor_time([pid]) - was) / len(took) * 1000 for pid, was in zip(pids, before, strict=True)]
    return Window(statistics.median(took), others.share()), spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window")
    parser.add_argument("--redis", metavar="URL", help="a Redis that is there already")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = folder / "adding.py"
        program.write_text(PROGRAM)
        url, *more = [options.redis] if options.redis else stack.enter_context(redis(folder))
        (here, holder), (there, other) = [stack.enter_context(node(program, url)) for _ in range(2)]
        pids = [holder, other, *more]
        local, forwarded = Connection(here), Connection(there)
        local.begin()
        forwarded.session = local.session
        kinds: dict[str, tuple[Connection, list[Window], list[list[float]]]] = {
            "at its node": (local, [], []),
            "at another node": (forwarded, [], []),
        }
        for connection, _, _ in kinds.values():
            window(connection, pids, options.seconds)
        differences: list[Window] = []
        for _ in range(options.windows):
            for connection, windows, spent in kinds.values():
                measured, costs = window(connection, pids, options.seconds)
                windows.append(measured)
                spent.append(costs)
            first, second = (windows[-1] for _, windows, _ in kinds.values())
            differences.append(Window(second.value - first.value, max(first.others, second.others)))
        for name, (_, windows, spent) in kinds.items():
            costs = [statistics.median(each) for each in zip(*spent, strict=True)]
            shown = ", ".join(
                f"{who} {cost:.2f}"
                for who, cost in zip(("holder", "other node", "Redis"), costs, strict=False)
            )
            print(f"ms of a call {name}: {summary(windows)}; processor time a call: {shown} ms")
        print(f"ms more at another node: {summary(differences)}")


if __name__ == "__main__":
    main()
