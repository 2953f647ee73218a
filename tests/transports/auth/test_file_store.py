"""The file of tokens: what others see of it, what a crash leaves of it, and that no change is lost."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors.auth import MemoryTokenStore, StoredRecord, TokenStore
from mcp_actors.errors import TokenStoreFailed
from mcp_transports.auth import FileTokenStore
from mcp_transports.auth.file_store import FileLock

SECRET = "s3cret-value"
TOKEN = {"token": SECRET, "expires": 1.5, "scopes": ["a", "b"], "known": None}
PATIENCE = 90
of_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="access lists say there who may use a file, not its mode and owner"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_private(path: Path) -> bool:
    """Whether a file has the mode of a private one; on Windows a file takes the access list of its folder."""
    return sys.platform == "win32" or mode_of(path) == 0o600


def allow(path: Path, mode: int) -> None:
    path.chmod(mode)


def content(path: Path) -> bytes:
    return path.read_bytes()


def damage(path: Path, data: bytes) -> None:
    path.write_bytes(data)


async def test_a_record_is_kept_for_other_stores(path: Path) -> None:
    one, other = FileTokenStore(path), FileTokenStore(str(path))
    assert await one.load("key") is None
    assert await one.swap("key", None, TOKEN)
    assert await other.load("key") == StoredRecord(TOKEN, 1)
    assert not await other.swap("key", None, {})
    assert await other.swap("key", 1, {"token": "new"})
    assert not await one.swap("key", 1, {"token": "late"})
    assert await one.load("key") == StoredRecord({"token": "new"}, 2)
    assert await one.load("another") is None
    assert await one.swap("key", 2, None)
    assert await other.load("key") is None


async def test_no_text_about_a_store_has_what_it_keeps(path: Path) -> None:
    store = FileTokenStore(path)
    await store.swap("key", None, TOKEN)
    assert SECRET not in repr(store)
    assert SECRET not in repr(await store.load("key"))


@of_posix
async def test_only_the_user_may_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        store = FileTokenStore(path)
        async with store.lock("key"):
            await store.swap("key", None, TOKEN)
    finally:
        os.umask(before)
    assert mode_of(path.parent) == 0o700
    assert {mode_of(each) for each in path.parent.iterdir()} == {0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="its place there is the folder of local data")
def test_its_place_is_that_of_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert repr(FileTokenStore()) == f"<FileTokenStore {tmp_path}/.local/state/mcp-actors/tokens.json>"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert "relative" not in repr(FileTokenStore())
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    assert repr(FileTokenStore()) == f"<FileTokenStore {tmp_path}/state/mcp-actors/tokens.json>"
    assert repr(FileTokenStore("~/x.json")) == f"<FileTokenStore {tmp_path}/x.json>"


# -- files that are not as they should be -------------------------------------------------------------------------


async def filled(path: Path) -> FileTokenStore:
    store = FileTokenStore(path)
    assert await store.swap("key", None, TOKEN)
    return store


async def fails(store: TokenStore, match: str) -> None:
    for _ in range(2):
        with pytest.raises(TokenStoreFailed, match=match) as caught:
            await store.load("key")
        assert SECRET not in str(caught.value)
        with pytest.raises(TokenStoreFailed, match=match):
            await store.swap("key", 1, {})


@of_posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
async def test_a_file_that_others_may_read_is_refused_and_left_alone(path: Path, mode: int) -> None:
    store = await filled(path)
    allow(path, mode)
    before = content(path)
    await fails(store, "chmod 600")
    assert content(path) == before
    allow(path, 0o600)
    assert await store.load("key") is not None


@of_posix
async def test_a_folder_in_which_others_may_replace_it_is_refused(path: Path) -> None:
    store = await filled(path)
    path.parent.chmod(0o777)
    with pytest.raises(TokenStoreFailed, match="chmod go-w"):
        await store.swap("key", 1, {})
    path.parent.chmod(0o1777)
    assert await store.swap("key", 1, {})


@of_posix
async def test_a_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await filled(path)
    before = content(path)
    true_owner = os.stat

    def of_another(name: Any, **more: Any) -> os.stat_result:
        found = true_owner(name, **more)
        values = list(found)
        values[stat.ST_UID] = os.geteuid() + 1 if name == str(path.parent) else found.st_uid
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", of_another)
    with pytest.raises(TokenStoreFailed, match="another user"):
        await store.swap("key", 1, {})
    with pytest.raises(TokenStoreFailed, match="another user"):
        async with store.lock("key"):
            raise AssertionError("it was locked")
    assert content(path) == before


async def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    os.makedirs(path)
    # Windows opens no folder, and says the same of it as of a file that somebody may not read.
    await fails(FileTokenStore(path), "Permission denied" if sys.platform == "win32" else "directory")


@pytest.mark.skipif(sys.platform == "win32", reason="no pipe has a place among files there")
async def test_a_pipe_in_its_place_is_refused(path: Path) -> None:
    path.parent.mkdir(0o700)
    os.mkfifo(path, 0o600)
    with trio.fail_after(PATIENCE):
        await fails(FileTokenStore(path), "no file")


async def test_a_link_is_followed_when_the_store_is_made(path: Path, tmp_path: Path) -> None:
    await filled(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert await FileTokenStore(link).swap("key", 1, {"new": 1})
    assert link.is_symlink()
    assert await FileTokenStore(path).load("key") == StoredRecord({"new": 1}, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="only POSIX can open a file and refuse a link")
async def test_a_link_that_is_made_later_is_not_followed(path: Path, tmp_path: Path) -> None:
    await filled(path)
    store = FileTokenStore(tmp_path / "later.json")
    (tmp_path / "later.json").symlink_to(path)
    await fails(store, "cannot be used")


DAMAGED = [
    b"",
    b"{",
    b"rubbish",
    b"[]",
    b"null",
    b"{}",
    b'{"version": 1}',
    b'{"version": 1, "records": {}}',
    b'{"version": 1, "changes": 1, "records": {"key": {"generation": 1}}}',
    b'{"version": 1, "changes": 1, "records": {"key": {"generation": "1", "value": {}}}}',
    b'{"version": 1, "changes": 1, "records": {"key": {"generation": 1, "value": []}}}',
    b'{"version": "x", "changes": 1, "records": {}}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"version":1,"x":' + b"[" * 100_000,
]


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: data[:30].decode("latin-1"))
@pytest.mark.parametrize("operation", ["load", "swap"])
async def test_a_damaged_file_is_kept_and_a_new_one_is_begun(path: Path, data: bytes, operation: str) -> None:
    store = await filled(path)
    damage(path, data)
    with capture_logs() as logs:
        if operation == "load":
            assert await store.load("key") is None
        assert await store.swap("key", None, TOKEN)
    found = await store.load("key")
    assert found is not None
    assert found.value == TOKEN
    (kept,) = path.parent.glob("*.damaged-*")
    assert kept.read_bytes() == data
    assert is_private(kept)
    warnings: list[MutableMapping[str, Any]] = [each for each in logs if each["log_level"] == "warning"]
    assert [each["kept"] for each in warnings] == [str(kept)]


async def test_a_file_of_a_later_version_is_left_alone(path: Path) -> None:
    store = await filled(path)
    later = json.dumps({"version": 2, "tokens": SECRET}).encode()
    damage(path, later)
    await fails(store, "later version")
    assert content(path) == later


async def test_a_file_that_cannot_be_written_is_a_typed_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(path)
    before = content(path)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:

            def full(*args: object, **options: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(f"mcp_transports.auth.file_store.os.{name}", full)
            with pytest.raises(TokenStoreFailed, match="No space left"):
                await store.swap("key", 1, {"token": "new"})
    assert content(path) == before
    assert not list(path.parent.glob("*.new"))
    assert await store.swap("key", 1, {"token": "new"})


async def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileTokenStore(tmp_path / "file" / "tokens.json")
    with pytest.raises(TokenStoreFailed, match="another path"):
        await store.swap("key", None, TOKEN)
    if sys.platform == "win32":  # which says of it that there is no such file
        assert await store.load("key") is None
    else:
        await fails(store, "another path")


async def test_what_a_killed_process_left_behind_is_in_nobodys_way(path: Path) -> None:
    store = await filled(path)
    left = path.with_name("tokens.json.new")
    left.write_text("half a docu")
    left.chmod(0o644)
    assert await store.swap("key", 1, {"token": "new"})
    assert not left.exists()
    assert is_private(path)


# -- locks --------------------------------------------------------------------------------------------------------


async def test_a_key_is_held_against_other_stores_and_other_keys_are_free(path: Path) -> None:
    one, other = FileTokenStore(path), FileTokenStore(path)
    order: list[str] = []

    async def second() -> None:
        async with other.lock("key"):
            order.append("second")

    async with trio.open_nursery() as nursery:
        async with one.lock("key"):
            nursery.start_soon(second)
            async with other.lock("x" * 5000):
                # The store itself is not locked.
                assert await other.swap("key", None, TOKEN)
                assert await one.load("key") == StoredRecord(TOKEN, 1)
            order.append("first")
    assert order == ["first", "second"]


async def test_a_wait_for_a_lock_is_bounded_and_cancelled(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = FileTokenStore(path), FileTokenStore(path)
    async with one.lock("key"):
        with trio.move_on_after(1) as scope:
            async with other.lock("key"):
                pytest.fail("the lock is held")
        assert scope.cancelled_caught
        with pytest.raises(TokenStoreFailed, match="locked by another process"):
            async with other.lock("key"):
                pytest.fail("the lock is held")
    async with other.lock("key"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no file that is open is removed there")
async def test_a_lock_whose_file_was_removed_still_locks(path: Path) -> None:
    path.parent.mkdir()
    file = path.parent / "x.lock"
    one, other = FileLock(str(file)), FileLock(str(file))
    await one.acquire()
    file.unlink()
    await other.acquire()
    assert repr(other).endswith(" held>")
    one.release()
    other.release()
    one.release()


@pytest.mark.parametrize("error", [KeyError(), OSError("not the store's")])
async def test_a_lock_is_given_back_when_its_block_fails(path: Path, error: Exception) -> None:
    store = FileTokenStore(path)
    with pytest.raises(type(error)) as caught:
        async with store.lock("key"):
            raise error
    assert caught.value is error
    with trio.fail_after(PATIENCE):
        async with store.lock("key"):
            pass


# -- many at once -------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
SWAPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        KEYS,
        st.sampled_from([None, 1, 2, 3, 4]),
        st.none() | st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
    ),
    max_size=12,
)


@given(SWAPS)
@settings(max_examples=60)
def test_any_order_of_swaps_of_several_stores_ends_as_in_memory(
    swaps: list[tuple[int, str, int | None, dict[str, Any] | None]],
) -> None:
    async def run(folder: str) -> None:
        memory = MemoryTokenStore()
        stores = [FileTokenStore(Path(folder) / "tokens.json") for _ in range(3)]
        for index, key, expected, value in swaps:
            assert await stores[index].swap(key, expected, value) == await memory.swap(key, expected, value)
            for each in ("a", "b"):
                assert await stores[index - 1].load(each) == await memory.load(each)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, folder)


@pytest.mark.parametrize("kind", ["memory", "file", "damaged file"])
async def test_who_has_read_a_record_before_it_was_deleted_replaces_no_later_one(
    path: Path, kind: str
) -> None:
    stores = [MemoryTokenStore()] * 2 if kind == "memory" else [FileTokenStore(path) for _ in range(2)]
    slow, other = stores
    assert await slow.swap("key", None, {"of": "slow"})
    read = await slow.load("key")
    assert read is not None
    if kind == "damaged file":
        damage(path, b"rubbish")
    else:
        assert await other.swap("key", read.generation, None)
    assert await other.swap("key", None, {"of": "other"})
    assert not await slow.swap("key", read.generation, {"of": "slow, again"})
    found = await slow.load("key")
    assert found is not None
    assert found.value == {"of": "other"}


async def test_of_many_swaps_at_once_each_generation_is_won_by_one(path: Path) -> None:
    won: list[int] = []

    async def rotate(store: FileTokenStore) -> None:
        while True:
            found = await store.load("key")
            generation = 0 if found is None else found.generation
            if generation >= 20:
                return
            if await store.swap("key", generation or None, {"number": generation + 1}):
                won.append(generation + 1)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(rotate, FileTokenStore(path))
    assert sorted(won) == list(range(1, 21))
    assert await FileTokenStore(path).load("key") == StoredRecord({"number": 20}, 20)


async def test_cancelled_anywhere_a_record_is_the_old_one_or_the_new_one(path: Path) -> None:
    store = await filled(path)
    generation, cancelled = 1, 0
    for ticks in range(25):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                async with store.lock("key"):
                    await store.swap("key", generation, {"number": generation + 1})
            cancelled += scope.cancelled_caught
        found = await FileTokenStore(path).load("key")
        assert found is not None
        assert found.generation in (generation, generation + 1)
        generation = found.generation
        assert not list(path.parent.glob("*.new"))
        with trio.fail_after(PATIENCE):
            async with store.lock("key"):
                pass
    assert cancelled
