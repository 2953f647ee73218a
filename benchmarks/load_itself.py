"""The load of ``mcp-actors bench`` itself: how many calls a second it makes before it is the bottleneck.

``python -m benchmarks.load_itself [SECONDS]`` puts it on servers that do next to nothing: over stdio and TCP one that
answers whole reads with one substitution, over HTTP and WebSocket the floor that answers in its reader. The last column
is what the load would reach with a processor of its own and a server that costs nothing.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from typing import Any

from benchmarks.suite.server import free_port
from mcp_actors.cli.bench.load import RunningLoad, run_load
from mcp_actors.cli.bench.plan import LEGACY_VERSION, MODERN_VERSION, LoadPlan, Stage, tool_call

WINDOW = 64
WARM_UP_SECONDS = 0.5
READ_BYTES = 1 << 20
SCHEMES = ("stdio", "tcp", "http", "ws")
REQUEST = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),[^\n]*\n')
NOTIFICATION = re.compile(rb'\{"jsonrpc":"2\.0","method":[^\n]*\n')
ANSWER = (
    rb'{"jsonrpc":"2.0","id":\1,"result":{"protocolVersion":"%b","content":[]}}' % LEGACY_VERSION.encode()
    + b"\n"
)


def answer_blindly(read: int, write: int) -> None:
    """Answers every line that is a request, until the end of the input."""
    rest = b""
    while data := os.read(read, READ_BYTES):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            answers = REQUEST.sub(ANSWER, NOTIFICATION.sub(b"", whole + newline))
            while answers:
                answers = answers[os.write(write, answers) :]


def serve_blindly(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        connection, _ = listener.accept()
        with connection:
            answer_blindly(connection.fileno(), connection.fileno())


def measure(scheme: str, seconds: float) -> dict[str, Any]:
    port = free_port()
    url, process = f"stdio:{sys.executable} -m {__spec__.name} --answer", None
    if scheme != "stdio":
        url = f"{scheme}://127.0.0.1:{port}" + ("" if scheme == "tcp" else "/mcp")
        words = [__spec__.name, "--serve", str(port)]
        if scheme != "tcp":
            words = ["benchmarks.suite.programs.floor_inline", url]
        process = subprocess.Popen([sys.executable, "-m", *words])
        time.sleep(2.0)
    try:
        plan = LoadPlan(
            url,
            "modern",
            MODERN_VERSION,
            [tool_call("add", {"a": 1, "b": 2})],
            [Stage(seconds, window=WINDOW)],
            warm_up=WARM_UP_SECONDS,
        )
        return run_load(RunningLoad(plan, lambda _: None))
    finally:
        if process is not None:
            process.kill()
            process.wait()


def main(words: list[str]) -> None:
    if words[:1] == ["--answer"]:
        answer_blindly(0, 1)
    elif words[:1] == ["--serve"]:
        serve_blindly(int(words[1]))
    else:
        seconds = float(words[0]) if words else 5.0
        print(f"{WINDOW} in flight    calls/s    share of a processor    calls/s at a whole one")
        for scheme in SCHEMES:
            stage = measure(scheme, seconds)["stages"][0]
            share = sum(part["generator"] for part in stage["slices"]) / len(stage["slices"])
            print(
                f"{scheme:12} {stage['per_second']:>10,.0f} {share:>23.0%} {stage['per_second'] / share:>25,.0f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
