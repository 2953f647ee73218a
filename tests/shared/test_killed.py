"""A process is killed while it runs many tasks: after a restart, or at another node, each has its one right end.

``MCP_KILL_ROUNDS`` and ``MCP_KILL_TASKS`` make it more rounds, and more tasks in each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors.discovery import client_transport
from mcp_actors.testing import ScriptedPeer
from tests.redis_server import RedisServer
from tests.tasks.talking import DECLARED, EXTENSION, Talk

ROOT = Path(__file__).parent.parent.parent
ROUNDS = int(os.environ.get("MCP_KILL_ROUNDS", "1"))
TASKS = int(os.environ.get("MCP_KILL_TASKS", "40"))
LEASE = 1.0
PATIENCE = 60.0
TERMINAL = ("completed", "failed", "cancelled")


class Killable:
    """A process that serves tasks."""

    def __init__(self, place: str, socket: Path) -> None:
        self._socket = socket
        program = [sys.executable, "-m", "tests.shared.killed_server", place, str(socket), str(LEASE)]
        self._process = subprocess.Popen(program, cwd=ROOT, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[Talk]:
        with trio.fail_after(PATIENCE):
            while not self._socket.exists():  # noqa: ASYNC110
                await trio.sleep(0.02)
        async with client_transport(f"unix:{self._socket}").connect() as channel:
            yield Talk(ScriptedPeer(channel), EXTENSION, DECLARED)


class Round:
    """Tasks that are begun at one process, which is killed, and looked at in another."""

    def __init__(self, place: str, folder: Path, number: int) -> None:
        self._place = place
        self._folder = folder
        self._number = number
        self._chance = random.Random(number)
        self.tools: dict[str, tuple[str, int]] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        first = self._process("a")
        # Every second time the other node is there already, and sees the first one die.
        second = self._process("b") if self._number % 2 else None
        try:
            async with first.talk() as talk:
                with trio.fail_after(PATIENCE):
                    await self._begin(talk)
                    await self._look(talk, self._chance.uniform(0.0, 0.6))
                first.kill()
            second = second or self._process("b")
            async with second.talk() as talk:
                with trio.fail_after(PATIENCE):
                    for id in self.tools:
                        self._judge(id, await talk.until(id))
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()

    def _process(self, letter: str) -> Killable:
        return Killable(self._place, self._folder / f"{self._number}{letter}.sock")

    async def _begin(self, talk: Talk) -> None:
        asked: dict[int, tuple[str, int]] = {}
        for number in range(TASKS):
            tool = "again" if number % 4 == 0 else "once"
            arguments = {"number": number, "seconds": self._chance.uniform(0.0, 1.0)}
            asked[await talk.send("tools/call", {"name": tool, "arguments": arguments})] = (tool, number)
        while asked:
            answer = await talk.peer.receive()
            self.tools[answer["result"]["taskId"]] = asked.pop(answer["id"])

    async def _look(self, talk: Talk, seconds: float) -> None:
        """Looks at the tasks for a while, and keeps what was seen of those that ended."""
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            for id in list(self.tools):
                if id not in self.seen:
                    task = await talk.get(id)
                    if task["status"] in TERMINAL:
                        self.seen[id] = task

    def _judge(self, id: str, task: dict[str, Any]) -> None:
        tool, number = self.tools[id]
        if id in self.seen:
            assert task == self.seen[id]
            self.counts["seen to have ended before"] += 1
        if task["status"] == "completed":
            [content] = task["result"]["content"]
            assert content["text"] == f"{tool} {number}"
            self.counts[f"{tool}: completed"] += 1
        else:
            assert (tool, task["status"]) == ("once", "failed")
            assert task["statusMessage"] == "the process that ran it has ended"
            self.counts["once: failed"] += 1


async def run_rounds(place: str, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(ROUNDS):
        kill = Round(place, folder, number)
        await kill.run()
        assert len(kill.tools) == TASKS
        counts += kill.counts
    print(f"{ROUNDS} rounds of {TASKS} tasks: {dict(counts)}")
    return counts


@pytest.mark.long
async def test_tasks_in_a_file_survive_the_death_of_their_process(tmp_path: Path) -> None:
    counts = await run_rounds(str(tmp_path / "state.db"), tmp_path)
    assert counts["again: completed"] == ROUNDS * -(-TASKS // 4)
    assert counts["once: completed"] + counts["once: failed"] == ROUNDS * (TASKS - -(-TASKS // 4))


async def test_tasks_in_redis_survive_the_death_of_their_process(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    counts = await run_rounds(redis_server.url, tmp_path)
    assert counts["again: completed"] == ROUNDS * -(-TASKS // 4)
    assert counts["once: completed"] + counts["once: failed"] == ROUNDS * (TASKS - -(-TASKS // 4))
