"""``mcp-actors serve`` with functions in processes of their own: what a reload changes, and that no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client
from tests.cli.conftest import LIMIT, Started, announced

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform != "linux", reason="the processes of a test are found by their environment"
    ),
]

SERVER = """
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_actors import Limits, Server, SyncContext

server = Server("isolating", limits=Limits(isolated_processes=2, drain_grace=0.5))

@contextmanager
def opened() -> Iterator[int]:
    Path("opened", str(os.getpid())).touch()
    yield VERSION
    Path("closed", str(os.getpid())).touch()

@server.tool(isolate="process", lifespan=opened)
def version(ctx: SyncContext[int]) -> list[int]:
    return [VERSION, ctx.state, os.getpid()]

@server.tool(isolate="process")
def hang() -> None:
    Path("hanging").touch()
    sum(range(10**12))

@server.tool
async def worker() -> int:
    return os.getpid()
"""


@pytest.fixture
def target(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program; what is started has its folder in the environment, by which it is found."""
    environment["ISOLATED_TOOLS_OF"] = str(tmp_path)
    (tmp_path / "opened").mkdir()
    (tmp_path / "closed").mkdir()
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "isolating.py", 1)
    return tmp_path / "isolating.py"


def write(target: Path, version: int) -> None:
    target.write_text(SERVER.replace("VERSION", str(version)))


def processes(target: Path, *, isolated: bool = True) -> set[int]:
    """The processes of a test that are there: those of functions, or all of them."""
    mark = f"ISOLATED_TOOLS_OF={target.parent}".encode()
    found: set[int] = set()
    for each in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = mark in (each / "environ").read_bytes().split(b"\0")
            if is_ours and (not isolated or b"_server.isolated" in (each / "cmdline").read_bytes()):
                found.add(int(each.name))
        except OSError:
            continue
    return found


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it is about other processes
        await trio.sleep(0.02)


@asynccontextmanager
async def serving(
    started: Started, target: Path, *words: str
) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with started("serve", str(target), "--listen", "http://127.0.0.1:0/mcp", *words, **options) as process:
        assert process.stderr is not None
        line = await trio.to_thread.run_sync(announced, process.stderr)
        with trio.fail_after(LIMIT):
            yield line.split()[-1], process


async def hang(url: str) -> None:
    try:
        async with Client(url) as client:
            await client.call_tool("hang")
    except Exception:
        return  # its server ends


WORDS: dict[str, list[str]] = {"one": [], "workers": ["--workers", "2"], "reload": ["--reload"]}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
async def test_no_process_is_left_when_a_server_has_ended(
    words: list[str], how: int, started: Started, target: Path
) -> None:
    async with serving(started, target, *words) as (url, process), trio.open_nursery() as nursery:
        many = 4 if "--workers" in words else 2
        await until(lambda: len(os.listdir("opened")) == many)
        nursery.start_soon(hang, url)
        await until(lambda: Path("hanging").exists())
        process.send_signal(how)
        await until(lambda: not processes(target, isolated=False))
        nursery.cancel_scope.cancel()

    if how != signal.SIGKILL:
        # Those that ran nothing have closed their lifespans.
        assert len(os.listdir("closed")) == many - 1


async def test_the_processes_of_a_worker_that_is_killed_end_and_another_one_has_its_own(
    started: Started, target: Path
) -> None:
    async with serving(started, target, *WORDS["workers"]) as (url, _), trio.open_nursery() as nursery:
        await until(lambda: len(os.listdir("opened")) == 4)
        before = processes(target)
        nursery.start_soon(hang, url)
        await until(lambda: Path("hanging").exists())
        async with Client(url) as client:
            worker = await client.call_tool("worker", returns=int)
        os.kill(worker, signal.SIGKILL)
        await until(lambda: len(before & processes(target)) == 2)
        await until(lambda: len(processes(target)) == 4)
        found: list[int] = []
        while not found:
            # A new worker may have its processes before it accepts: a call that comes to the other one until then waits
            # behind the one that hangs, which has its caller's share.
            async with Client(url) as client:
                with trio.move_on_after(5):
                    found = await client.call_tool("version", returns=list[int])
        assert found[:2] == [1, 1]
        nursery.cancel_scope.cancel()


async def test_a_module_that_has_changed_runs_anew_in_processes_of_its_own(
    started: Started, target: Path
) -> None:
    async with serving(started, target, "--reload") as (url, _), Client(url) as client:
        first = await client.call_tool("version", returns=list[int])
        await until(lambda: len(os.listdir("opened")) == 2)
        before = processes(target)
        assert len(before) == 2
        write(target, 22)
        found = first
        while found[0] == 1:
            await trio.sleep(0.05)
            found = await client.call_tool("version", returns=list[int])
        # The first of the new ones answers while the second one may still begin.
        await until(lambda: not before & processes(target) and len(processes(target)) == 2)
        after = processes(target)

    assert first[:2] == [1, 1]
    assert found[:2] == [22, 22]
    assert found[2] in after
    assert len(after) == 2
    assert {*map(int, os.listdir("closed"))} >= before
