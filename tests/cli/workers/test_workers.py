"""``mcp-actors serve --workers`` with real processes: what they print, what signals do, and what a death costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, ConnectionLost
from tests import messages
from tests.cli.conftest import LIMIT, Ran, Started, announced

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROUNDS = int(os.environ.get("WORKER_ROUNDS", "1"))
"""Replacements of all workers under load: in CI few, by hand many."""
MANY = LIMIT * (1 + ROUNDS)

SERVER = """
import os
from mcp_actors import Server
server = Server("several", version="3")

@server.tool
async def pid() -> int:
    return os.getpid()
"""
ACCEPTED = {"accept": "application/json, text/event-stream", "mcp-protocol-version": messages.LEGACY}
WITH_TASKS = """
from mcp_actors import Server
server = Server("with tasks")

@server.tool(task="optional")
async def long() -> int:
    return 1
"""

WITH_CHILDREN = """
import json
import os
import subprocess
import sys
from mcp_actors import Server
server = Server("parent")

SHOWS = '''
import json, os
descriptors = [each for each in os.listdir("/proc/self/fd") if int(each) > 2]
links = [os.readlink(f"/proc/self/fd/{each}") for each in descriptors if os.path.exists(f"/proc/self/fd/{each}")]
print(json.dumps([[each for each in os.environ if each.startswith("MCP_ACTORS")], links]))
'''

@server.tool
def inherited() -> str:
    done = subprocess.run([sys.executable, "-S", "-E", "-c", SHOWS], stdout=subprocess.PIPE, close_fds=False)
    return done.stdout.decode()
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "several.py").write_text(SERVER)
    return str(tmp_path / "several.py")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it is about other processes
        await trio.sleep(0.02)


def children(pid: int) -> list[int]:
    """The child processes of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for one in lists for each in one.read_text().split()]


@asynccontextmanager
async def serving(
    started: Started, target: str, *words: str, limit: float = LIMIT
) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    """A supervisor, and the URL of its first address."""
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with started("serve", target, *words, limit=limit, **options) as process:
        assert process.stderr is not None
        line = await trio.to_thread.run_sync(announced, process.stderr)
        with trio.fail_after(limit):
            yield line.split()[-1], process


async def replace_workers(process: subprocess.Popen[str]) -> None:
    """Has a supervisor of two workers replace them, and waits until it has."""
    before = set(children(process.pid))
    process.send_signal(signal.SIGHUP)
    await until(lambda: len(set(children(process.pid)) - before) == 2)
    await until(lambda: not before & set(children(process.pid)))
    print("all workers have been replaced", flush=True)


async def test_workers_share_an_address_survive_a_death_and_end_at_sigterm(
    started: Started, target: str
) -> None:
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    async with serving(started, target, *words) as (url, process):
        before = children(process.pid)
        assert len(before) == 2
        # A connection belongs to the worker that accepted it, and its death costs that connection alone.
        async with Client(url, era="modern") as client:
            [pid] = (await client.call_tool("pid")).content
            os.kill(victim := int(pid.text), signal.SIGKILL)  # type: ignore[union-attr]
            await until(lambda: len(set(children(process.pid)) - {victim}) == 2)
        found: set[str] = set()
        while not found - {str(each) for each in before}:
            try:
                async with Client(url, era="modern") as client:
                    found.add((await client.call_tool("pid")).content[0].text)  # type: ignore[union-attr]
            except ConnectionLost:
                continue
        assert str(victim) not in found
        after = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait) == 0
        assert not any(is_alive(each) for each in after)
        said = process.stderr.read() if process.stderr is not None else ""
    assert "a worker has died and is started again" in said
    assert "killed by SIGKILL" in said


HANGS = """
import pathlib, time
pathlib.Path({begun!r}).write_text("begun")
time.sleep({seconds})
from mcp_actors import Server
server = Server("slow to start")
"""


async def test_a_signal_does_not_wait_for_a_worker_that_hangs_at_its_start(
    started: Started, tmp_path: Path
) -> None:
    begun, program = tmp_path / "begun", tmp_path / "hangs.py"
    program.write_text(HANGS.format(begun=str(begun), seconds=10 * LIMIT))
    words = ["serve", str(program), "--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    with started(*words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        with trio.fail_after(LIMIT):
            await until(begun.exists)
            process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(process.wait) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


async def test_sighup_before_there_are_workers_ends_nothing(started: Started, tmp_path: Path) -> None:
    begun, program = tmp_path / "begun", tmp_path / "slow.py"
    program.write_text(HANGS.format(begun=str(begun), seconds=0))
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with started("serve", str(program), *words, limit=LIMIT, **options) as process:
        with trio.fail_after(LIMIT):
            await until(lambda: catches(process.pid, signal.SIGHUP))
            while not begun.exists():
                process.send_signal(signal.SIGHUP)
                await trio.sleep(0.002)
            assert process.stderr is not None
            # Before that come lines of a replacement which has ended, or has killed a worker that needed seconds to.
            await trio.to_thread.run_sync(announced, process.stderr)
            process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(process.wait) == 0


EARLY = """
import os, signal, sys
from mcp_actors import cli
def load(name):
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
    sys.exit()
cli.importlib.import_module = load
sys.argv[1:] = ["serve", "x.py", {option!r}]
cli.main()
"""


@pytest.mark.parametrize(("option", "ends"), [("--workers=2", False), ("--reload", True)])
def test_sighup_ends_no_supervisor_before_it_listens_to_signals(option: str, ends: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EARLY.format(option=option)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == ((-signal.SIGHUP, "") if ends else (0, "goes on\n"))


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


async def test_what_a_tool_starts_gets_nothing_of_its_worker(started: Started, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(WITH_CHILDREN)
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    async with serving(started, str(tmp_path / "parent.py"), *words) as (url, _), Client(url) as client:
        [text] = (await client.call_tool("inherited")).content
        # The tests themselves may run with variables of ours, such as MCP_ACTORS_WAITING.
        ours = [each for each in os.environ if each.startswith("MCP_ACTORS")]
        assert json.loads(text.text) == [ours, []]  # type: ignore[union-attr]


async def test_sighup_replaces_the_workers_and_no_call_is_lost(started: Started, target: str) -> None:
    """Clients of both eras call all the time, over connections that they keep."""
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    failures: list[BaseException] = []
    answered = 0
    stop = trio.Event()

    async def call_all_the_time(url: str, era: str) -> None:
        nonlocal answered
        try:
            async with Client(url, era=era) as client:  # type: ignore[arg-type]
                while not stop.is_set():
                    result = await client.call_tool("pid")
                    assert not result.is_error
                    answered += 1
        except Exception as error:
            failures.append(error)

    async with serving(started, target, *words, limit=MANY) as (url, process), trio.open_nursery() as nursery:
        for era in ("modern", "legacy", "modern", "legacy"):
            nursery.start_soon(call_all_the_time, url, era)
        await until(lambda: answered)
        for _ in range(ROUNDS):
            calls = answered
            await replace_workers(process)
            assert answered > calls
        await until(lambda calls=answered: answered > calls + 50)  # type: ignore[misc]
        stop.set()
    print(f"{answered} calls answered, {ROUNDS} replacements")
    assert failures == []


async def test_workers_end_when_their_supervisor_is_killed(started: Started, target: str) -> None:
    words = ["--listen", "tcp://127.0.0.1:0", "--workers", "2"]
    async with serving(started, target, *words) as (_, process):
        workers = children(process.pid)
        process.kill()
        await until(lambda: not any(is_alive(each) for each in workers))
    assert len(workers) == 2


@pytest.mark.parametrize("kind", ["auto", "none"])
async def test_legacy_clients_have_a_session_that_outlives_its_worker_unless_there_are_to_be_none(
    kind: str, started: Started, target: str
) -> None:
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2", "--sessions", kind]
    async with serving(started, target, *words) as (url, process):
        async with Client(url, era="modern") as client:
            await client.call_tool("pid")
        async with httpx2.AsyncClient(timeout=LIMIT) as http:
            hello = await http.post(url, json=messages.initialize(), headers=ACCEPTED)
            session = hello.headers.get("mcp-session-id")
            assert (session is not None) == (kind == "auto")
            if session is None:
                return
            found: set[str] = set()
            for _ in range(2):
                await replace_workers(process)
                answer = await http.post(
                    url,
                    json=messages.request(1, "tools/call", {"name": "pid", "arguments": {}}),
                    headers={**ACCEPTED, "mcp-session-id": session},
                )
                assert answer.status_code == 200
                found.add(answer.text)
            assert len(found) == 2


async def test_a_unix_socket_is_the_supervisors(started: Started, target: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(started, target, "--listen", f"unix:{path}", "--workers", "2") as (url, process):
        [first, _] = children(process.pid)
        os.kill(first, signal.SIGTERM)
        await until(lambda: not is_alive(first))
        async with Client(url) as client:
            assert not (await client.call_tool("pid")).is_error
        process.send_signal(signal.SIGINT)
        assert await trio.to_thread.run_sync(process.wait) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["several.py", "--workers", "2"], 2, "--workers needs --listen URL"),
        (["several.py", "--workers", "2", "--listen", "stdio:"], 2, "--workers needs --listen URL"),
        (["several.py", "--workers", "0", "--listen", "tcp://127.0.0.1:0"], 2, "x>=1"),
        (
            ["several.py", "--workers", "2", "--listen", "memory:x"],
            2,
            "cannot be served by several processes",
        ),
        (["nothing.py", "--workers", "2", "--listen", "tcp://127.0.0.1:0"], 2, "there is no file nothing.py"),
        (["broken.py", "--workers", "2", "--listen", "tcp://127.0.0.1:0"], 1, "cannot import broken.py"),
        (["tasks.py", "--workers", "2", "--listen", "tcp://127.0.0.1:0"], 2, "the tool long makes tasks"),
    ],
)
def test_what_cannot_be_served_is_said_once(
    words: list[str], code: int, said: str, mcp: Callable[..., Ran], target: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "tasks.py").write_text(WITH_TASKS)
    result = mcp("serve", *words)
    assert result.returncode == code, result.stderr
    assert result.stderr.count(said) == 1
    assert "Traceback" not in result.stderr
