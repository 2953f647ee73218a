"""Clients of all bindings that come and go in random order, from random tasks, while half of their servers are killed.

``python -m tests.api.test_client_churn 200 60`` does it with 200 clients at a time for a minute, and prints figures.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, ClientPool, McpError, Server
from mcp_transports.http.client import HttpClientTransport
from tests.test_every_task import OnlyHttpSse

CHILD = (
    "from mcp_actors import Server\nserver = Server('child')\n"
    "@server.tool\nasync def pid() -> int:\n    import os\n    return os.getpid()\nserver.run('stdio:')\n"
)
BINDINGS = ("in process", "memory", "stdio", "tcp", "unix", "http modern", "http legacy", "http+sse", "ws")


def new_server() -> Server:
    server = Server("churn")

    @server.tool
    async def pid() -> int:
        return os.getpid()

    return server


def children() -> list[str]:
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            found += file.read().split()
    return found


def tasks() -> list[str]:
    found, todo = [], [trio.lowlevel.current_root_task()]
    while todo:
        task = todo.pop()
        assert task is not None
        found.append(task.name)
        todo += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


class Churn:
    """Lives of clients; ``errors`` counts what was raised, by type."""

    def __init__(self, seed: int, folder: str) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.errors: Counter[str] = Counter()
        self.untyped: list[BaseException] = []
        self.lives: Counter[str] = Counter()
        self.killed = 0
        self.lost = 0
        self._names = 0

    @asynccontextmanager
    async def serving(self, binding: str) -> AsyncIterator[tuple[Any, str, Callable[[], None]]]:
        """A server of its own, as a target, with the era to speak and what kills it."""
        if binding == "in process":
            yield new_server(), "auto", lambda: None
            return
        if binding == "stdio":
            yield f"stdio:{sys.executable} {self.folder}/child.py", "auto", lambda: None
            return
        self._names += 1
        kind, _, era = binding.partition(" ")
        url = {
            "memory": f"memory:churn{self._names}",
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix:{self.folder}/{self._names}",
            "ws": "ws://127.0.0.1:0/",
        }.get(kind, "http://127.0.0.1:0/mcp")
        async with trio.open_nursery() as nursery:
            [target] = await nursery.start(new_server().serve, url)
            scope = nursery.cancel_scope
            if kind == "http+sse":
                async with httpx2.AsyncClient(transport=OnlyHttpSse()) as http:
                    sse = HttpClientTransport(target.removesuffix("/mcp") + "/sse", client=http)
                    yield sse, "legacy", scope.cancel
            else:
                yield target, era or "auto", scope.cancel
            scope.cancel()

    async def live(self, binding: str, pool: ClientPool, other: trio.Nursery) -> None:
        """One life: open, call, perhaps lose the server, and be closed by another task at another time."""
        rng = self.rng
        self.lives[binding] += 1
        closed = trio.Event()
        with trio.CancelScope():
            async with self.serving(binding) as (target, era, kill):
                client = Client(target, era=era, timeout=20, restart=rng.random() < 0.3, on_lost=self._lost)
                try:
                    await trio.sleep(rng.uniform(0, 0.2))
                    await pool.open(client)
                    answer: Any = (await client.call_tool("pid")).content[0]
                    if rng.random() < 0.5:
                        self.killed += 1
                        if binding == "stdio":
                            os.kill(int(answer.text), signal.SIGKILL)
                        # The server is gone before, during or after the next call.
                        with trio.CancelScope(shield=True):
                            other.start_soon(self._call, client)
                            kill()
                            await trio.sleep(rng.uniform(0, 0.1))
                    else:
                        await self._call(client)
                except McpError as error:
                    self.errors[type(error).__name__] += 1
                except Exception as error:
                    self.untyped.append(error)
                with trio.CancelScope(shield=True):
                    other.start_soon(self._close, pool, client, closed)
                    await closed.wait()

    def _lost(self, error: Exception) -> None:
        self.lost += 1

    async def _call(self, client: Client) -> None:
        try:
            await client.call_tool("pid", timeout=5)
        except McpError as error:
            self.errors[type(error).__name__] += 1
        except Exception as error:
            self.untyped.append(error)

    async def _close(self, pool: ClientPool, client: Client, closed: trio.Event) -> None:
        await trio.sleep(self.rng.uniform(0, 0.3))
        try:
            await pool.close(client)
        except Exception as error:
            self.untyped.append(error)
        closed.set()

    async def round(self, clients: int) -> None:
        bindings = [BINDINGS[number % len(BINDINGS)] for number in range(clients)]
        self.rng.shuffle(bindings)
        async with trio.open_nursery() as other, ClientPool() as pool, trio.open_nursery() as nursery:
            for binding in bindings:
                nursery.start_soon(self.live, binding, pool, other)


async def churn(seed: int, clients: int, seconds: float) -> tuple[Churn, dict[str, Any]]:
    """Returns what happened, and what is left of it: tasks, descriptors and children that were not there before."""
    with tempfile.TemporaryDirectory() as folder:
        await trio.Path(folder, "child.py").write_text(CHILD)
        warmed = Churn(seed, folder)
        # What the process makes once: threads, caches, sockets of the event loop.
        await warmed.round(len(BINDINGS))
        gc.collect()
        before = {"tasks": tasks(), "fds": len(os.listdir("/proc/self/fd")), "children": children()}
        tested = Churn(seed + 1, folder)
        until = trio.current_time() + seconds
        await tested.round(clients)
        while trio.current_time() < until:
            await tested.round(clients)
        for _ in range(100):
            gc.collect()
            after = {"tasks": tasks(), "fds": len(os.listdir("/proc/self/fd")), "children": children()}
            if after == before:
                break
            await trio.sleep(0.05)
        return tested, {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_and_all_errors_are_typed(seed: int) -> None:
    with capture_logs() as logs:
        done, left = await churn(seed, 2 * len(BINDINGS), 0)
    assert left == {}
    assert done.untyped == []
    assert set(done.lives) == set(BINDINGS)
    assert done.killed > 0
    assert set(done.errors) <= {"ConnectionLost", "ConnectFailed", "SessionExpired", "CallTimeout"}
    assert [each for each in logs if each["log_level"] == "error"] == []


if __name__ == "__main__":
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    done, left = trio.run(churn, 1, int(sys.argv[1]), float(sys.argv[2]))
    print("lives", sum(done.lives.values()), dict(done.lives))
    print("killed", done.killed, "losses told", done.lost, "raised", dict(done.errors))
    print("not typed", done.untyped, "left", left)
