"""Shared state of several nodes in one process and under virtual time: right as it stands, wrong where told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio

from mcp_actors.abc.shared import Replay, SessionPlace, TaskBounds, TaskRecord
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import MemoryEventLog, MemoryTaskStore
from mcp_actors.shared.memory import MemoryReplayGuard, MemoryValueStore, new_node_name
from mcp_actors.testing import SharedStateSubject

LEASE = 10.0
MAX_WAITING = 5000


class Place:
    """All that the nodes share, and its outages."""

    def __init__(self, **parts: Any) -> None:
        self.parts = {
            "sessions": Sessions,
            "events": Events,
            "bus": EventBus,
            "tasks": Tasks,
            "replays": Replays,
            "values": Values,
            "node": Node,
            "content": Content,
        } | parts
        self.contents: dict[str, Any] = {}
        self.down = False
        self.pending: list[Callable[[], object]] = []

    def soon(self, act: Callable[[], object]) -> None:
        if self.down:
            self.pending.append(act)
        else:
            act()

    async def cut(self) -> None:
        await trio.lowlevel.checkpoint()
        self.down = True

    async def mend(self) -> None:
        await trio.lowlevel.checkpoint()
        self.down = False
        pending, self.pending = self.pending, []
        for act in pending:
            act()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()
        for content in self.contents.values():
            content.flush()

    async def lose(self, state: Any) -> None:
        await trio.lowlevel.checkpoint()
        state.lost_at = trio.current_time()

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Any]:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise SharedStateUnavailable("tasks", "it is down")
        content = self.contents.setdefault(self.key_of(name), self.parts["content"]())
        node = self.parts["node"](self, content)
        content.nodes[node.node] = node
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.bus.pump)
            try:
                yield node
            finally:
                nursery.cancel_scope.cancel(reason="the node is closed")
                node.leave()

    def key_of(self, name: str) -> str:
        return name

    def subject(self) -> SharedStateSubject:
        return SharedStateSubject(
            share=lambda: self,
            lose=self.lose,
            cut=self.cut,
            mend=self.mend,
            flush=self.flush,
            lease=LEASE,
        )


class Content:
    """What the nodes of one server share."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.flush()

    def flush(self) -> None:
        self.sessions: dict[str, tuple[str, str, str]] = {}
        self.records: dict[str, tuple[bytes, float]] = {}
        self.published: list[tuple[str, str]] = []
        self.log = MemoryEventLog()
        self.tasks = MemoryTaskStore(clock=trio.current_time)
        self.replays = MemoryReplayGuard()
        self.values = MemoryValueStore(clock=trio.current_time)
        for node in self.nodes.values():
            self.sessions |= node.own_sessions


class Node:
    def __init__(self, place: Place, content: Any) -> None:
        self.node = new_node_name()
        self.place = place
        self.content = content
        self.lost_at: float | None = None
        self.ended = False
        self.own_sessions: dict[str, tuple[str, str, str]] = {}
        self.sessions = place.parts["sessions"](self)
        self.events = place.parts["events"](self)
        self.bus = place.parts["bus"](self)
        self.tasks = place.parts["tasks"](self)
        self.replays = place.parts["replays"](self)
        self.values = place.parts["values"](self)

    async def reach(self, role: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.place.down or self.lost_at is not None:
            raise SharedStateUnavailable(role, "it is down")

    @property
    def alive(self) -> bool:
        return not self.ended and (self.lost_at is None or trio.current_time() < self.lost_at + LEASE)

    def leave(self) -> None:
        if self.lost_at is None:
            self.ended = True


class Role:
    spans_processes = True

    def __init__(self, node: Any) -> None:
        self.of = node


class Sessions(Role):
    async def register(self, session: str, owner: str, address: str) -> None:
        await self.of.reach("sessions")
        self.of.own_sessions[session] = self.of.content.sessions[session] = (self.of.node, owner, address)

    async def find(self, session: str) -> SessionPlace | None:
        await self.of.reach("sessions")
        found = self.of.content.sessions.get(session)
        if found is None:
            return None
        return SessionPlace(
            found[2], found[1], self.of.content.nodes[found[0]].alive, self.record_of(session) is not None
        )

    def forget(self, session: str) -> None:
        self.of.own_sessions.pop(session, None)
        self.of.place.soon(lambda: self.of.content.sessions.pop(session, None))

    def record_of(self, session: str) -> bytes | None:
        record, until = self.of.content.records.get(session, (None, 0.0))
        return record if trio.current_time() < until else None

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        await self.of.reach("sessions")
        for session, record in records.items():
            self.of.own_sessions.pop(session, None)
            self.of.content.records[session] = record, trio.current_time() + seconds

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        await self.of.reach("sessions")
        record = self.record_of(session)
        if record is not None:
            del self.of.content.records[session]
            self.of.own_sessions[session] = self.of.content.sessions[session] = self.of.node, owner, address
        return record


class Events(Role):
    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        event_id = str(self.of.content.log.append(session, stream, data))
        if kept is not None:
            self.of.place.soon(lambda: kept(True))
        return event_id

    async def after(self, session: str, event_id: str) -> Replay | None:
        await self.of.reach("events")
        replay: Replay | None = await self.of.content.log.after(session, event_id)
        return replay

    def end(self, session: str, stream: str) -> None:
        self.of.content.log.end(session, stream)

    def forget(self, session: str) -> None:
        self.of.content.log.forget(session)

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        await trio.lowlevel.checkpoint()

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        pass


class EventBus(Role):
    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self.waiting: dict[tuple[str, str], None] = {}
        self.dropped = False
        self.arrived = trio.Event()
        self.subscribers: dict[object, tuple[Callable[[str, str], None], Callable[[], None]]] = {}
        self.mailboxes: dict[str, Callable[[bytes], None]] = {}
        self.closed: set[str] = set()
        self.opened = 0

    def publish(self, topic: str, key: str = "") -> None:
        self.waiting[topic, key] = None
        if len(self.waiting) > MAX_WAITING:
            self.waiting.clear()
            self.dropped = True
        self.arrived.set()

    async def pump(self) -> None:
        while True:
            await self.arrived.wait()
            self.arrived = trio.Event()
            waiting, self.waiting = list(self.waiting), {}
            dropped, self.dropped = self.dropped, False
            self.of.place.soon(lambda waiting=waiting, dropped=dropped: self.deliver(waiting, dropped))

    def deliver(self, waiting: list[tuple[str, str]], dropped: bool) -> None:
        self.of.content.published += waiting
        for node in self.of.content.nodes.values():
            if node is not self.of:
                node.bus.take(waiting, dropped)

    def take(self, waiting: list[tuple[str, str]], dropped: bool) -> None:
        for take, missed in list(self.subscribers.values()):
            for topic, key in waiting:
                take(topic, key)
            if dropped:
                missed()

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self.subscribers[token] = (take, missed)
        return lambda: self.subscribers.pop(token, None) and None

    @property
    def position(self) -> str:
        return str(len(self.of.content.published))

    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        await self.of.reach("bus")
        waiting, self.waiting = list(self.waiting), {}
        self.deliver(waiting, False)
        found: list[tuple[str, str]] = self.of.content.published[int(position) :]
        return found

    async def shut(self, address: str) -> None:
        await self.of.reach("bus")
        self.closed.add(address)

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        await self.of.reach("bus")
        node = self.of.content.nodes.get(address.partition("/")[0])
        if node is None or not node.alive or (begins and address in node.bus.closed):
            return False
        take = node.bus.mailboxes.get(address)
        if take is not None:
            take(message)
        return True

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self.opened += 1
        address = f"{self.of.node}/{self.opened}"
        self.mailboxes[address] = take
        return address, lambda: self.mailboxes.pop(address, None) and None


class Tasks(Role):
    survives = True

    @property
    def store(self) -> Any:
        return self.of.content.tasks

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        await self.of.reach("tasks")
        answer: Literal["owner", "all"] | None = await self.store.create(record, bounds)
        return answer

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        await self.of.reach("tasks")
        found: Mapping[str, TaskRecord] = await self.store.get(ids)
        return found

    async def replace(self, record: TaskRecord) -> bool:
        await self.of.reach("tasks")
        return bool(await self.store.replace(record))

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        await self.of.reach("tasks")
        records: Sequence[TaskRecord] = await self.store.page(owner, after, limit)
        return records

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        await self.of.reach("tasks")
        return [each for each in self.store._tasks.values() if self.is_abandoned(each)][:limit]

    def is_abandoned(self, record: TaskRecord) -> bool:
        return not record.is_terminal and not self.of.content.nodes[record.node].alive


class Replays(Role):
    async def first_use(self, name: bytes, seconds: float) -> bool:
        await self.of.reach("replays")
        return bool(await self.of.content.replays.first_use(name, seconds))


class Values(Role):
    async def load(self, key: str) -> bytes | None:
        await self.of.reach("values")
        found: bytes | None = await self.of.content.values.load(key)
        return found

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        await self.of.reach("values")
        return bool(await self.of.content.values.replace(key, before, after, seconds))
