"""Starts the programs of the table, calls their servers, and says how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, McpError
from mcp_actors.types import ElicitResult

PATIENCE = 120  # seconds; nothing here takes a fortieth of it on a machine that is not busy


class Prepared:
    """The process that forks, as those see it that have it run programs."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)

    def start(self, *words: str) -> Program:
        output = self._folder / f"output{next(self._numbers)}"
        output.touch()
        return Program(self, self.ask([list(words), {}, str(output)]), output)

    def ask(self, request: list[Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@dataclass
class Program:
    """A program that runs in a session of its own, and everything that it wrote."""

    prepared: Prepared
    pid: int
    file: Path
    code: int | None = None
    left: list[str] = field(default_factory=list)
    """The processes of its session that were there when it had ended, and some time after that."""

    @property
    def output(self) -> str:
        return self.file.read_text()

    @property
    def messages(self) -> str:
        """All that it wrote but the frames of tracebacks: an interrupt shows whatever function it has met."""
        return "\n".join(
            line for line in self.output.splitlines() if not line.startswith(("  File ", "    "))
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What it said in lines of JSON."""
        found: dict[str, Any] = {}
        for line in self.output.splitlines():
            if line.startswith("{"):
                found |= json.loads(line)
        return found

    def has_ended(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat")
        return state.read_text().rpartition(")")[2].split()[0] == "Z"

    def wait_for(self, text: str) -> None:
        limit = time.monotonic() + PATIENCE
        while text not in self.output:
            assert time.monotonic() < limit, f"no {text!r} in {self.output}"
            time.sleep(0.01)

    def interrupt(self) -> None:
        """Ctrl-C of a terminal reaches all processes of the program that have not left its group."""
        os.killpg(self.pid, signal.SIGINT)

    def end(self) -> int:
        """Waits until it has ended; what it has left then is killed."""
        if self.code is not None:
            return self.code
        limit = time.monotonic() + PATIENCE
        while not self.has_ended() and time.monotonic() < limit:
            time.sleep(0.01)
        hangs = not self.has_ended()
        if hangs:
            os.kill(self.pid, signal.SIGKILL)
        self.code = self.prepared.ask([self.pid])
        limit = time.monotonic() + PATIENCE
        while (left := session(self.pid)) and time.monotonic() < limit:
            time.sleep(0.01)
        self.left = [f"the program itself: {self.output}"] * hangs + list(left.values())
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return self.code


def written(record: Path) -> list[dict[str, Any]]:
    """What the server over stdio has written down, which ends with its own end."""
    limit = time.monotonic() + PATIENCE
    while '"end"' not in record.read_text():
        assert time.monotonic() < limit, "the server was left behind, or killed"
        time.sleep(0.01)
    return [json.loads(line) for line in record.read_text().splitlines()]


def assert_gone(pid: int) -> None:
    limit = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < limit, "a child was left behind"
        time.sleep(0.01)


def session(number: int) -> dict[int, str]:
    """The processes of a session, by their numbers."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(each.name)) == number:
                found[int(each.name)] = (each / "cmdline").read_text().replace("\0", " ")
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


async def value(client: Client, tool: str) -> Any:
    return json.loads((await client.call_tool(tool)).content[0].text)


async def until_state(client: Client, **wanted: int) -> None:
    while not wanted.items() <= (await value(client, "state")).items():  # noqa: ASYNC110 - in another process
        await trio.sleep(0.02)


async def answer(params: object) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


async def lost_call(client: Client) -> None:
    with pytest.raises(McpError):
        await client.call_tool("slow")
