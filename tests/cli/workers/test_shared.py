"""What workers share through their supervisor keeps the contracts of `mcp_actors.abc.shared`."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_actors.abc import OpenState
from mcp_actors.cli.workers import store
from mcp_actors.cli.workers.shared import WorkersShared
from mcp_actors.cli.workers.store import WorkerStore
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import MemoryShared
from mcp_actors.testing import SharedStateSubject, check_shared_state


class Workers:
    """The supervisor's side, and a socket for each worker."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.store = WorkerStore()
        self.sockets: dict[str, socket.socket] = {}

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenState]:
        ours, theirs = socket.socketpair()
        self.nursery.start_soon(self.store.serve, ours)
        async with WorkersShared(MemoryShared(), theirs).open(name) as state:
            self.sockets[state.node] = theirs
            yield state

    async def lose(self, state: OpenState) -> None:
        self.sockets[state.node].shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def workers() -> AsyncIterator[Workers]:
    async with trio.open_nursery() as nursery:
        yield Workers(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_the_state_of_workers_keeps_the_contracts() -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[SharedStateSubject]:
        async with workers() as made:
            yield SharedStateSubject(share=lambda: made, lose=made.lose, now=time.time)

    report = await check_shared_state(make, patience=60, timeout=600)
    assert [
        why for _, why in report.skipped if "cut" not in why and "flush" not in why and "mend" not in why
    ] == []


async def test_sessions_that_wait_for_another_worker_are_bounded_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "MAX_HANDED_OVER", 1_000)
    async with workers() as made, made.open("a") as state, made.open("a") as other:
        for session in ("one", "two"):
            await state.sessions.register(session, "", "mailbox")
        await state.sessions.hand_over({"one": b"x" * 800}, 60)
        with pytest.raises(SharedStateUnavailable, match="1000 bytes of sessions wait"):
            await state.sessions.hand_over({"two": b"x" * 800}, 60)
        assert await other.sessions.take_over("two", "", "mailbox") is None
        assert await other.sessions.take_over("one", "", "mailbox") == b"x" * 800
        # There is room again.
        await state.sessions.hand_over({"two": b"x" * 800}, 60)
        assert await other.sessions.take_over("two", "", "mailbox") == b"x" * 800
