"""A node is killed in the middle of calls with keys: made again at the other node, none of them happens twice.

``MCP_ACTORS_KILLS=200 pytest -n 0 -s -m slow tests/shared/test_killed_keys.py`` kills more of them and prints the
ends.
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
from mcp_actors.errors import ConnectionLost, McpError, OutcomeUnknown
from tests.redis_server import RedisServer
from tests.shared.node_process import NodeProcess

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("MCP_ACTORS_KILLS", "3"))
CALLS = 8
PATIENCE = 120.0
ERAS = ("2025-11-25", "2026-07-28")
PROGRAM = '''
import os
from datetime import timedelta
from pathlib import Path

import trio

from mcp_actors import Context, Server

server = Server("bank")


@server.tool(idempotent=timedelta(hours=24))
async def pay(name: str, before: float, after: float) -> str:
    """Pay, and say so in a file."""
    await trio.sleep(before)
    file = os.open(Path(__file__).with_name("paid.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{name}\\n".encode())
    os.close(file)
    await trio.sleep(after)
    return f"paid {name}"
'''


class Rounds:
    """Calls that are begun at a node that is killed, and made again at the other one."""

    def __init__(self, folder: Path, shared: str) -> None:
        (folder / "bank.py").write_text(PROGRAM)
        self._paid = folder / "paid.txt"
        self._paid.touch()
        self.nodes = [NodeProcess(folder / "bank.py", name, shared) for name in ("a", "b")]
        self._chance = random.Random(4711)
        self.ends: Counter[str] = Counter()

    async def run(self, kills: int) -> None:
        for each in self.nodes:
            each.start()
        for number in range(kills):
            victim, other = self.nodes if number % 2 else reversed(self.nodes)
            for each in self.nodes:
                await each.listens()
            await self._kill_one(number, victim, other)
            victim.start()

    async def _kill_one(self, number: int, victim: NodeProcess, other: NodeProcess) -> None:
        names = [f"{number}-{call}" for call in range(CALLS)]
        arguments = {
            name: {
                "name": name,
                "before": self._chance.uniform(0, 0.2),
                "after": self._chance.uniform(0, 0.2),
            }
            for name in names
        }
        found: dict[str, str] = {}
        era = ERAS[number % 4 // 2]
        lost = trio.Event()

        async def first(client: Client, name: str) -> None:
            try:
                text = await client.call_tool("pay", arguments[name], key=name, returns=str)
            except ConnectionLost:
                return
            found[name] = text
            self.ends["answered before"] += 1

        async def again(client: Client, name: str) -> None:
            try:
                text = await client.call_tool("pay", arguments[name], key=name, returns=str)
            except OutcomeUnknown:
                self.ends["outcome unknown"] += 1
                # An answer that was sent and not kept is all that may go before.
                text = found.get(name, "")
            else:
                self.ends["answered again"] += 1
            assert found.setdefault(name, text) == text

        with trio.fail_after(PATIENCE):
            try:
                async with Client(victim.url, era=era) as client, trio.open_nursery() as nursery:
                    for name in names:
                        nursery.start_soon(first, client, name)
                    await trio.sleep(self._chance.uniform(0, 0.35))
                    victim.kill()
                    lost.set()
            except* McpError:
                assert lost.is_set()
            async with Client(other.url, era=era) as client, trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(again, client, name)
        paid = Counter(self._paid.read_text().split())
        for name in names:
            # Twice never, and once where it was answered.
            assert paid[name] <= 1
            assert paid[name] == 1 or not found[name]
            self.ends["not paid, and unknown"] += paid[name] == 0
            self.ends["paid, and unknown"] += paid[name] == 1 and not found[name]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_a_killed_node_has_nothing_done_twice(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    rounds = Rounds(tmp_path, redis.url if kind == "redis" else f"sqlite://{tmp_path / 'state.db'}")
    try:
        await rounds.run(KILLS)
    finally:
        for each in rounds.nodes:
            each.kill()
    print(f"{kind}: {KILLS} kills of {CALLS} calls: {dict(rounds.ends)}")
    assert sum(rounds.ends[end] for end in ("answered again", "outcome unknown")) == KILLS * CALLS
