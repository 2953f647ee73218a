"""The file of tokens with the locks and files of Windows, which several processes use at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from running import PATIENCE

from mcp_actors.errors import TokenStoreFailed
from mcp_transports.auth import file_store
from mcp_transports.auth.file_store import FileLock, FileTokenStore, default_token_file

CHANGES = 10
# Each of several processes adds to one record as often as that.
ADDS = f"""
import sys, trio
from mcp_transports.auth.file_store import FileTokenStore
async def main():
    store = FileTokenStore(sys.argv[1])
    for _ in range({CHANGES}):
        while True:
            found = await store.load("key")
            value = {{"count": found.value["count"] + 1 if found else 1}}
            if await store.swap("key", found.generation if found else None, value):
                break
trio.run(main)
"""
# It holds a lock until its input ends.
HOLDS = """
import sys, trio
from mcp_transports.auth.file_store import FileLock
async def main():
    await FileLock(sys.argv[1]).acquire()
    print("held", flush=True)
    sys.stdin.read()
trio.run(main)
"""


def test_the_default_file_is_in_the_profile() -> None:
    assert default_token_file() == Path(os.environ["LOCALAPPDATA"], "mcp-actors", "tokens.json")


async def test_a_token_is_kept_and_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokens.json"
    store, other = FileTokenStore(path), FileTokenStore(path)
    assert await store.load("key") is None
    assert await store.swap("key", None, {"token": "secret"})
    assert not await other.swap("key", None, {"token": "late"})
    found = await other.load("key")
    assert found is not None
    assert found.value == {"token": "secret"}
    assert sorted(each.name for each in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


async def test_processes_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(trio.run_process, [sys.executable, "-c", ADDS, str(path)])
    found = await FileTokenStore(path).load("key")
    assert found is not None
    assert found.value == {"count": 2 * CHANGES}


async def test_a_lock_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "lock")]
    lock = FileLock(tmp_path / "lock")
    with trio.fail_after(PATIENCE):
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        assert (await process.stdout.receive_some()).strip() == b"held"
        with trio.move_on_after(0.5) as scope:
            await lock.acquire()
        assert scope.cancelled_caught
        process.kill()
        await lock.acquire()
        lock.release()
        await process.wait()


async def test_a_file_that_another_program_has_open_is_replaced_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    store = FileTokenStore(path)
    assert await store.swap("key", None, {"n": 1})
    found = await store.load("key")
    assert found is not None
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            with path.open():
                nursery.start_soon(store.swap, "key", found.generation, {"n": 2})
                await trio.sleep(0.2)
            # Closed, while the store tries again.
    changed = await store.load("key")
    assert changed is not None
    assert changed.value == {"n": 2}


async def test_a_file_that_stays_open_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    store = FileTokenStore(path)
    assert await store.swap("key", None, {"n": 1})
    monkeypatch.setattr(file_store, "PATIENCE", 0.2)
    with path.open(), trio.fail_after(PATIENCE), pytest.raises(TokenStoreFailed, match="cannot be used"):
        await store.swap("other", None, {})
    assert await store.load("other") is None
