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
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import ConnectFailed
from mcp_actors.testing import ScriptedPeer
from tests.redis_server import RedisServer
from tests.tasks.talking import DECLARED, EXTENSION, Talk

ROOT = Path(__file__).parent.parent.parent
ROUNDS = int(os.environ.get("MCP_KILL_ROUNDS", "1"))
TASKS = int(os.environ.get("MCP_KILL_TASKS", "40"))
LEASE = 1.0
PATIENCE = 60.0
# Seconds of the longest task: about as many are begun, and looked at, in the meantime.
LONGEST = TASKS / 40
TERMINAL = ("completed", "failed", "cancelled")


class PatientTalk(Talk):
    """Asks again when the state was away, as its error says: on a busy machine it may be, for longer than its bound."""

    times_away = 0

    async def ask(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        while is_away(answer := await super().ask(method, params, **meta)):
            self.times_away += 1
            await trio.sleep(0.1)
        return answer


def is_away(answer: dict[str, Any]) -> bool:
    data = answer.get("error", {}).get("data") or {}
    return bool(data.get("reason") == "shared_state_unavailable")


class Killable:
    """A process that serves tasks."""

    def __init__(self, place: str, socket: Path) -> None:
        self._url = f"unix:{socket}"
        program = [sys.executable, "-m", "tests.shared.killed_server", place, str(socket), str(LEASE)]
        self._process = subprocess.Popen(program, cwd=ROOT, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    async def _connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Waits until the process listens."""
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    async with client_transport(self._url).connect():
                        return client_transport(self._url).connect()
                except ConnectFailed:
                    await trio.sleep(0.05)

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[PatientTalk]:
        async with await self._connect() as channel:
            yield PatientTalk(ScriptedPeer(channel), EXTENSION, DECLARED)


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
        self.times_away = 0

    async def run(self) -> None:
        first = self._process("a")
        # Every second time the other node is there already, and sees the first one die.
        second = self._process("b") if self._number % 2 else None
        try:
            async with first.talk() as talk:
                with trio.fail_after(PATIENCE):
                    await self._begin(talk)
                    await self._look(talk, self._chance.randrange(TASKS * 3 // 4))
                first.kill()
                self.times_away = talk.times_away
            second = second or self._process("b")
            async with second.talk() as talk:
                with trio.fail_after(PATIENCE):
                    for id in self.tools:
                        self._judge(id, await talk.until(id))
                self.times_away += talk.times_away
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()

    def _process(self, letter: str) -> Killable:
        return Killable(self._place, self._folder / f"{self._number}{letter}.sock")

    async def _begin(self, talk: PatientTalk) -> None:
        calls = [("again" if number % 4 == 0 else "once", number) for number in range(TASKS)]
        asked = {await self._call(talk, tool, number): (tool, number) for tool, number in calls}
        while asked:
            answer = await talk.peer.receive()
            tool, number = asked.pop(answer["id"])
            if is_away(answer):
                # It may be a task all the same, which nobody knows of.
                talk.times_away += 1
                asked[await self._call(talk, tool, number)] = (tool, number)
            else:
                self.tools[answer["result"]["taskId"]] = (tool, number)

    async def _call(self, talk: Talk, tool: str, number: int) -> int:
        arguments = {"number": number, "seconds": self._chance.uniform(0.0, LONGEST)}
        return await talk.send("tools/call", {"name": tool, "arguments": arguments})

    async def _look(self, talk: Talk, number: int) -> None:
        """Looks at the tasks until so many were seen to have ended, and keeps what was seen of them."""
        while len(self.seen) < number:
            for id in list(self.tools):
                if id not in self.seen and len(self.seen) < number:
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
    away = 0
    for number in range(ROUNDS):
        kill = Round(place, folder, number)
        await kill.run()
        assert len(kill.tools) == TASKS
        counts += kill.counts
        away += kill.times_away
        print(f"{number + 1} rounds of {TASKS} tasks: {dict(counts)}, {away} times away", flush=True)
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
