"""Servers that both legs of these tests talk to, ours and the official ones, each over every binding that it has.

A binding is a row of ``PATHS`` (where it is found) and one line in the programs under ``peers`` that can speak it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suite.server import free_port

from .installation import Peers

__all__ = ["DRIVERS", "PATHS", "SERVERS", "Endpoint", "Launch", "Served", "free_port", "reachable"]

DRIVERS = Path(__file__).parent / "peers"
PATHS = {"http": "/mcp", "sse": "/sse", "ws": "/ws"}
"""Bindings with a URL: Streamable HTTP, HTTP+SSE of the first revision, and WebSocket."""

# Seconds until a server says where it is: it takes about one, and a minute with workers where ten start at a time.
START_LIMIT = 90.0
STOP_LIMIT = 40.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Launch:
    """A program that serves, and how it says at which port: ``announced`` has one group for the number."""

    command: list[str]
    announced: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """Where a server can be reached: a command for stdio, else a URL."""

    binding: str
    address: tuple[str, ...]
    process: Served | None = None

    @property
    def target(self) -> str:
        """What our own client is given."""
        return f"stdio:{shlex.join(self.address)}" if self.binding == "stdio" else self.address[0]

    @property
    def arguments(self) -> list[str]:
        """What a driver of an official client is given."""
        return [self.binding, *self.address]


class Served:
    """A running server and everything that it wrote, with its exit code once it is gone."""

    def __init__(self, launch: Launch) -> None:
        self.process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **launch.environment},
        )
        self._announced = re.compile(launch.announced)
        self._lines: list[str] = []
        self._port: str | None = None
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                found = self._announced.search(line)
                with self._news:
                    self._lines.append(line)
                    if found and self._port is None:
                        self._port = found[1]
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds that may change with each line; returns whether it does in the end."""
        with self._news:
            self._news.wait_for(lambda: self._ended or holds(), seconds)
            return holds()

    def port(self) -> int:
        self.wait_until(lambda: self._port is not None, START_LIMIT)
        assert self._port is not None, f"{self.process.args!r} does not serve:\n{self.output}"
        return int(self._port)

    def stop(self) -> int:
        """Asks it to end, and makes it end; returns its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(STOP_LIMIT)
        return code


def _ours(peers: Peers, binding: str) -> Launch:
    if binding == "stdio":
        return Launch([sys.executable, "-m", "mcp_actors.examples.everything"])
    return _listening("ws://127.0.0.1:0/ws" if binding == "ws" else "http://127.0.0.1:0/mcp")


def _one_port(peers: Peers, binding: str) -> Launch:
    """Ours, with HTTP and WebSocket on the same port."""
    port = free_port()
    return _listening(f"http://127.0.0.1:{port}/mcp", f"ws://127.0.0.1:{port}/ws")


def _listening(*urls: str) -> Launch:
    command = [sys.executable, "-m", "mcp_actors", "serve", "mcp_actors.examples.everything"]
    for url in urls:
        command += ["--listen", url]
    return Launch(command, r"^serving .*:(\d+)/(?:mcp|ws)$")


def _python(peers: Peers, binding: str) -> Launch:
    if binding == "ws":  # only the SDK's first generation has it
        command = [str(peers.python_v1), str(DRIVERS / "python_v1_server.py")]
    else:
        command = [str(peers.python), str(DRIVERS / "python_server.py"), binding]
    return Launch(command, r"running on http://127\.0\.0\.1:(\d+)")


def _typescript(peers: Peers, binding: str) -> Launch:
    command = [str(peers.node), str(DRIVERS / "typescript_server.mjs"), str(peers.modules), binding]
    return Launch(command, r"^listening on (\d+)$")


def _fastmcp(peers: Peers, binding: str) -> Launch:
    command = [str(peers.fastmcp), str(DRIVERS / "fastmcp_server.py")]
    return Launch(command, r"running on http://127\.0\.0\.1:(\d+)")


def _everything(peers: Peers, binding: str) -> Launch:
    script = peers.package("@modelcontextprotocol/server-everything") / "dist" / "index.js"
    mode = {"http": "streamableHttp"}.get(binding, binding)
    # It says which port it was told to take, not which one it took.
    environment = {"PORT": str(free_port())}
    return Launch([str(peers.node), str(script), mode], r" on port (\d+)$", environment)


SERVERS: dict[str, Callable[[Peers, str], Launch]] = {
    "ours": _ours,
    "one-port": _one_port,
    "python": _python,
    "typescript": _typescript,
    "fastmcp": _fastmcp,
    "everything": _everything,
}


@contextmanager
def reachable(peers: Peers, server: str, binding: str) -> Iterator[Endpoint]:
    """The server, ready to be talked to; one with a URL runs until the end of the ``with``."""
    launch = SERVERS[server](peers, binding)
    if binding == "stdio":
        yield Endpoint(binding, tuple(launch.command))
        return
    served = Served(launch)
    try:
        scheme = "ws" if binding == "ws" else "http"
        yield Endpoint(binding, (f"{scheme}://127.0.0.1:{served.port()}{PATHS[binding]}",), served)
    finally:
        served.stop()
