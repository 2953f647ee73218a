"""The walk of one ``tools/call`` through the code: how many functions it calls, in how many files, with how many stays.

``python -m benchmarks.walk [--files]`` traces one call on each way by `sys.setprofile`, after some calls that are not
counted. Every function of the project counts, those that resume a waiting task included; a **stay** is a run of calls
within one file. Fewer files mean less to open for a reader, fewer stays less turning of pages.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from benchmarks.suite.server import free_port
from mcp_actors import Client, Server

WARM_UP = 20
SETTLE = 0.3
"""Seconds before and after the call that is traced, in which everything else comes to rest."""

server = Server("walked")


@server.tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Walk:
    """The functions of the project that are called while it is `on`, as the paths of their files in order."""

    def __init__(self) -> None:
        self.on = False
        self.visited: list[str] = []

    def install(self) -> None:
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call":
            path = frame.f_code.co_filename
            for package in ("mcp_actors", "mcp_transports"):
                _, found, inside = path.partition(f"/{package}/")
                if found and "/site-packages/" not in path:
                    self.visited.append(f"{package}/{inside}")

    def toggle_by_signal(self, report: Path) -> None:
        """Begins with the first SIGUSR1, and writes the walk to ``report`` at the second."""

        def toggle(_: int, __: FrameType | None) -> None:
            self.on = not self.on
            if not self.on:
                report.write_text(json.dumps(self.visited))

        signal.signal(signal.SIGUSR1, toggle)


def stays(visited: list[str]) -> list[str]:
    return [path for number, path in enumerate(visited) if number == 0 or visited[number - 1] != path]


def serve(way: str, report: Path, port: int) -> None:
    """The traced process: a server on stdio or at a port, or a gateway between two servers on stdio."""
    walk = Walk()
    walk.toggle_by_signal(report)
    walk.install()
    report.with_suffix(".pid").write_text(str(os.getpid()))
    if way == "gateway":
        from mcp_actors.gateway import Gateway, Upstream

        command = f"stdio:{sys.executable} -m benchmarks.walk --serve stdio {report}.upstream.json 0"
        Gateway([Upstream(name="up", target=command)]).run()
    elif way == "stdio":
        server.run()
    else:
        server.run(f"{way}://127.0.0.1:{port}/mcp")


async def _traced(way: str, era: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "walk.json")
        arguments = [sys.executable, "-m", "benchmarks.walk", "--serve", way, str(report), str(free_port())]
        async with _connected(way, era, arguments) as client:
            pid = int(report.with_suffix(".pid").read_text())
            names = [each.name async for each in client.tools()]
            tool = next(name for name in names if name.endswith("add"))
            for _ in range(WARM_UP):
                await client.call_tool(tool, {"a": 1, "b": 2})
            await trio.sleep(SETTLE)
            os.kill(pid, signal.SIGUSR1)
            await trio.sleep(SETTLE)
            await client.call_tool(tool, {"a": 1, "b": 2})
            await trio.sleep(SETTLE)
            os.kill(pid, signal.SIGUSR1)
            await trio.sleep(SETTLE)
            visited: list[str] = json.loads(await trio.Path(report).read_text())
            return visited


@asynccontextmanager
async def _connected(way: str, era: Any, arguments: list[str]) -> AsyncIterator[Client]:
    if way in ("stdio", "gateway"):
        async with Client(arguments, era=era) as client:
            yield client
        return
    process = await trio.lowlevel.open_process(arguments)
    try:
        port = int(arguments[-1])
        with trio.fail_after(20):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.05)
        async with Client(f"{way}://127.0.0.1:{port}/mcp", era=era) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def _in_memory(era: Any) -> list[str]:
    walk = Walk()
    async with Client(server, era=era) as client:
        for _ in range(WARM_UP):
            await client.call_tool("add", {"a": 1, "b": 2})
        await trio.sleep(SETTLE)
        walk.install()
        walk.on = True
        await client.call_tool("add", {"a": 1, "b": 2})
        await trio.sleep(SETTLE)
        walk.on = False
        sys.setprofile(None)
    return walk.visited


WAYS = (
    ("stdio, legacy, server", "stdio", "legacy"),
    ("HTTP, modern, server", "http", "modern"),
    ("WebSocket, modern, server", "ws", "modern"),
    ("memory, modern, both sides", "memory", "modern"),
    ("gateway, stdio to stdio", "gateway", "modern"),
)


def main() -> None:
    if "--serve" in sys.argv:
        place = sys.argv.index("--serve")
        serve(sys.argv[place + 1], Path(sys.argv[place + 2]), int(sys.argv[place + 3]))
        return
    print(f"{'walk':30} {'calls':>5} {'files':>5} {'stays':>5}")
    for name, way, era in WAYS:
        visited = trio.run(_in_memory, era) if way == "memory" else trio.run(_traced, way, era)
        print(f"{name:30} {len(visited):5} {len(set(visited)):5} {len(stays(visited)):5}")
        if "--files" in sys.argv:
            for path in stays(visited):
                print(f"    {path}")


if __name__ == "__main__":
    main()
