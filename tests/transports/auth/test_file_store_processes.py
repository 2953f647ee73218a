"""Several processes that rotate one refresh token: none is used twice, and none is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mcp_transports.auth import FileTokenStore

pytestmark = pytest.mark.slow
PROCESSES, ROTATIONS = 4, 100
PATIENCE = 240

# The authorization server is a file that has the one refresh token which is valid. Two uses of one token revoke all.
ROTATE = """
import os, sys, trio
from mcp_transports.auth import FileTokenStore

folder, rotations = sys.argv[1], int(sys.argv[2])
valid = os.path.join(folder, "valid")

def refresh(token):
    with open(valid) as file:
        if file.read() != token:
            sys.exit(f"the token {token} is used twice")
    number = int(token) + 1
    with open(valid + f".{os.getpid()}", "w") as file:
        file.write(str(number))
    os.replace(file.name, valid)
    with open(os.path.join(folder, "uses"), "a") as file:
        file.write(f"{token}\\n")
    return str(number)

async def main():
    store = FileTokenStore(os.path.join(folder, "tokens.json"))
    while True:
        async with store.lock("key"):
            found = await store.load("key")
            if int(found.value["refresh"]) >= rotations:
                return
            fresh = refresh(found.value["refresh"])
            assert await store.swap("key", found.generation, {"refresh": fresh})
            # Another record of the same file is changed without that lock.
        seen = await store.load("other")
        await store.swap("other", seen.generation if seen else None, {"pid": os.getpid()})

trio.run(main)
"""
HOLD = """
import sys, trio
from mcp_transports.auth import FileTokenStore

async def main():
    async with FileTokenStore(sys.argv[1]).lock("key"):
        print("held", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""
WRITE = """
import sys, trio
from mcp_transports.auth import FileTokenStore

async def main():
    store = FileTokenStore(sys.argv[1])
    while True:
        found = await store.load("key")
        number = found.generation + 1 if found else 1
        await store.swap("key", found and found.generation, {"text": "x" * 200_000, "number": number})
        print(number, flush=True)

trio.run(main)
"""


def prepare(folder: Path) -> None:
    (folder / "valid").write_text("0")


async def test_no_rotation_is_lost(tmp_path: Path) -> None:
    prepare(tmp_path)
    store = FileTokenStore(tmp_path / "tokens.json")
    assert await store.swap("key", None, {"refresh": "0"})
    command = [sys.executable, "-c", ROTATE, str(tmp_path), str(ROTATIONS)]
    results: list[subprocess.CompletedProcess[bytes]] = []

    async def run() -> None:
        results.append(await trio.run_process(command, check=False, capture_stderr=True))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(PROCESSES):
                nursery.start_soon(run)
    assert [(each.returncode, each.stderr) for each in results] == [(0, b"")] * PROCESSES
    found = await store.load("key")
    assert found is not None
    assert found.value == {"refresh": str(ROTATIONS)}
    # The changes of the other record are counted too.
    assert found.generation > ROTATIONS + 1
    assert (tmp_path / "uses").read_text().split() == [str(each) for each in range(ROTATIONS)]


def is_locked(folder: Path) -> bool:
    for path in folder.glob("*.*.lock"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


@asynccontextmanager
async def program(text: str, path: Path) -> AsyncIterator[trio.Process]:
    """Runs a program until the end of the block, when it is killed."""
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, [sys.executable, "-c", text, str(path)], check=False)
        process = await nursery.start(partial(run, stdout=subprocess.PIPE))
        with trio.fail_after(PATIENCE):
            yield process
        process.kill()


async def test_a_process_that_is_killed_gives_its_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    async with program(HOLD, path) as process:
        assert (await process.stdout.receive_some()).startswith(b"held")
        assert is_locked(tmp_path)
    with trio.fail_after(PATIENCE):
        async with FileTokenStore(path).lock("key"):
            assert await FileTokenStore(path).swap("key", None, {})


async def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    store = FileTokenStore(path)
    for writes in range(1, 6):
        async with program(WRITE, path) as process:
            written = b""
            while written.count(b"\n") < writes:
                written += await process.stdout.receive_some()
        found = await store.load("key")
        assert found is not None
        assert found.value == {"text": "x" * 200_000, "number": found.generation}
        assert await store.swap("key", found.generation, {**found.value, "number": found.generation + 1})
    assert not [each for each in os.listdir(tmp_path) if "damaged" in each]
