"""The life of a task, from its call to its result, beside a plain call of the same tool.

::

    python -m benchmarks.task_life memory: sqlite:/tmp/state.db unix:///tmp/redis.sock

The client sends prepared messages in memory. With MCP 2025-11-25 it asks for ``tasks/result``, which waits for the
end; with the extension of 2026-07-28 it asks for ``tasks/get`` as soon as it is answered, until the task has ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import trio

from benchmarks.windows import Others, Window, summary
from mcp_actors import Server
from mcp_actors.shared import shared_state
from mcp_actors.tasks import Tasks
from mcp_actors.testing import ScriptedPeer, raw_client

CORE, EXTENSION = "2025-11-25", "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
META = {
    PREFIX + "protocolVersion": EXTENSION,
    PREFIX + "clientInfo": {"name": "bench", "version": "1"},
    PREFIX + "clientCapabilities": {"extensions": {PREFIX + "tasks": {}}},
}
AT_ONCE = (1, 64)

Made = tuple[str, dict[str, Any]]


def make_server(url: str) -> Server:
    tasks = Tasks(ttl=30, running=1000, per_principal=1_000_000, in_all=1_000_000)
    server = Server("bench", shared=shared_state(url), extensions=[tasks])

    @server.tool(task="optional")
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def plain(a: int, b: int) -> int:
        return a + b

    return server


class Lives:
    """Calls, each of which goes through one or more requests until it has its result."""

    def __init__(self, peer: ScriptedPeer, version: str, tool: str) -> None:
        self._peer = peer
        self._version = version
        self._tool = tool
        self._id = 0
        self.took: list[float] = []

    async def run(self, seconds: float, at_once: int) -> float:
        """Keeps so many calls in flight, and returns how many had their result in a second."""
        began: dict[int, float] = {}
        done, start = 0, time.perf_counter()
        end = start + seconds
        for _ in range(at_once):
            began[await self._send(self._call())] = time.perf_counter()
        while began:
            answer = await self._peer.receive()
            if "id" not in answer:
                continue
            born = began.pop(answer["id"])
            following = self._following(answer["result"])
            if following is None:
                done += 1
                self.took.append(time.perf_counter() - born)
                if time.perf_counter() >= end:
                    continue
                following, born = self._call(), time.perf_counter()
            began[await self._send(following)] = born
        return done / (time.perf_counter() - start)

    def _call(self) -> Made:
        params: dict[str, Any] = {"name": self._tool, "arguments": {"a": 1, "b": 2}}
        if self._tool != "plain" and self._version == CORE:
            params["task"] = {}
        return "tools/call", params

    def _following(self, result: dict[str, Any]) -> Made | None:
        """Returns the next request of a call, or ``None`` if this was its result."""
        if "task" in result:
            return "tasks/result", {"taskId": result["task"]["taskId"]}
        if result.get("status") == "failed":
            raise SystemExit(f"a task failed: {result}")
        if "taskId" in result and result["status"] != "completed":
            return "tasks/get", {"taskId": result["taskId"]}
        return None

    async def _send(self, made: Made) -> int:
        method, params = made
        if self._version == EXTENSION:
            params["_meta"] = META
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        await self._peer.send(json.dumps(message).encode())
        return self._id


async def measure(url: str, version: str, windows: int, seconds: float, pids: Sequence[int]) -> None:
    async with raw_client(make_server(url)) as peer:
        if version == CORE:
            await peer.initialize(version, {})
        for at_once in AT_ONCE:
            rates: dict[str, list[Window]] = {"plain": [], "add": []}
            lives = {tool: Lives(peer, version, tool) for tool in rates}
            for tool in rates:
                await lives[tool].run(seconds / 2, at_once)
                lives[tool].took.clear()
            for _ in range(windows):
                for tool, values in rates.items():
                    others = Others(pids)
                    values.append(Window(await lives[tool].run(seconds, at_once), others.share()))
            for name, tool in (("plain call", "plain"), ("task", "add")):
                middle = statistics.median(lives[tool].took) * 1000
                print(
                    f"{url}, {version}, {name}, {at_once} at once: {middle:.2f} ms; a second: {summary(rates[tool])}",
                    flush=True,
                )


async def run(options: argparse.Namespace) -> None:
    for url in options.urls:
        for version in (CORE, EXTENSION):
            await measure(url, version, options.windows, options.seconds, options.pid)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="shared state: memory:, sqlite:PATH, redis:// and unix://"
    )
    parser.add_argument("--windows", type=int, default=7, help="of each kind")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window")
    parser.add_argument("--pid", type=int, action="append", default=[], help="of the Redis server to measure")
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
