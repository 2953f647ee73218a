"""A raw load generator for stdio servers: bytes over pipes, a fixed number of requests in flight.

It imports nothing but the standard library, and all it does per request while the clock runs is to count a
newline and to take a request that was encoded before: the server is what is measured. Every answer is checked
after the clock has stopped: each id once, no error, and on a sample the decoded sum.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.suite.process import LoadError, cpu_seconds, peak_mib

__all__ = ["Era", "LoadError", "Measured", "main", "measure_load", "measure_start"]

Era = Literal["legacy", "modern"]

LEGACY_VERSION = "2025-11-25"
MODERN_VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
}

# Writes block here; that is safe while all requests in flight fit into the pipe, which holds 64 KiB on Linux.
PIPE_BYTES = 65536
READ_BYTES = 262144
# More than any server answers in a second: a round that uses up its requests ends early, it does not fail.
REQUESTS_PER_SECOND = 400_000
ANSWER_WITHIN_SECONDS = 30.0
END_WITHIN_SECONDS = 10.0
SAMPLE = 200
_ID = re.compile(rb'"id": ?(\d+)')


@dataclass
class Measured:
    """One round. ``cpu_us`` is the processor time that the server process took per request, whoever else was busy."""

    requests: int
    seconds: float
    per_second: float
    us_per_request: float
    rss_mib: float
    cpu_us: float


class _Pipe:
    """A server process and its two pipes."""

    def __init__(self, command: list[str]) -> None:
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise LoadError(f"{command[0]}: {error.strerror}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._write_fd = self.process.stdin.fileno()
        self._read_fd = self.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._read_fd, select.POLLIN)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._write_fd, view) :]

    def read(self) -> bytes:
        if not self._poll.poll(ANSWER_WITHIN_SECONDS * 1000):
            raise LoadError(f"no answer within {ANSWER_WITHIN_SECONDS:g} s")
        chunk = os.read(self._read_fd, READ_BYTES)
        if not chunk:
            raise LoadError("the server closed its output; start it by hand to see why")
        return chunk

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request and its answer, outside the clock; passes over other lines, as profilers print."""
        self.write(json.dumps(message).encode() + b"\n")
        rest = b""
        while True:
            *lines, rest = (rest + self.read()).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
                if answer.get("id") != message["id"]:
                    continue
                if "error" in answer:
                    raise LoadError(f"{message['method']}: {answer['error']}")
                return answer

    def close(self) -> None:
        """Ends the server by closing its input, at last by force."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def _initialize(id: str) -> dict[str, Any]:
    params = {
        "protocolVersion": LEGACY_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}


def _open(pipe: _Pipe, era: Era) -> None:
    if era == "legacy":
        pipe.ask(_initialize("open"))
        pipe.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    else:
        pipe.ask({"jsonrpc": "2.0", "id": "open", "method": "server/discover", "params": {"_meta": META}})


def _encode_requests(era: Era, first: int, count: int) -> list[bytes]:
    params: dict[str, Any] = {"name": "add", "arguments": {"a": -1, "b": 1}}
    if era == "modern":
        params["_meta"] = META
    message = {"jsonrpc": "2.0", "id": -2, "method": "tools/call", "params": params}
    text = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    before, rest = text.split(b"-2", 1)
    middle, after = rest.split(b"-1", 1)
    return [b"%b%d%b%d%b" % (before, id, middle, id, after) for id in range(first, first + count)]


def _drive(pipe: _Pipe, requests: list[bytes], window: int, seconds: float) -> tuple[int, float, list[bytes]]:
    """Keeps ``window`` requests in flight; returns the number of answers, the time, and all the bytes."""
    chunks: list[bytes] = []
    total = len(requests)
    answered = 0
    sent = min(window, total)
    started = time.perf_counter()
    deadline = started + seconds
    pipe.write(b"".join(requests[:sent]))
    while answered < sent:
        chunk = pipe.read()
        chunks.append(chunk)
        fresh = chunk.count(b"\n")
        answered += fresh
        if sent < total and time.perf_counter() < deadline:
            pipe.write(b"".join(requests[sent : sent + fresh]))
            sent = min(sent + fresh, total)
    return answered, time.perf_counter() - started, chunks


def _check(chunks: list[bytes], first: int, count: int) -> None:
    lines = b"".join(chunks).splitlines()
    ids = set()
    for line in lines:
        match = _ID.search(line)
        if match is None or b'"error"' in line or b'"isError":true' in line:
            raise LoadError(f"not a good answer: {line[:300]!r}")
        ids.add(int(match.group(1)))
    if len(lines) != count or ids != set(range(first, first + count)):
        raise LoadError(f"{count} requests, {len(lines)} answers, {len(ids)} different ids")
    for line in random.sample(lines, min(SAMPLE, len(lines))):
        answer = json.loads(line)
        if answer["result"]["structuredContent"] != {"total": answer["id"] + 1}:
            raise LoadError(f"a wrong sum: {line[:300]!r}")


def measure_load(
    command: list[str], *, era: Era, window: int, seconds: float, warm_up: int = 300
) -> Measured:
    """Starts ``command``, makes ``warm_up`` calls of its tool ``add``, then loads it for ``seconds``."""
    requests = _encode_requests(era, 1 + warm_up, int(REQUESTS_PER_SECOND * seconds))
    if window * len(requests[-1]) > PIPE_BYTES:
        raise LoadError(f"{window} requests in flight do not fit into a pipe")
    pipe = _Pipe(command)
    try:
        _open(pipe, era)
        count, _, chunks = _drive(pipe, _encode_requests(era, 1, warm_up), window, END_WITHIN_SECONDS)
        _check(chunks, 1, count)
        if count != warm_up:
            raise LoadError(f"only {count} of {warm_up} warm-up calls in {END_WITHIN_SECONDS:g} s")
        cpu_before = cpu_seconds(pipe.process.pid)
        count, elapsed, chunks = _drive(pipe, requests, window, seconds)
        cpu_used = cpu_seconds(pipe.process.pid) - cpu_before
        peak = peak_mib(pipe.process.pid)
    finally:
        pipe.close()
    _check(chunks, 1 + warm_up, count)
    return Measured(
        requests=count,
        seconds=elapsed,
        per_second=count / elapsed,
        us_per_request=elapsed / count * 1e6,
        rss_mib=peak,
        cpu_us=cpu_used / count * 1e6,
    )


def measure_start(command: list[str]) -> dict[str, float]:
    """Milliseconds, by the clock and of the processor, from starting the process to ``initialize`` answered."""
    started = time.perf_counter()
    pipe = _Pipe(command)
    try:
        pipe.ask(_initialize("open"))
        elapsed = time.perf_counter() - started
        cpu_used = cpu_seconds(pipe.process.pid)
    finally:
        pipe.close()
    return {"start_ms": elapsed * 1000, "cpu_ms": cpu_used * 1000}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks load",
        description="Loads a stdio server that has the tool add(a, b) -> {total}; prints what it measured.",
        epilog="To see where a server spends its time, let a profiler start it: pip install py-spy, then\n"
        "  python -m benchmarks load --seconds 10 --prefix 'py-spy record -r 500 -o profile.svg --'\n"
        "or, for the hottest lines as text, '... -f raw -o profile.txt --'.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--era", choices=["legacy", "modern"], default="legacy")
    parser.add_argument("--window", type=int, default=64, help="requests in flight (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="length of the round (default: %(default)s)"
    )
    parser.add_argument(
        "--one-cpu",
        action="store_true",
        help="keep generator and server on one processor: with one request in flight they take turns anyway, and a "
        "sleeping processor of a virtual machine can take longer to wake than the request",
    )
    parser.add_argument("--start", action="store_true", help="measure start to initialize answered, no load")
    parser.add_argument(
        "--prefix", default="", help="a command that starts the server's command, as a profiler does"
    )
    parser.add_argument("command", nargs="*", help="the server (default: python -m benchmarks.peers.ours)")
    return parser


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    command = shlex.split(options.prefix) + (
        options.command or [sys.executable, "-m", "benchmarks.peers.ours"]
    )
    if options.one_cpu:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        if options.start:
            print(json.dumps(measure_start(command)))
        else:
            measured = measure_load(command, era=options.era, window=options.window, seconds=options.seconds)
            print(json.dumps(asdict(measured)))
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
