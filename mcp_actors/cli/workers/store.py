"""State of workers that have no other place for it: sessions, their events and messages to each other.

It is in the memory of their supervisor, and each worker asks for it over a socket (`mcp_actors.cli.workers.shared`).
So any worker finds a session that another one holds, and a worker that is replaced leaves its sessions to the others.

Asks of one worker are carried out in their order, and answered at once. What is of a worker that has died is kept for
`DEAD_KEPT` seconds, so that its clients still get the events that they have missed.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

import msgspec
import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.errors.protocol import SharedRole
from mcp_actors.shared.memory import MemoryEventLog, MemoryReplayGuard, MemoryValueStore
from mcp_actors.supervision.containment import one_error, start
from mcp_actors.supervision.task_kinds import WORKER_STORE

__all__ = ["MAX_MESSAGE", "MessageStream", "StoreMessage", "WorkerStore"]

# Seconds for which the sessions of a worker that has died are known, and their events kept.
DEAD_KEPT = 600.0
# Seconds between two looks for what is to be dropped.
SWEEP = 30.0
# Sessions of all workers together, those of dead ones too.
MAX_SESSIONS = 100_000
# Bytes of the sessions that wait for another worker. One that finds no room ends, and its client begins a new one.
MAX_HANDED_OVER = 256 * 1024 * 1024
# Published events that are remembered for `Bus.since`.
MAX_PUBLISHED = 10_000
# Bytes that wait for one worker. It gets no message then, and learns that it missed events.
MAX_WAITING = 64 * 1024 * 1024
# Bytes of one message to a mailbox. Longer ones would hold up all others: divide them.
MAX_MESSAGE = 1024 * 1024
# Bytes of one message over a socket: all that is kept of a session, and its ids.
_LONGEST = 64 * 1024 * 1024
_READ = 256 * 1024
_LENGTH = struct.Struct("!I")


# -- Messages over a socket ----------------------------------------------------------------------------


class StoreMessage(msgspec.Struct, array_like=True, frozen=True):
    """One message, from either side.

    From a worker it is an ask, from the supervisor the answer with its number, or, with the number 0, something that
    was not asked for: ``kept`` (how many events), ``published`` (position, events, whether some were missed, whether
    they are of the worker itself) and ``mail`` (mailbox, message).
    """

    number: int
    """Of the ask; 0 for one that wants no answer."""
    name: str
    """What is asked for; of an answer ``answer``, or ``refused`` with the cause."""
    values: list[Any] = []


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoreMessage)


class MessageStream:
    """Messages over a socket between a worker and its supervisor. What is put never waits, and is written by `write`.

    Args:
        ours: The socket of this side. It is closed by `close`.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self._received = bytearray()
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        """Bytes that were put and are not written."""
        self._wake = trio.Event()
        self.on_written: Callable[[], None] = lambda: None
        """Is called after each time that something was written."""

    def __repr__(self) -> str:
        return f"<MessageStream {self.waiting_bytes} bytes wait>"

    def put(self, message: StoreMessage) -> None:
        """Has a message written."""
        data = _ENCODER.encode(message)
        self._waiting += (_LENGTH.pack(len(data)), data)
        self.waiting_bytes += _LENGTH.size + len(data)
        self._wake.set()

    async def write(self) -> None:
        """Writes what is put, until it is cancelled or the other side is gone."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._waiting:
                    data, self._waiting = b"".join(self._waiting), []
                    await self._stream.send_all(data)
                    self.waiting_bytes -= len(data)
                    self.on_written()

    async def receive(self) -> list[StoreMessage]:
        """Returns the next messages, in their order; none once the other side has closed the socket."""
        while True:
            messages = self._take()
            if messages:
                return messages
            try:
                data = await self._stream.receive_some(_READ)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return []
            if not data:
                return []
            self._received += data

    def _take(self) -> list[StoreMessage]:
        found, at, received = [], 0, self._received
        while len(received) >= at + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, at)
            if length > _LONGEST:
                raise ValueError(f"a message of {length} bytes came over the socket of a worker")
            end = at + _LENGTH.size + length
            if len(received) < end:
                break
            found.append(_DECODER.decode(bytes(received[at + _LENGTH.size : end])))
            at = end
        del received[:at]
        return found

    def close(self) -> None:
        """Closes the socket."""
        self._stream.socket.close()


# -- The supervisor's side -----------------------------------------------------------------------------


class _StoredPlace(msgspec.Struct):
    """The place of a session."""

    node: str
    owner: bytes
    address: str
    record: bytes | None = None
    """What another worker needs to go on with it, if it was handed over."""
    until: float = 0.0
    """When the record is dropped."""


class _Node:
    """A worker that shares the state of one name."""

    def __init__(self, name: str, stream: MessageStream) -> None:
        self.name = name
        self.stream = stream
        self.shut: set[str] = set()
        """Its mailboxes that take nothing that begins something."""
        self.missed = False
        """Whether it has to learn that it missed events."""

    @property
    def has_room(self) -> bool:
        return self.stream.waiting_bytes < MAX_WAITING


class WorkerStore:
    """The state that workers share, by the names of their servers."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}

    def __repr__(self) -> str:
        return f"<WorkerStore {self._contents}>"

    async def serve(self, ours: socket.socket) -> None:
        """Answers one worker until its side of the socket is closed, as its end does.

        Args:
            ours: The supervisor's side, which is closed at the end.
        """
        stream = MessageStream(ours)
        node: _Node | None = None
        content: _Content | None = None
        try:
            with one_error():
                async with trio.open_nursery() as nursery:
                    start(nursery, WORKER_STORE, stream.write, about="writes")
                    while messages := await stream.receive():
                        if node is None or content is None:
                            join = messages.pop(0)
                            name, of = join.values
                            node = _Node(of, stream)
                            content = self._contents.setdefault(name, _Content())
                            position = content.join(node)
                            stream.put(StoreMessage(join.number, "answer", [position]))
                        content.carry_out(node, messages)
                    nursery.cancel_scope.cancel(reason="the worker has ended")
        finally:
            if node is not None and content is not None:
                content.leave(node)
            stream.close()


class _Content:
    """The state of the workers with one server."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._gone: dict[str, float] = {}
        self._places: dict[str, _StoredPlace] = {}
        self._events = MemoryEventLog()
        self._replays = MemoryReplayGuard()
        self._values = MemoryValueStore(clock=trio.current_time)
        # Topic and key, and how many there ever were.
        self._published: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_PUBLISHED)
        self._position = 0
        self._swept = trio.current_time()
        self._asks: dict[str, Callable[..., Any]] = {
            "leave": self.leave,
            "register": self._register,
            "find": self._find,
            "forget": self._forget,
            "hand over": self._hand_over,
            "take over": self._take_over,
            "after": self._after,
            "end": self._end,
            "break": self._break,
            "forget events": self._forget_events,
            "sync": self._sync,
            "publish": self._publish,
            "since": self._since,
            "send": self._send,
            "shut": self._shut,
            "use": self._use,
            "load": self._load,
            "replace": self._replace,
        }

    def __repr__(self) -> str:
        return f"<{len(self._nodes)} nodes, {len(self._places)} sessions, {self._events!r}>"

    def join(self, node: _Node) -> str:
        """Takes in a worker, and returns the position in the events that it is told from now on."""
        self._nodes[node.name] = node
        node.stream.on_written = lambda: self._tell_missed(node)
        return str(self._position)

    def leave(self, node: _Node) -> None:
        """A worker has ended, as far as the others are concerned."""
        if self._nodes.pop(node.name, None) is not None:
            self._gone[node.name] = trio.current_time() + DEAD_KEPT

    def carry_out(self, node: _Node, messages: list[StoreMessage]) -> None:
        """Carries out asks of a worker, and answers them."""
        kept = 0
        for message in messages:
            if message.name == "append":
                session, stream, tag, number, data = message.values
                self._events.keep(session, stream, tag, number, data)
                kept += 1
                continue
            if kept:
                node.stream.put(StoreMessage(0, "kept", [kept]))
                kept = 0
            answer = StoreMessage(message.number, "answer")
            try:
                if message.number and not node.has_room:
                    _refuse("bus", "too much waits for this worker")
                answer.values.append(self._asks[message.name](node, *message.values))
            except SharedStateUnavailable as refused:
                answer = StoreMessage(message.number, "refused", [refused.cause])
            if message.number:
                node.stream.put(answer)
        if kept:
            node.stream.put(StoreMessage(0, "kept", [kept]))
        self._sweep()

    def _sweep(self) -> None:
        now = trio.current_time()
        if now < self._swept + SWEEP:
            return
        self._swept = now
        over = [name for name, until in self._gone.items() if until <= now]
        for session, place in list(self._places.items()):
            if place.node in self._nodes or (place.record is not None and place.until > now):
                continue
            if self._gone.get(place.node, now) <= now:
                del self._places[session]
                self._events.forget(session)
        for name in over:
            del self._gone[name]

    # -- sessions --------------------------------------------------------------------------------------

    def _register(self, node: _Node, session: str, owner: bytes, address: str) -> None:
        if session not in self._places and len(self._places) >= MAX_SESSIONS:
            _refuse("sessions", f"{MAX_SESSIONS} sessions are known already")
        self._places[session] = _StoredPlace(node.name, owner, address)

    def _find(self, node: _Node, session: str) -> tuple[str, bytes, bool, bool] | None:
        place = self._places.get(session)
        if place is None:
            return None
        is_free = place.record is not None and place.until > trio.current_time()
        return place.address, place.owner, place.node in self._nodes, is_free

    def _forget(self, node: _Node, session: str) -> None:
        self._places.pop(session, None)

    def _hand_over(self, node: _Node, records: dict[str, bytes], seconds: float) -> None:
        until = trio.current_time() + seconds
        held = sum(len(each.record) for each in self._places.values() if each.record is not None)
        if held + sum(map(len, records.values())) > MAX_HANDED_OVER:
            _refuse("sessions", f"{MAX_HANDED_OVER} bytes of sessions wait for another worker")
        for session, record in records.items():
            place = self._places.get(session)
            if place is not None and place.node == node.name:
                place.record, place.until = record, until

    def _take_over(self, node: _Node, session: str, owner: bytes, address: str) -> bytes | None:
        place = self._places.get(session)
        if place is None or place.record is None or place.until <= trio.current_time():
            return None
        self._places[session] = _StoredPlace(node.name, owner, address)
        return place.record

    # -- events ----------------------------------------------------------------------------------------

    def _after(self, node: _Node, session: str, event_id: str) -> tuple[str, list[tuple[str, bytes]]] | None:
        return self._events.replay(session, event_id)

    def _end(self, node: _Node, session: str, stream: str) -> None:
        self._events.end(session, stream)

    def _break(self, node: _Node, session: str, stream: str) -> None:
        self._events.break_off(session, stream)

    def _forget_events(self, node: _Node, session: str) -> None:
        self._events.forget(session)

    def _sync(self, node: _Node) -> None:
        """Does nothing: what was asked before it was carried out."""

    # -- the bus ---------------------------------------------------------------------------------------

    def _publish(self, node: _Node, events: list[tuple[bytes, bytes]], dropped: bool) -> None:
        if dropped:
            # A place without a topic says that some are missing there.
            events = [*events, (b"", b"")]
        for topic, key in events:
            self._published.append((topic, key))
        self._position += len(events)
        told = [each for each in events if each[0]]
        for each in self._nodes.values():
            own = each is node
            if each.has_room:
                each.stream.put(StoreMessage(0, "published", [str(self._position), told, dropped, own]))
            else:
                each.missed = True

    def _tell_missed(self, node: _Node) -> None:
        if node.missed and node.has_room:
            node.missed = False
            node.stream.put(StoreMessage(0, "published", [str(self._position), [], True, False]))

    def _since(self, node: _Node, position: str) -> list[tuple[bytes, bytes]] | None:
        behind = self._position - int(position)
        if behind > len(self._published):
            return None
        found = list(islice(self._published, len(self._published) - behind, None))
        return None if (b"", b"") in found else found

    def _send(self, node: _Node, address: str, message: bytes, begins: bool) -> bool:
        name, _, mailbox = address.partition("/")
        there = self._nodes.get(name)
        if there is None or (begins and mailbox in there.shut):
            return False
        if not there.has_room:
            _refuse("bus", f"{MAX_WAITING} bytes wait for another worker")
        there.stream.put(StoreMessage(0, "mail", [mailbox, message]))
        return True

    def _shut(self, node: _Node, mailbox: str) -> None:
        node.shut.add(mailbox)

    # -- replays ---------------------------------------------------------------------------------------

    def _use(self, node: _Node, name: bytes, seconds: float) -> bool:
        return self._replays.use(name, seconds)

    # -- values ----------------------------------------------------------------------------------------

    def _load(self, node: _Node, key: bytes) -> bytes | None:
        return self._values.found(_key(key))

    def _replace(
        self, node: _Node, key: bytes, before: bytes | None, after: bytes | None, seconds: float
    ) -> bool:
        return self._values.put(_key(key), before, after, seconds)


def _key(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def _refuse(role: SharedRole, cause: str) -> NoReturn:
    raise SharedStateUnavailable(role, cause)
