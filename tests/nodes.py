"""Several nodes in one process: a place of shared state whose bus leads from each server to all others of its name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from mcp_actors.shared import MemoryState

__all__ = ["LocalBus", "LocalNodes"]


class LocalBus:
    """A `mcp_actors.abc.Bus` that hands events over at once, and none while it is ``cut`` off."""

    spans_processes = True

    def __init__(self, nodes: LocalNodes, node: str) -> None:
        self.cut = False
        self.published: list[tuple[str, str]] = []
        self._nodes = nodes
        self._node = node
        self._takes: dict[object, tuple[Callable[[str, str], None], Callable[[], None]]] = {}
        self._mailboxes: dict[str, Callable[[bytes], None]] = {}
        self._opened = 0

    def publish(self, topic: str, key: str = "") -> None:
        self.published.append((topic, key))
        for bus in self._nodes.buses:
            if bus is not self and not bus.cut and not self.cut:
                for take, _ in tuple(bus._takes.values()):
                    take(topic, key)

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        mark = object()
        self._takes[mark] = take, missed
        return lambda: self._takes.pop(mark) and None

    def miss(self) -> None:
        """Events may have been lost on the way to this node."""
        for _, missed in tuple(self._takes.values()):
            missed()

    position = ""

    async def since(self, position: str) -> Sequence[tuple[str, str]]:
        return ()

    async def shut(self, address: str) -> None:
        pass

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        for bus in self._nodes.buses:
            if address.startswith(f"{bus._node}/"):
                if (take := bus._mailboxes.get(address)) is not None:
                    take(message)
                return True
        return False

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self._opened += 1
        address = f"{self._node}/{self._opened}"
        self._mailboxes[address] = take
        return address, lambda: self._mailboxes.pop(address, None) and None


class LocalState(MemoryState):
    """What one node has: its bus leads to the others, everything else is its own."""

    def __init__(self, nodes: LocalNodes) -> None:
        super().__init__()
        self.bus = LocalBus(nodes, self.node)  # type: ignore[assignment]


class LocalNodes:
    """A `mcp_actors.abc.SharedState` for servers of one process."""

    def __init__(self) -> None:
        self.buses: list[LocalBus] = []

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[LocalState]:
        state = LocalState(self)
        bus: LocalBus = state.bus  # type: ignore[assignment]
        self.buses.append(bus)
        try:
            yield state
        finally:
            self.buses.remove(bus)
