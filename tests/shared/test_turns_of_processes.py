"""Calls with one key take turns over processes: never two at once, and on when the node of one is killed.

``MCP_ACTORS_TURNS=2000 pytest -n 0 -s -m slow tests/shared/test_turns_of_processes.py`` makes more calls, and
kills a node more often.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import ConnectFailed, ConnectionLost
from tests.redis_server import RedisServer
from tests.shared.node_process import NodeProcess

pytestmark = pytest.mark.slow

CALLS = int(os.environ.get("MCP_ACTORS_TURNS", "60"))
OF_ONE_LIFE = 100
KEYS = ("a", "b")
PATIENCE = 300.0
# Behind one that was killed nobody waits for longer than this: its node is known to be gone, or its lease is over.
LONGEST = 60.0
PROGRAM = '''
import os
from pathlib import Path

import trio

from mcp_actors import Server
from mcp_actors.server import Turn

server = Server("desk")


def note(text: str) -> None:
    file = os.open(Path(__file__).with_name("log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{text} {os.getpid()}\\n".encode())
    os.close(file)


@server.tool(turn=Turn("{key}", nodes=True))
async def edit(key: str, name: str, seconds: float) -> str:
    """Edit, and say when that began and ended."""
    note(f"{key} begin {name}")
    await trio.sleep(seconds)
    note(f"{key} end {name}")
    return name
'''


class Desk:
    """Two nodes, calls at both, and what their functions have written."""

    def __init__(self, folder: Path, shared: str) -> None:
        program = folder / "desk.py"
        program.write_text(PROGRAM)
        self._log = folder / "log.txt"
        self._log.touch()
        self.nodes = [NodeProcess(program, name, shared) for name in ("a", "b")]
        self._chance = random.Random(4711)
        self.ends: Counter[str] = Counter()
        self.killed: set[str] = set()

    async def run(self, calls: int) -> None:
        for each in self.nodes:
            each.start()
        for first in range(0, calls, OF_ONE_LIFE):
            for each in self.nodes:
                await each.listens()
            await self._live(range(first, min(calls, first + OF_ONE_LIFE)))
            self.nodes[0].start()

    async def _live(self, numbers: range) -> None:
        """Makes calls at both nodes, and kills the first one while it works, after it has answered one."""
        victim = self.nodes[0]
        works = trio.Event()

        async def call(node: NodeProcess, number: int) -> None:
            arguments = {
                "key": KEYS[number % 3 == 0],
                "name": str(number),
                "seconds": self._chance.uniform(0, 0.02),
            }
            await trio.sleep(self._chance.uniform(0, 1))
            try:
                async with Client(node.url) as client:
                    await client.call_tool("edit", arguments)
            except (ConnectionLost, ConnectFailed):
                assert node is victim
                self.ends["lost with their node"] += 1
                self.killed.add(str(number))
            else:
                self.ends["answered"] += 1
                if node is victim:
                    works.set()

        with trio.fail_after(PATIENCE + LONGEST):
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(call, self.nodes[number % 2], number)
                await trio.sleep(self._chance.uniform(0.5, 1))
                await works.wait()
                victim.kill()

    def met(self) -> list[str]:
        """The calls that began while another one with their key was running, at a node that lived."""
        running: dict[str, tuple[str, str]] = {}
        met = []
        for line in self._log.read_text().splitlines():
            key, what, name, process = line.split()
            if what == "begin":
                if key in running and running[key][0] not in self.killed:
                    met.append(f"{name} met {running[key][0]}")
                running[key] = name, process
                self.ends[f"begun at {process}"] += 1
            else:
                assert running.pop(key)[0] == name
        return met


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_calls_take_turns_over_processes(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    desk = Desk(tmp_path, redis.url if kind == "redis" else f"sqlite://{tmp_path / 'state.db'}")
    try:
        await desk.run(CALLS)
    finally:
        for each in desk.nodes:
            each.kill()
    assert desk.met() == []
    print(f"{kind}: {CALLS} calls: {dict(desk.ends)}")
    assert sum(number > 0 for end, number in desk.ends.items() if end.startswith("begun at")) >= 2
    assert desk.ends["answered"] >= CALLS / 2
