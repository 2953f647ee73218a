"""Shared state of workers through their supervisor: a worker's side of `mcp_actors.cli.workers.store`.

The roles of a state that its server has anyhow are kept where they span processes, as those of Redis do. In place of
the others a worker has those of its supervisor, so that any worker serves the sessions of any other one, and a worker
that is replaced leaves its own to them. Tasks stay where the server has them.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc.shared import OpenState, Replay, SessionPlace, SharedState
from mcp_actors.cli.workers.store import MAX_MESSAGE, MAX_WAITING, MessageStream, StoreMessage
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.errors.protocol import SharedRole
from mcp_actors.shared.memory import make_event_id
from mcp_actors.supervision.containment import Containment, outliving, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import SHARED_STATE, STORE_UPKEEP

__all__ = ["WorkerSharedState", "WorkersShared"]

# Seconds for an answer of the supervisor, which takes microseconds while the machine has a moment for it.
TIMEOUT = 10.0
# Seconds at the end for what was said last.
LAST_WORDS = 2.0
# Published events that wait, and bytes of their keys.
MAX_PENDING = 10_000
MAX_PENDING_BYTES = 4 * 1024 * 1024
# Seconds before what the supervisor did not take is said again.
PAUSE = 0.2
_GONE = "the supervisor is gone"


class WorkersShared:
    """The shared state of a worker. A `mcp_actors.abc.SharedState`, which is opened once.

    Args:
        inner: That of its server.
        ours: The socket to the supervisor. It is closed when the state is, as that tells the others.
    """

    def __init__(self, inner: SharedState, ours: socket.socket) -> None:
        self._inner = inner
        self._socket = ours

    def __repr__(self) -> str:
        return f"<WorkersShared {self._inner!r}>"

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenState]:
        """See `mcp_actors.abc.SharedState.open`.

        Raises:
            SharedStateUnavailable: The supervisor is gone, or the state of the server cannot be reached.
        """
        async with self._inner.open(name) as inner:
            link = _Link(self._socket)
            try:
                async with outliving(SHARED_STATE) as nursery:
                    start(nursery, STORE_UPKEEP, link.write, about="writes", on_crash=link.lose)
                    start(nursery, STORE_UPKEEP, link.read, about="reads", on_crash=link.lose)
                    # Events may come right behind the answer.
                    state = WorkerSharedState(inner, link)
                    [position] = await link.ask("sessions", "join", name, inner.node)
                    state.published.position = state.published.position or position
                    start(nursery, STORE_UPKEEP, state.published.run, about="published events")
                    try:
                        yield state
                    finally:
                        with trio.move_on_after(LAST_WORDS, shield=True):
                            await state.end()
            finally:
                link.close()


class WorkerSharedState:
    """An open state of a worker. A `mcp_actors.abc.OpenState`.

    Args:
        inner: The state of its server.
        link: The way to the supervisor.
    """

    def __init__(self, inner: OpenState, link: _Link) -> None:
        self._inner = inner
        self._link = link
        self.node = inner.node
        self.published = _WorkerBus(link, inner.node)
        # An address in the directory is a mailbox of the bus: the two belong together.
        finds = inner.sessions.spans_processes and inner.bus.spans_processes
        self.sessions = inner.sessions if finds else _WorkerDirectory(link)
        self.bus = inner.bus if finds else self.published
        self.events = inner.events if inner.events.spans_processes else _WorkerEventLog(link)
        self.replays = inner.replays if inner.replays.spans_processes else _WorkerReplayGuard(link)
        self.tasks = inner.tasks
        self.values = inner.values if inner.values.spans_processes else _WorkerValueStore(link)

    def __repr__(self) -> str:
        return f"<WorkerSharedState {self.node}>"

    @property
    def failure(self) -> str | None:
        """See `mcp_actors.abc.OpenState.failure`."""
        return self._inner.failure or self._link.failure

    async def end(self) -> None:
        """Ends this worker for the others, once the supervisor has all that was said."""
        try:
            self.published.flush()
            await self._link.ask("sessions", "leave")
        except SharedStateUnavailable as unavailable:
            log.debug("a worker ends without its supervisor", cause=unavailable.cause)


class _Link:
    """Asks, their answers, and what the supervisor says unasked."""

    def __init__(self, ours: socket.socket) -> None:
        self._stream = MessageStream(ours)
        self._last = 0
        self._asked: dict[int, _Ask] = {}
        self.failure: str | None = None
        self.takes: dict[str, Callable[..., object]] = {}
        """What takes a message that was not asked for, by its name."""
        self.on_lost: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"<_Link {len(self._asked)} asks: {self.failure or 'open'}>"

    @property
    def has_room(self) -> bool:
        return self.failure is None and self._stream.waiting_bytes < MAX_WAITING

    def tell(self, name: str, *values: Any) -> None:
        """Has something done that is not answered. Never waits; what is long, the caller says only while `has_room`."""
        if self.failure is None:
            self._stream.put(StoreMessage(0, name, list(values)))

    async def ask(self, role: SharedRole, name: str, *values: Any) -> list[Any]:
        """Has something done, and returns what comes of it.

        Raises:
            SharedStateUnavailable: The supervisor is gone, refuses it, or does not answer in time.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.has_room:
            await trio.lowlevel.checkpoint()
            raise SharedStateUnavailable(role, self.failure or "the supervisor takes nothing")
        self._last = number = self._last + 1
        ask = self._asked[number] = _Ask()
        try:
            self._stream.put(StoreMessage(number, name, list(values)))
            with trio.move_on_after(TIMEOUT):
                await ask.done.wait()
        finally:
            self._asked.pop(number, None)
        if ask.answer is None:
            raise SharedStateUnavailable(role, self.failure or f"no answer within {TIMEOUT:g} s")
        if ask.answer.name == "refused":
            raise SharedStateUnavailable(role, ask.answer.values[0])
        return ask.answer.values

    async def write(self) -> None:
        """Writes what is said, until it is cancelled or the supervisor is gone."""
        await self._stream.write()

    async def read(self) -> None:
        """Takes what comes, until it is cancelled or the supervisor is gone."""
        while messages := await self._stream.receive():
            for message in messages:
                if not message.number:
                    with Containment(STORE_UPKEEP):
                        self.takes[message.name](*message.values)
                elif (ask := self._asked.get(message.number)) is not None:
                    ask.answer = message
                    ask.done.set()
        self.lose(None)

    def lose(self, error: BaseException | None) -> None:
        """Notes that the supervisor is not to be reached any more."""
        if self.failure is None:
            self.failure = _GONE
            log.error("the supervisor is gone: sessions of other workers cannot be served")
            for ask in self._asked.values():
                ask.done.set()
            self.on_lost()

    def close(self) -> None:
        self.failure = self.failure or "the state is closed"
        self._stream.close()


@attrs.define(eq=False)
class _Ask:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: StoreMessage | None = None


class _WorkerDirectory:
    """A `mcp_actors.abc.SessionDirectory`."""

    spans_processes = True

    def __init__(self, link: _Link) -> None:
        self._link = link

    async def register(self, session: str, owner: str, address: str) -> None:
        await self._link.ask("sessions", "register", session, _encoded(owner), address)

    async def find(self, session: str) -> SessionPlace | None:
        [found] = await self._link.ask("sessions", "find", session)
        if found is None:
            return None
        address, owner, alive, is_free = found
        return SessionPlace(address, _decoded(owner), alive, is_free)

    def forget(self, session: str) -> None:
        self._link.tell("forget", session)

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        """See `mcp_actors.abc.SessionDirectory.hand_over`. Each request carries `MAX_MESSAGE` bytes, about."""
        batch: dict[str, bytes] = {}
        size = 0
        for session, record in records.items():
            batch[session] = record
            size += len(record)
            if size >= MAX_MESSAGE:
                await self._link.ask("sessions", "hand over", batch, seconds)
                batch, size = {}, 0
        await self._link.ask("sessions", "hand over", batch, seconds)

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        [record] = await self._link.ask("sessions", "take over", session, _encoded(owner), address)
        return None if record is None else bytes(record)


@attrs.frozen
class _Appended:
    """An event that is on its way to the supervisor, or never gets there."""

    kept: Callable[[bool], None] | None
    is_lost: bool

    def report(self, is_kept: bool) -> None:
        if self.kept is not None:
            with Containment(STORE_UPKEEP):
                self.kept(is_kept)


class _WorkerEventLog:
    """A `mcp_actors.abc.EventLog`. Its ids are of a tag that no other worker has, and count all of its events."""

    spans_processes = True

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._tag = secrets.token_hex(6)
        self._last = 0
        # In the order in which they are reported; those that are lost wait for the ones before them.
        self._waiting: deque[_Appended] = deque()
        self._broken: dict[str, set[str]] = {}
        link.takes["kept"] = self._kept
        link.on_lost = self._lost

    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        self._last += 1
        broken = self._broken.get(session, ())
        is_lost = stream in broken or not self._link.has_room
        if not is_lost:
            self._link.tell("append", session, stream, self._tag, self._last, data)
        elif stream not in broken:
            self._broken.setdefault(session, set()).add(stream)
            self._link.tell("break", session, stream)
        self._waiting.append(_Appended(kept, is_lost))
        self._report_lost()
        return make_event_id(self._tag, stream, self._last)

    def _kept(self, number: int) -> None:
        while number:
            event = self._waiting.popleft()
            event.report(not event.is_lost)
            number -= not event.is_lost
        self._report_lost()

    def _report_lost(self) -> None:
        while self._waiting and self._waiting[0].is_lost:
            self._waiting.popleft().report(False)

    def _lost(self) -> None:
        while self._waiting:
            self._waiting.popleft().report(False)

    async def after(self, session: str, event_id: str) -> Replay | None:
        [found] = await self._link.ask("events", "after", session, event_id)
        if found is None:
            return None
        stream, events = found
        return Replay(stream, [(id, data) for id, data in events])

    def end(self, session: str, stream: str) -> None:
        self._link.tell("end", session, stream)

    def forget(self, session: str) -> None:
        self._broken.pop(session, None)
        self._link.tell("forget events", session)

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        await self._link.ask("events", "sync")

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        """Does nothing: streams go on where their events are."""


class _WorkerBus:
    """A `mcp_actors.abc.Bus`."""

    spans_processes = True

    def __init__(self, link: _Link, node: str) -> None:
        self._link = link
        self._node = node
        self.position = ""
        self._pending: dict[tuple[str, str], None] = {}
        self._pending_bytes = 0
        self._has_dropped = False
        self._wake = trio.Event()
        self._subscribers: dict[object, tuple[Callable[[str, str], None], Callable[[], None]]] = {}
        self._mailboxes: dict[str, Callable[[bytes], None]] = {}
        self._opened = 0
        link.takes |= {"published": self._published, "mail": self._mail}

    def publish(self, topic: str, key: str = "") -> None:
        event = topic, key
        if event in self._pending:
            return
        self._pending[event] = None
        self._pending_bytes += len(key)
        if len(self._pending) > MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES:
            self._pending, self._pending_bytes, self._has_dropped = {}, 0, True
        self._wake.set()

    async def run(self) -> None:
        """Tells the supervisor what was published, as soon as it has taken what was published before."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._pending or self._has_dropped:
                self.flush()
                try:
                    await self._link.ask("bus", "sync")
                except SharedStateUnavailable:
                    await trio.sleep(PAUSE)

    def flush(self) -> None:
        """Tells the supervisor what was published, if it takes anything."""
        if (self._pending or self._has_dropped) and self._link.has_room:
            events = [(_encoded(topic), _encoded(key)) for topic, key in self._pending]
            dropped = self._has_dropped
            self._pending, self._pending_bytes, self._has_dropped = {}, 0, False
            self._link.tell("publish", events, dropped)

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._subscribers[key] = take, missed
        return lambda: self._subscribers.pop(key, None) and None

    def _published(
        self, position: str, events: list[tuple[bytes, bytes]], missed: bool, is_own: bool
    ) -> None:
        self.position = position
        if is_own:
            return
        for take, miss in list(self._subscribers.values()):
            if missed:
                with Containment(STORE_UPKEEP):
                    miss()
            for topic, key in events:
                with Containment(STORE_UPKEEP):
                    take(_decoded(topic), _decoded(key))

    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        self.flush()
        [found] = await self._link.ask("bus", "since", position)
        return None if found is None else [(_decoded(topic), _decoded(key)) for topic, key in found]

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        """See `mcp_actors.abc.Bus.send`.

        Raises:
            SharedStateUnavailable: The supervisor is gone, or too much waits for the other worker.
            ValueError: The message is longer than `MAX_MESSAGE`.
        """
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(message)} bytes: divide it in parts of {MAX_MESSAGE}")
        [is_sent] = await self._link.ask("bus", "send", address, message, begins)
        return bool(is_sent)

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        self._opened += 1
        number = str(self._opened)
        self._mailboxes[number] = take
        return f"{self._node}/{number}", lambda: self._mailboxes.pop(number, None) and None

    def _mail(self, number: str, message: bytes) -> None:
        take = self._mailboxes.get(number)
        if take is not None:
            take(message)

    async def shut(self, address: str) -> None:
        await self._link.ask("bus", "shut", address.partition("/")[2])


class _WorkerReplayGuard:
    """A `mcp_actors.abc.ReplayGuard`."""

    spans_processes = True

    def __init__(self, link: _Link) -> None:
        self._link = link

    async def first_use(self, name: bytes, seconds: float) -> bool:
        [is_first] = await self._link.ask("replays", "use", name, seconds)
        return bool(is_first)


class _WorkerValueStore:
    """A `mcp_actors.abc.ValueStore`."""

    spans_processes = True

    def __init__(self, link: _Link) -> None:
        self._link = link

    async def load(self, key: str) -> bytes | None:
        [found] = await self._link.ask("values", "load", _encoded(key))
        return None if found is None else bytes(found)

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        [is_replaced] = await self._link.ask("values", "replace", _encoded(key), before, after, seconds)
        return bool(is_replaced)


def _encoded(text: str) -> bytes:
    # What clients send may have parts of characters.
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
