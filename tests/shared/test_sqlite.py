"""Shared state in SQLite keeps the contracts of `mcp_actors.abc.shared`, over processes and over their deaths."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc.shared import OpenState
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import SharedStateSubject, check_shared_state

LEASE = 0.4


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

        return Noted(self.path, lease=LEASE, timeout=0.5)

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


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


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
            bound=1.5,
        )

    report = await check_shared_state(in_a_file, quiet=0.02, many=200)
    assert {name for name, _ in report.skipped} == {"flushed_state_works_again"}
