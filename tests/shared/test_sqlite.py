"""Shared state in SQLite keeps the contracts of `mcp_actors.abc.shared`, over processes and over their deaths."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing
import trio

from mcp_actors.abc.shared import OpenState
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import SharedStateSubject, check_shared_state
from tests.shared.task_records import ROOMY, cleaned_up_when_cancelled, make_record

# A node that a busy machine does not run for as long would count as gone.
LEASE = 1.5
TIMEOUT = 10.0


class File:
    """A file, and the connections to it, which can be made to fail as those to a broken disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"
        self.aside = folder / "aside.db"
        self.states: list[Any] = []
        self.broken = False

    def share(self) -> SqliteShared:
        file = self

        class Noted(SqliteShared):
            @asynccontextmanager
            async def open(self, name: str) -> AsyncIterator[Any]:
                async with super().open(name) as state:
                    file.states.append(state)
                    yield state
                    file.states.remove(state)

        return Noted(self.path, lease=LEASE, timeout=TIMEOUT)

    async def lose(self, state: OpenState) -> None:
        fail(state, True)
        await trio.lowlevel.checkpoint()

    async def cut(self) -> None:
        for state in self.states:
            fail(state, True)
        self.path.rename(self.aside)
        self.path.mkdir()
        await trio.lowlevel.checkpoint()

    async def mend(self) -> None:
        self.path.rmdir()
        self.aside.rename(self.path)
        for state in self.states:
            fail(state, False)
        await trio.lowlevel.checkpoint()


def fail(state: Any, broken: bool) -> None:
    answer = sqlite3.SQLITE_DENY if broken else sqlite3.SQLITE_OK
    for each in (state.tasks._writing, state.tasks._reading):
        each._connection.set_authorizer(lambda *about: answer)


@pytest.mark.slow
async def test_sqlite_keeps_the_contracts(tmp_path: Path) -> None:
    numbers = iter(range(1000))

    @asynccontextmanager
    async def in_a_file() -> AsyncIterator[SharedStateSubject]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        file = File(folder)
        yield SharedStateSubject(
            share=file.share,
            lose=file.lose,
            cut=file.cut,
            mend=file.mend,
            now=time.time,
            lease=LEASE,
            bound=3 * TIMEOUT,
        )

    report = await check_shared_state(in_a_file, patience=30, quiet=0.2, many=200, timeout=300)
    assert {name for name, _ in report.skipped} == {"flushed_state_works_again"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@asynccontextmanager
async def opened(path: Path, *, timeout: float = 60.0, lease: float = 60.0) -> AsyncIterator[Any]:
    async with SqliteShared(path, timeout=timeout, lease=lease).open("s") as state:
        yield state


def rows(path: Path, query: str, *, commit: bool = False) -> list[Any]:
    connection = sqlite3.connect(path, isolation_level=None if commit else "DEFERRED")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


async def test_only_the_owner_may_read_the_file(path: Path) -> None:
    async with opened(path) as state:
        await state.tasks.create(make_record(state.node), ROOMY)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), 0o600)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
async def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    async with opened(path):
        pass
    await trio.Path(path).chmod(mode)
    with pytest.raises(SharedStateUnavailable) as raised:
        async with opened(path):
            pass
    assert f"other users may write it (mode {mode:o}): chmod 600 it" in raised.value.cause


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_no_task_is_confirmed_that_is_in_no_file(path: Path, how: str) -> None:
    with structlog.testing.capture_logs() as logs:
        with contextlib.suppress(SharedStateUnavailable):
            async with opened(path) as state:
                await state.tasks.create(make_record(state.node), ROOMY)
                await trio.Path(path).unlink()
                if how == "replaced":
                    await trio.Path(path).write_bytes(b"")
                for _ in range(3):
                    with pytest.raises(SharedStateUnavailable) as raised:
                        await state.tasks.create(make_record(state.node), ROOMY)
                    assert "the file was deleted, moved or replaced" in raised.value.cause
    # One line says why, and not one for each call.
    assert (
        len([each for each in logs if "cannot be used" in each["event"] and "deleted" in each["cause"]]) == 1
    )


@pytest.mark.parametrize("written", ["x'00'", "x'81a26964'", "17", "'text'"])
async def test_what_is_no_task_costs_no_other(path: Path, written: str) -> None:
    async with opened(path) as state:
        good, spoilt = make_record("gone"), make_record("gone")
        for each in (good, spoilt):
            await state.tasks.create(each, ROOMY)
        rows(path, f"UPDATE tasks SET record = {written} WHERE id = '{spoilt.id}' RETURNING 1", commit=True)
        with structlog.testing.capture_logs() as logs:
            assert await state.tasks.get([spoilt.id, good.id]) == {good.id: good}
            assert await state.tasks.page("alice", None, 9) == [good]
            assert await state.tasks.abandoned(9) == [good]
    assert [each["log_level"] for each in logs] == ["warning"] * 3


async def test_a_change_is_on_the_disk_when_it_is_done(path: Path) -> None:
    async with opened(path) as state:
        connection = state.tasks._writing._connection
        settings = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ]
    assert settings == ["wal", 2]


async def test_a_lock_of_another_program_fails_what_writes_and_nothing_else(path: Path) -> None:
    async with opened(path) as state:
        record = make_record(state.node)
        await state.tasks.create(record, ROOMY)
        wait_for_no_lock(state)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(refused, state, make_record(state.node))
            assert dict(await state.tasks.get([record.id])) == {record.id: record}
            assert await state.tasks.page("alice", None, 10) == [record]
        other.close()
        assert await state.tasks.create(make_record(state.node), ROOMY) is None


async def test_a_file_that_is_locked_while_it_is_opened_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path):
        pass
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode = DELETE")
    # Who writes keeps the journal's mode from being changed, for which SQLite waits no moment.
    other.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if other.in_transaction:
            other.execute("COMMIT")

    monkeypatch.setattr(time, "sleep", sleep)
    async with opened(path) as state:
        await state.tasks.create(make_record(state.node), ROOMY)
    assert pauses
    other.close()


async def refused(state: Any, record: Any) -> None:
    with pytest.raises(SharedStateUnavailable) as raised:
        await state.tasks.create(record, ROOMY)
    assert raised.value.data["role"] == "tasks"


def wait_for_no_lock(state: Any) -> None:
    """Has what writes fail at a lock, while a slow disk has all its time."""
    state.tasks._writing._connection.execute("PRAGMA busy_timeout = 100")


async def test_a_full_disk_loses_nothing_and_is_over_when_there_is_room(path: Path) -> None:
    async with opened(path) as state:
        record = make_record(state.node)
        await state.tasks.create(record, ROOMY)
        connection = state.tasks._writing._connection
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        large = make_record(state.node, request=bytes(200_000))
        await refused(state, large)
        assert dict(await state.tasks.get([record.id, large.id])) == {record.id: record}
        assert await state.tasks.replace(msgspec.structs.replace(record, revision=record.revision + 1))
        # What finds its place says nothing about what found none.
        assert state.failure == "database or disk is full"
        connection.execute("PRAGMA max_page_count = 1000000")
        assert await state.tasks.create(large, ROOMY) is None
        assert state.failure is None
        assert len(await state.tasks.get([record.id, large.id])) == 2


def other_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()


def later_version(path: Path) -> None:
    trio.run(touch, path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


async def touch(path: Path) -> None:
    async with opened(path):
        pass


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (other_program, "another program"),
        (later_version, "version"),
        (lambda path: path.write_bytes(b"no database" * 1000), "not a database"),
        (Path.mkdir, "directory"),
    ],
    ids=["another program's", "a later version's", "no database", "a folder"],
)
def test_a_file_that_cannot_be_used_is_refused_and_left(path: Path, make: Any, cause: str) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(SharedStateUnavailable) as raised:
        trio.run(touch, path)
    assert cause in raised.value.cause
    assert any(cause in note for note in raised.value.__notes__)
    assert before is None or path.read_bytes() == before


async def test_what_waits_together_is_committed_together(path: Path) -> None:
    async with opened(path) as state:
        statements: list[str] = []
        state.tasks._writing._connection.set_trace_callback(statements.append)
        records = [make_record(state.node) for _ in range(200)]
        async with trio.open_nursery() as nursery:
            for record in records:
                nursery.start_soon(state.tasks.create, record, ROOMY)
        assert statements.count("COMMIT") <= 5
        assert len(await state.tasks.get([record.id for record in records])) == 200


async def test_tasks_whose_time_is_over_are_dropped_in_steps(path: Path) -> None:
    async with opened(path, lease=0.15) as state:
        async with trio.open_nursery() as nursery:
            for number in range(450):
                nursery.start_soon(
                    state.tasks.create, make_record(state.node, ttl=0.01 if number % 10 else None), ROOMY
                )
        left = rows(path, "SELECT count(*) FROM tasks")
        with trio.fail_after(60):
            while left != [(45,)]:
                await trio.sleep(0.02)
                left = rows(path, "SELECT count(*) FROM tasks")
        assert rows(path, "SELECT tasks, bytes > 0 FROM totals") == [(45, 1), (45, 1)]


async def test_setting_the_time_ends_no_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as first, opened(path) as second:
        await first.tasks.create(make_record(first.node, ttl=None), ROOMY)
        now = time.time()
        for step in (86400.0, -86400.0):
            monkeypatch.setattr(time, "time", partial(lambda step: now + step, step))
            assert await second.tasks.abandoned(10) == []


async def test_nodes_of_an_earlier_start_of_the_machine_are_gone(path: Path) -> None:
    async with opened(path) as first, opened(path) as second:
        record = make_record(first.node)
        await first.tasks.create(record, ROOMY)
        connection = sqlite3.connect(path)
        connection.execute("UPDATE nodes SET boot = 'earlier' WHERE name = ?", (first.node,))
        connection.commit()
        connection.close()
        assert await second.tasks.abandoned(10) == [record]
        assert await first.tasks.abandoned(10) == []


async def test_a_task_id_is_used_once(path: Path) -> None:
    async with opened(path) as state:
        record = make_record(state.node)
        await state.tasks.create(record, ROOMY)
        others = [make_record(state.node) for _ in range(5)]
        async with trio.open_nursery() as nursery:
            for other in others[:3]:
                nursery.start_soon(state.tasks.create, other, ROOMY)
            with pytest.raises(ValueError, match="used once"):
                await state.tasks.create(make_record("another", id=record.id, owner="mallory"), ROOMY)
            for other in others[3:]:
                nursery.start_soon(state.tasks.create, other, ROOMY)
        found = await state.tasks.get([record.id, *(other.id for other in others)])
        assert len(found) == 6
        assert found[record.id] == record


async def test_too_much_that_waits_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as state:
        wait_for_no_lock(state)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("mcp_actors.shared.sqlite.MAX_WAITING_BYTES", 100_000)
        causes: list[str] = []

        async def create() -> None:
            with pytest.raises(SharedStateUnavailable) as raised:
                await state.tasks.create(make_record(state.node, request=bytes(30_000)), ROOMY)
            causes.append(raised.value.cause)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create)
        other.close()
        assert sum("steps wait" in cause for cause in causes) >= 4


async def test_a_node_that_cannot_say_that_it_ends_is_logged(path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with opened(path) as state:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            # Its own bound, so that a busy machine has time for all else.
            state.tasks._writing._timeout = 0.5
        other.close()
    # The first one says why: the file did not answer.
    assert ["lease" in entry["event"] for entry in logs] == [False, True]


@pytest.mark.parametrize("wrong", [{"lease": 0}, {"timeout": -1.0}, {"lease": float("nan")}])
def test_times_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        SqliteShared("state.db", **wrong)


async def test_a_server_that_is_cancelled_can_still_write_and_ends_its_lease(tmp_path: Path) -> None:
    shared = SqliteShared(tmp_path / "state.db", lease=3600, timeout=30)
    ended = await cleaned_up_when_cancelled(shared)
    async with shared.open("shop") as other:
        assert [each.node for each in await other.tasks.abandoned(10)] == [ended.node]
