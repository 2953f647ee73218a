"""Shared state in one process that several servers can be nodes of, and that can lose a node, or go away itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import OpenState, Replay, SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import MemoryEventLog, MemoryTaskStore
from mcp_actors.shared.memory import MemoryReplayGuard, MemoryValueStore, new_node_name


class Spanning:
    """A `SharedState`. Messages and events arrive a little later, as they do with a real one.

    ``latency`` are the seconds of that; ``away`` makes every method raise that may, and
    ``refused`` says that one did.
    """

    def __init__(self, *, latency: float = 0.001) -> None:
        self.latency = latency
        self.away = False
        self.refused = trio.Event()
        self.keeps = True
        self.nodes: dict[str, SpanningNode] = {}
        self.places: dict[str, tuple[str, str]] = {}
        self.log = MemoryEventLog()
        self.tasks = MemoryTaskStore(clock=trio.current_time)
        self.records: dict[str, bytes] = {}
        self.published: list[tuple[str, str]] = []
        self.shut: set[str] = set()
        self.sent: list[tuple[str, bytes]] = []
        self.loses: Callable[[str, bytes], bool] = lambda address, message: False

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenState]:
        async with trio.open_nursery() as nursery:
            node = SpanningNode(self, nursery)
            self.nodes[node.node] = node
            nursery.start_soon(node.deliver)
            try:
                yield node
            finally:
                self.lose(node.node)
                nursery.cancel_scope.cancel()

    def lose(self, node: str) -> None:
        """The node is gone for all others, and hears and says nothing any more."""
        self.nodes.pop(node, None)

    async def reach(self, role: Any) -> None:
        await trio.sleep(self.latency)
        if self.away:
            self.refused.set()
            raise SharedStateUnavailable(role, "the test says so")


class SpanningNode:
    spans_processes = True

    def __init__(self, shared: Spanning, nursery: trio.Nursery) -> None:
        self.node = new_node_name()
        self.shared = shared
        self.nursery = nursery
        self.sessions = self.bus = self
        self.events = SpanningLog(self)
        self.tasks = shared.tasks
        self.replays = MemoryReplayGuard()
        self.values = MemoryValueStore()
        self.mailboxes: dict[str, Callable[[bytes], None]] = {}
        self.takes: dict[object, tuple[Callable[[str, str], None], Callable[[], None]]] = {}
        self.into, self.out = trio.open_memory_channel[tuple[str, bytes]](1_000_000)

    # -- the directory

    async def register(self, session: str, owner: str, address: str) -> None:
        await self.shared.reach("sessions")
        self.shared.places[session] = owner, address

    async def find(self, session: str) -> SessionPlace | None:
        await self.shared.reach("sessions")
        if session not in self.shared.places:
            return None
        owner, address = self.shared.places[session]
        is_alive = address.partition("/")[0] in self.shared.nodes
        return SessionPlace(address, owner, is_alive, session in self.shared.records)

    def forget(self, session: str) -> None:
        if self.node in self.shared.nodes:
            self.shared.places.pop(session, None)
            self.shared.records.pop(session, None)

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        await self.shared.reach("sessions")
        self.shared.records |= records

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        await self.shared.reach("sessions")
        record = self.shared.records.pop(session, None)
        if record is not None:
            self.shared.places[session] = owner, address
        return record

    # -- the bus

    def publish(self, topic: str, key: str = "") -> None:
        self.shared.published.append((topic, key))
        for node in self.shared.nodes.values():
            for take, _ in tuple(node.takes.values()) if node is not self else ():
                take(topic, key)

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        mark = object()
        self.takes[mark] = take, missed
        return lambda: self.takes.pop(mark, None) and None

    @property
    def position(self) -> str:
        return str(len(self.shared.published))

    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        await self.shared.reach("bus")
        return self.shared.published[int(position) :]

    async def shut(self, address: str) -> None:
        await self.shared.reach("bus")
        self.shared.shut.add(address)
        behind = trio.Event()
        mark, close = self.open_mailbox(lambda message: behind.set())
        self.into.send_nowait((mark, b""))
        await behind.wait()
        close()

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        await self.shared.reach("bus")
        if self.node not in self.shared.nodes:
            raise SharedStateUnavailable("bus", "this node is lost")
        node = self.shared.nodes.get(address.partition("/")[0])
        if node is None or (begins and address in self.shared.shut):
            return False
        if not self.shared.loses(address, message):
            self.shared.sent.append((address, message))
            node.into.send_nowait((address, message))
        return True

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        address = f"{self.node}/{len(self.mailboxes)}"
        self.mailboxes[address] = take
        return address, lambda: self.mailboxes.pop(address, None) and None

    async def deliver(self) -> None:
        async for address, message in self.out:
            if self.node in self.shared.nodes and (take := self.mailboxes.get(address)) is not None:
                take(message)


class SpanningLog:
    spans_processes = True

    def __init__(self, node: SpanningNode) -> None:
        self.node = node
        self.shared = node.shared
        self.waiting: list[tuple[Callable[[bool], None] | None, trio.Event]] = []
        self.failed: set[tuple[str, str]] = set()
        self.hold = False
        self.held: list[Callable[[], None]] = []

    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        id = self.shared.log.append(session, stream, data)
        keeps = self.shared.keeps
        if kept is not None:
            if self.hold:
                self.held.append(lambda: kept(keeps))
            else:
                self.node.nursery.start_soon(self._keep, kept, keeps)
        return id

    async def _keep(self, kept: Callable[[bool], None], keeps: bool) -> None:
        kept(keeps)

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for each in held:
            each()

    async def after(self, session: str, event_id: str) -> Replay | None:
        await self.shared.reach("events")
        return await self.shared.log.after(session, event_id)

    def end(self, session: str, stream: str) -> None:
        self.shared.log.end(session, stream)

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        await self.shared.reach("events")

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        pass

    def forget(self, session: str) -> None:
        if self.node.node in self.shared.nodes:
            self.shared.log.forget(session)
