"""Shared state in the memory of one process: the default, and the reference for all others.

Nothing of it is seen by other processes, and all of it ends with its server.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mcp_actors.abc.shared import EventLog, SessionPlace
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared.memory_events import MemoryEventLog
from mcp_actors.shared.memory_tasks import MemoryTaskStore

__all__ = [
    "MemoryBus",
    "MemoryReplayGuard",
    "MemorySessionDirectory",
    "MemoryShared",
    "MemoryState",
    "new_node_name",
]

# Names that are remembered so that none is used twice: about 10 MB.
MAX_NAMES = 50_000
_NODE_BYTES = 9


def new_node_name() -> str:
    """Returns a name that no node has had."""
    return secrets.token_urlsafe(_NODE_BYTES)


class MemorySessionDirectory:
    """A `mcp_actors.abc.SessionDirectory` of sessions that no other process can hold."""

    spans_processes = False

    def __init__(self) -> None:
        self._places: dict[str, SessionPlace] = {}

    def __repr__(self) -> str:
        return f"<MemorySessionDirectory {len(self._places)}>"

    async def register(self, session: str, owner: str, address: str) -> None:
        await trio.lowlevel.checkpoint()
        self._places[session] = SessionPlace(address, owner, True)

    async def find(self, session: str) -> SessionPlace | None:
        await trio.lowlevel.checkpoint()
        return self._places.get(session)

    def forget(self, session: str) -> None:
        self._places.pop(session, None)


class MemoryBus:
    """A `mcp_actors.abc.Bus` of one node: nobody else hears of anything."""

    spans_processes = False

    def __init__(self, node: str) -> None:
        self._node = node
        self._mailboxes: dict[str, Callable[[bytes], None]] = {}
        self._opened = 0

    def __repr__(self) -> str:
        return f"<MemoryBus {len(self._mailboxes)} mailboxes>"

    def publish(self, topic: str, key: str = "") -> None:
        """Does nothing, because there is no other node."""

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def send(self, address: str, message: bytes) -> bool:
        await trio.lowlevel.checkpoint()
        take = self._mailboxes.get(address)
        if take is not None:
            take(message)
        return address.startswith(f"{self._node}/")

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self._opened += 1
        address = f"{self._node}/{self._opened}"
        self._mailboxes[address] = take
        return address, lambda: self._mailboxes.pop(address, None) and None


class MemoryReplayGuard:
    """A `mcp_actors.abc.ReplayGuard` of one process. With too many names to remember it takes no further ones.

    Args:
        max_names: The number of names that are remembered.
        clock: Returns seconds that never go back.
    """

    spans_processes = False

    def __init__(self, *, max_names: int = MAX_NAMES, clock: Callable[[], float] = trio.current_time) -> None:
        self._max_names = max_names
        self._clock = clock
        self._until: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return f"<MemoryReplayGuard {len(self._until)}/{self._max_names}>"

    async def first_use(self, name: bytes, seconds: float) -> bool:
        """Returns whether ``name`` is used for the first time in so many seconds.

        Raises:
            SharedStateUnavailable: Too many names are remembered.
        """
        await trio.lowlevel.checkpoint()
        now = self._clock()
        if self._until.get(name, now) > now:
            return False
        if len(self._until) >= self._max_names:
            self._until = {each: until for each, until in self._until.items() if until > now}
            if len(self._until) >= self._max_names:
                raise SharedStateUnavailable("replays", f"{self._max_names} names are remembered")
        self._until[name] = now + seconds
        return True


class MemoryState:
    """The state that `MemoryShared` opens: a node that is alone. A `mcp_actors.abc.OpenState`.

    Args:
        events: The log of events; by default a `MemoryEventLog` with its defaults.
        clock: Returns seconds since the epoch, for the times of tasks.
    """

    def __init__(self, events: EventLog | None = None, clock: Callable[[], float] = time.time) -> None:
        self.node = new_node_name()
        self.sessions = MemorySessionDirectory()
        self.events = MemoryEventLog() if events is None else events
        self.bus = MemoryBus(self.node)
        self.tasks = MemoryTaskStore(clock=clock)
        self.replays = MemoryReplayGuard()

    def __repr__(self) -> str:
        return f"<MemoryState {self.node}>"


class MemoryShared:
    """State in the memory of this process, for servers that are one process. A `mcp_actors.abc.SharedState`.

    Args:
        events: The log of events; by default a `MemoryEventLog` with its defaults.
        clock: Returns seconds since the epoch, for the times of tasks.
    """

    def __init__(self, *, events: EventLog | None = None, clock: Callable[[], float] = time.time) -> None:
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return "<MemoryShared>"

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[MemoryState]:
        """See `mcp_actors.abc.SharedState.open`."""
        yield MemoryState(self._events, self._clock)
