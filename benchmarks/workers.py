"""Calls a second of a tool that costs processor time: one process beside ``--workers``.

::

    python -m benchmarks.workers --rounds 20

Both servers are there all the time and take turns in windows of a second. The load comes over connections that are
kept, from a loop that needs a fiftieth of a processor.
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.windows import Others, Window, processor_time, summary

PROGRAM = """
import time
from mcp_actors import Server
server = Server("burning")

@server.tool
async def burn(milliseconds: float) -> None:
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        pass
"""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def request(port: int, milliseconds: float) -> bytes:
    params = {"name": "burn", "arguments": {"milliseconds": milliseconds}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: burn\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for one in lists for each in one.read_text().split()]


class Served:
    """A server, and connections to it."""

    def __init__(self, port: int, pids: Sequence[int], connections: int, milliseconds: float) -> None:
        self._pids = pids
        self.answered = 0
        self.processor_time = 0.0
        self._request = request(port, milliseconds)
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
        for each in self._sockets:
            self._selector.register(each, selectors.EVENT_READ)

    def window(self, seconds: float) -> Window:
        """Keeps a call in flight on each connection, and returns how many were answered in a second."""
        for each in self._sockets:
            each.sendall(self._request)
        others = Others(self._pids)
        used = processor_time(self._pids)
        answered, outstanding, began = 0, len(self._sockets), time.perf_counter()
        end = began + seconds
        while (now := time.perf_counter()) < end:
            for each in self._answered(end - now):
                answered += 1
                each.sendall(self._request)
        window = Window(answered / (time.perf_counter() - began), others.share())
        self.answered += answered
        self.processor_time += processor_time(self._pids) - used
        while outstanding:
            outstanding -= sum(1 for _ in self._answered(10.0))
        return window

    def _answered(self, timeout: float) -> Iterator[socket.socket]:
        for key, _ in self._selector.select(timeout):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            answer = sock.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"an answer is not 200: {answer[:300]!r}")
            yield sock


@contextmanager
def serving(words: Sequence[str], connections: int, milliseconds: float) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "burning.py"
        program.write_text(PROGRAM)
        command = [sys.executable, "-m", "mcp_actors", "serve", str(program)]
        command += ["--listen", "http://127.0.0.1:0/mcp", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                port = int(process.stderr.readline().rpartition(":")[2].split("/")[0])
                pids = [process.pid, *children(process.pid)]
                yield Served(port, pids, connections, milliseconds)
            finally:
                process.send_signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--milliseconds", type=float, default=2.0, help="processor time of a call")
    options = parser.parse_args()
    shape = (options.connections, options.milliseconds)
    ratios: list[Window] = []
    with ExitStack() as stack:
        one = stack.enter_context(serving([], *shape))
        several = stack.enter_context(serving(["--workers", str(options.workers)], *shape))
        for served in (one, several):
            served.window(options.seconds)
        for _ in range(options.rounds):
            first, second = one.window(options.seconds), several.window(options.seconds)
            ratio = Window(second.value / first.value, max(first.others, second.others))
            ratios.append(ratio)
            print(
                f"one process {first.value:.0f}/s, {options.workers} workers {second.value:.0f}/s: "
                f"{ratio.value:.2f}x (others took {first.others:.0%} and {second.others:.0%} of the machine)",
                flush=True,
            )
    print(f"ratio: {summary(ratios)}")
    for name, each in (("one process", one), ("workers", several)):
        print(f"{name}: {each.processor_time / each.answered * 1000:.2f} ms of processor time a call")


if __name__ == "__main__":
    main()
