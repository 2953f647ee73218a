"""Shared state of several nodes in one process, which a test can cut off, and whose nodes it can lose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio

from mcp_actors.abc import TaskBounds, TaskRecord
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.memory import MemoryState

__all__ = ["FakeBus", "FakeShared", "FakeStore"]


class FakeStore:
    """A `mcp_actors.abc.TaskStore` in a dict."""

    def __init__(self, *, spans: bool = True) -> None:
        self.spans_processes = spans
        self.survives = spans
        self.records: dict[str, TaskRecord] = {}
        self.lost: set[str] = set()
        self.away = False
        self.writes = 0

    async def _reached(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise SharedStateUnavailable("tasks", "a test has cut it off")

    def _there(self, record: TaskRecord) -> bool:
        return record.ttl is None or trio.current_time() < record.created + record.ttl

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        await self._reached()
        if len(self.records) >= bounds.of_all:
            return "all"
        if sum(each.owner == record.owner for each in self.records.values()) >= bounds.of_owner:
            return "owner"
        self.records[record.id] = record
        return None

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        await self._reached()
        return {id: self.records[id] for id in ids if id in self.records and self._there(self.records[id])}

    async def replace(self, record: TaskRecord) -> bool:
        await self._reached()
        current = self.records.get(record.id)
        if current is None or current.is_terminal or current.revision != record.revision - 1:
            return False
        self.records[record.id] = record
        self.writes += 1
        return True

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        await self._reached()
        ids = [id for id, record in self.records.items() if record.owner == owner]
        start = ids.index(after) + 1 if after in ids else 0
        return [self.records[id] for id in ids[start : start + limit]]

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        await self._reached()
        left = [each for each in self.records.values() if not each.is_terminal and each.node in self.lost]
        return left[:limit]


class FakeBus:
    """The `mcp_actors.abc.Bus` of one node of a `FakeShared`."""

    def __init__(self, shared: FakeShared) -> None:
        self.spans_processes = shared.bus_spans
        self._shared = shared

    def publish(self, topic: str, key: str = "") -> None:
        if self.spans_processes:
            for bus, take in list(self._shared.heard):
                if bus is not self:
                    take(topic, key)

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        place = (self, take)
        self._shared.heard.append(place)
        return lambda: self._shared.heard.remove(place)

    async def send(self, address: str, message: bytes) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        return "nowhere", lambda: None


class FakeShared:
    """A `mcp_actors.abc.SharedState`: every server that is given it is one more node."""

    def __init__(self, *, spans: bool = True, bus_spans: bool = True) -> None:
        self.bus_spans = bus_spans
        self.store = FakeStore(spans=spans)
        self.heard: list[tuple[FakeBus, Callable[[str, str], None]]] = []
        self.nodes: list[str] = []

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Any]:
        state = MemoryState()
        state.tasks = self.store  # type: ignore[assignment]
        state.bus = FakeBus(self)  # type: ignore[assignment]
        self.nodes.append(state.node)
        try:
            yield state
        finally:
            self.store.lost.add(state.node)
