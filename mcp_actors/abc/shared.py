"""The contracts of state that outlives a session, and that several processes may share.

A server opens one `SharedState` for the time of its ``serve``; what comes out, an `OpenState`, has six roles:

================== ================================================================================================
`SessionDirectory` which node holds a legacy session
`EventLog`         the events of legacy streams, for clients that come back with ``Last-Event-ID``
`Bus`              tells every node what has changed, and carries messages to one node
`TaskStore`        the tasks, which outlive their callers
`ReplayGuard`      remembers what may be used once only
`ValueStore`       values by keys, which outlive calls and sessions, such as one for each user
================== ================================================================================================

A *node* is one process that serves, while it serves; its name is new each time. A node that ends, or that its peers
have not heard of for the length of its lease, is gone: its sessions are unreachable, and its tasks are abandoned.

Every method that waits is bounded in time and raises `~mcp_actors.errors.SharedStateUnavailable` when the state cannot
be reached; nothing of a call that needs no shared state ever waits for it. Methods that must not wait say so.
Cancelling a method may leave its effect done or not done, and never half done.

`mcp_actors.shared` has implementations, of which the default is in memory, and finds others by their URLs.
`mcp_actors.testing.check_shared_state` checks an implementation against every rule of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

__all__ = [
    "Bus",
    "EventLog",
    "OpenState",
    "Replay",
    "ReplayGuard",
    "SessionDirectory",
    "SessionPlace",
    "SharedState",
    "TaskBounds",
    "TaskRecord",
    "TaskState",
    "TaskStore",
    "ValueStore",
]


# -- sessions ------------------------------------------------------------------------------------------------------


class SessionPlace(NamedTuple):
    """A session that was begun somewhere, and is not known to have ended."""

    address: str
    """The mailbox of the node that holds it; see `Bus.send`."""
    owner: str
    """The key of the principal that began it; empty without authentication."""
    alive: bool
    """Whether the node that holds it is there. If not, only its events are left."""
    is_free: bool = False
    """Whether that node has handed it over, and no other one has taken it yet."""


class SessionDirectory(Protocol):
    """The holders of the legacy sessions of all nodes.

    A node that ends hands over what it holds, and a node that gets a request of such a session takes it over and goes
    on with it.
    """

    @property
    def spans_processes(self) -> bool:
        """Whether other processes see the same directory; if not, `find` knows nothing that its caller does not."""

    async def register(self, session: str, owner: str, address: str) -> None:
        """Makes a session known to all nodes, before its client learns its id. It is known until `forget`.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the session will not be found.
        """

    async def find(self, session: str) -> SessionPlace | None:
        """Returns where a session is, ``None`` for one that was never registered, was forgotten, or is long dead.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or has lost what it knew, and is learning it again.
        """

    def forget(self, session: str) -> None:
        """Takes a session out. Never waits: it takes effect soon, and again when an outage is over."""

    async def hand_over(self, records: Mapping[str, bytes], seconds: float) -> None:
        """Gives up sessions that this node holds, for the nodes that take them.

        Args:
            records: By session, all that another node needs to go on with it.
            seconds: How long they are kept, if no node takes them.

        Raises:
            SharedStateUnavailable: The state cannot be reached; some of them may have been handed over.
        """

    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        """Becomes the holder of a session that was handed over, as by `register`. Of several that try, one does.

        Returns:
            Its record; ``None`` if it is not to be had, because another node was faster for one.

        Raises:
            SharedStateUnavailable: The state cannot be reached; this node may have become its holder.
        """


# -- events --------------------------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """The rest of a stream after an event."""

    stream: str
    """The stream's name."""
    events: list[tuple[str, bytes]]
    """Id and data of every later event, in order; may be empty."""


class EventLog(Protocol):
    """Keeps the events of streams for clients which lost one (MCP 2025-11-25, Transports, Resumability).

    The endpoint names sessions and streams. A stream's name is unique in its session and consists of letters, digits
    and ``_``, so that an id can be made of it.

    Only `after` may wait. The other methods are called while a message is sent, in the order of the messages and
    without a checkpoint. Events that were appended while `after` waited may be missing from its result: the endpoint
    asks again, with the last id it got, until that id is the one that `append` returned last.

    An error of a method is logged and never ends more than one session. After a failure of `append` its session ends,
    because its client could not know what it missed; after one of `after` the request is answered with 500; a
    failure of `end` or `forget` has no consequence.
    """

    @property
    def spans_processes(self) -> bool:
        """Whether other nodes can replay the events, also when the node that appended them is gone."""

    def append(
        self, session: str, stream: str, data: bytes, kept: Callable[[bool], None] | None = None
    ) -> str:
        """Keeps an event and returns its id.

        Args:
            session: The session that the stream belongs to.
            stream: The stream that the event belongs to.
            data: The event's data, perhaps empty: an event that gives the client an id to resume from before
                anything has happened (SEP-1699).
            kept: Is called, for the events of a session in their order, once the event can be replayed, or with
                ``False`` once it is clear that it never can; then no later event of its stream is kept either, nothing
                of the stream is replayed any more, and it may be sent without an id. A log that does not span processes
                calls it before `append` returns.

        Returns:
            An id that is unique in the session, over all its streams. It is visible ASCII, so that it can be in an
            event and in a header, and has no meaning for a client.
        """

    async def after(self, session: str, event_id: str) -> Replay | None:
        """Returns all that followed an event in its stream, or ``None`` if that is not known exactly.

        Args:
            session: The session of the client that asks.
            event_id: The value of the header ``Last-Event-ID``, unchecked.

        Returns:
            ``None`` alike for an id that was never given out, is malformed, belongs to another session, or is so old
            that events after it are gone.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """

    def end(self, session: str, stream: str) -> None:
        """Notes that no more events are appended to a stream. Its events may still be asked for.

        An unknown stream is ignored.
        """

    def forget(self, session: str) -> None:
        """Frees all events of a session that has ended. An unknown session is ignored."""

    async def leave(self, sessions: Mapping[str, Collection[str]]) -> None:
        """Leaves sessions to other nodes, each with the names of the streams with which another node goes on.

        To the other streams of these sessions this node still appends, and ends them. It waits until all that was
        appended before can be replayed, or never will. Nothing of a session is freed.
        """

    def go_on(self, session: str, last: Mapping[str, str]) -> None:
        """Goes on with streams that another node has left, behind the events with these ids."""


# -- the bus -------------------------------------------------------------------------------------------------------


class Bus(Protocol):
    """Tells every node what has changed, and carries messages to one node."""

    @property
    def spans_processes(self) -> bool:
        """Whether other processes hear what is published; if not, `publish` and `send` reach this process only."""

    def publish(self, topic: str, key: str = "") -> None:
        """Tells all other nodes that something has changed. Never waits, and never fails because of a subscriber.

        An event that waits to be sent is not put a second time. When too many wait, they are dropped, and the other
        nodes learn that they missed events.

        Args:
            topic: The kind of change, such as ``"resource_updated"``.
            key: The subject of it, such as a URI.
        """

    def subscribe(self, take: Callable[[str, str], None], missed: Callable[[], None]) -> Callable[[], None]:
        """Has ``take(topic, key)`` called for every event of another node, until the returned function is called.

        ``missed()`` is called when events may have been lost, so that everything counts as changed. Both run in the
        event loop, and must neither wait nor raise.
        """

    @property
    def position(self) -> str:
        """The place among the published events of all nodes up to which subscribers of this node were called."""

    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        """Returns the topics and keys that were published behind a `position` of any node, by any node, this one too.

        Returns:
            Them in order, some perhaps twice; ``None`` if some may be missing.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        """Hands a message to one mailbox; messages of one sender to one mailbox keep their order.

        Args:
            address: The mailbox.
            message: The message.
            begins: Whether it begins something, which only a mailbox takes that was not shut.

        Returns:
            Whether the mailbox's node was there when it was handed over, and took such a message. That it takes the
            message is not promised.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the message may have been handed over. Or the state
                has lost what it knew, and the node may be telling it again.
        """

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        """Opens a mailbox of this node, and returns its address and the function that closes it.

        ``take(message)`` is called in the event loop for each message, and must neither wait nor raise. Messages to an
        address that is closed are dropped.
        """

    async def shut(self, address: str) -> None:
        """Has a mailbox of this node take no message any more that begins something: `send` says so to the others.

        When it returns, all such messages have been taken that were handed over before.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """


# -- tasks ---------------------------------------------------------------------------------------------------------

TaskState = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""MCP 2025-11-25, Tasks, Task Status; the last three are terminal."""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task, as a store keeps it: a value; every change makes a new one with the next ``revision``."""

    id: str
    """Unguessable."""
    owner: str
    """The key of the principal that created it; empty without authentication."""
    tool: str
    version: str
    """The protocol version of the request that created it, whose forms ``questions`` and ``outcome`` have."""
    request: bytes
    """JSON: what the engine needs to run it again, its arguments and its caller's description of itself among it."""
    created: float
    """Seconds since the epoch."""
    updated: float
    ttl: float | None
    """Seconds since ``created`` for which it is kept, ``None`` for ever."""
    poll_interval: float
    """Seconds that clients shall wait between two looks."""
    state: TaskState = "working"
    message: str | None = None
    """A sentence on its progress, for people."""
    questions: bytes = b"{}"
    """JSON: the questions to the client that are not answered, by key; only those of an ``input_required`` task."""
    answers: bytes = b"{}"
    """JSON: the answers that the function has not taken yet, by key."""
    messages: bytes = b"[]"
    """JSON: the messages that the function has not taken yet, in their order."""
    messages_taken: int = 0
    """How many it has taken before these."""
    outcome: bytes | None = None
    """JSON: ``{"result": …}`` or ``{"error": …}``, of a completed or failed task."""
    node: str
    """The node that runs it, or ran it."""
    restartable: bool = False
    """Whether another node may run it again when its own is gone."""
    runs: int = 1
    """How often it was begun."""
    revision: int = 0

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended: it never changes any more."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def weight(self) -> int:
        """Bytes that it makes a store keep, about."""
        outcome = 0 if self.outcome is None else len(self.outcome)
        waiting = len(self.questions) + len(self.answers) + len(self.messages)
        return 512 + len(self.request) + waiting + outcome


class TaskBounds(NamedTuple):
    """The bounds that a new task has to fit in; tasks that have ended count until they are dropped."""

    of_owner: int
    """Tasks of one owner."""
    of_all: int
    """Tasks of all owners."""
    bytes_of_owner: int
    """`TaskRecord.weight` of one owner's tasks; it is looked at before a task is created, and results may exceed it."""
    bytes_of_all: int
    """The same for all owners."""


class TaskStore(Protocol):
    """Keeps tasks. It knows nothing of what they do: each method is one atomic step."""

    @property
    def spans_processes(self) -> bool:
        """Whether other processes see the same tasks."""

    @property
    def survives(self) -> bool:
        """Whether tasks are still there when no process is left."""

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """Keeps a new task. When it returns ``None``, every node can read the task.

        Returns:
            ``None``, or whose bounds have no room: then nothing is kept.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the task may be there, and is abandoned then.
        """

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """Returns those of some tasks that exist. A task whose ``ttl`` is over does not.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """

    async def replace(self, record: TaskRecord) -> bool:
        """Keeps a task's next value, if no node was faster: if the stored ``revision`` is the one before the given.

        A terminal value is the last one: it is kept until its ``ttl`` is over, and never replaced.

        Returns:
            Whether it was kept.

        Raises:
            SharedStateUnavailable: The state cannot be reached; it may have been kept.
        """

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """Returns tasks of one owner, oldest first, those behind the task with the id ``after``.

        A page stays right when tasks, that of ``after`` included, are dropped in between.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """Returns tasks that are not terminal and whose node is gone.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """


# -- replays -------------------------------------------------------------------------------------------------------


class ReplayGuard(Protocol):
    """Remembers what may be used once only, such as proofs of possession."""

    @property
    def spans_processes(self) -> bool:
        """Whether a use at one process is known to the others."""

    async def first_use(self, name: bytes, seconds: float) -> bool:
        """Returns whether ``name`` is used for the first time in so many seconds, and remembers it for as long.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or has no room to remember it.
        """


# -- values --------------------------------------------------------------------------------------------------------


class ValueStore(Protocol):
    """Keeps values by keys. It knows nothing of what is in it."""

    @property
    def spans_processes(self) -> bool:
        """Whether other processes see the same values."""

    async def load(self, key: str) -> bytes | None:
        """Returns the value of a key, ``None`` without one and once its time is over.

        Raises:
            SharedStateUnavailable: The state cannot be reached.
        """

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        """Puts a value in the place of another one, in one atomic step, if no node was faster.

        Args:
            key: The key.
            before: The value that has to be there, ``None`` for none.
            after: The next one, which is not empty; ``None`` for none.
            seconds: How long it is kept.

        Returns:
            Whether ``before`` was there, and ``after`` is now.

        Raises:
            SharedStateUnavailable: The state cannot be reached, and it may have been replaced; or it has no room.
        """


# -- all of them ---------------------------------------------------------------------------------------------------


class OpenState(Protocol):
    """Shared state that is open: this process is a node of it."""

    @property
    def node(self) -> str:
        """The name of this node: new each time, and no other node ever has it."""

    @property
    def sessions(self) -> SessionDirectory:
        """The holders of sessions."""

    @property
    def events(self) -> EventLog:
        """The events of streams."""

    @property
    def bus(self) -> Bus:
        """The way to the other nodes."""

    @property
    def tasks(self) -> TaskStore:
        """The tasks."""

    @property
    def replays(self) -> ReplayGuard:
        """The memory of what was used already."""

    @property
    def values(self) -> ValueStore:
        """The values."""

    @property
    def failure(self) -> str | None:
        """The cause for which it cannot be used at the moment, for an operator; ``None`` while it can be.

        It says what the last use of it came to, and asks nothing.
        """
        return None


@runtime_checkable
class SharedState(Protocol):
    """A place for what outlives a session; ``Server(shared=…)`` takes one."""

    def open(self, name: str) -> AbstractAsyncContextManager[OpenState]:
        """Makes this process a node for the length of an ``async with`` block.

        Args:
            name: The server's name: servers of different names share nothing.

        Entering it raises `~mcp_actors.errors.SharedStateUnavailable` if the state cannot be reached. Outages that
        begin later end by themselves: the node comes back under the same name, with its sessions and mailboxes. Leaving
        the block ends the node at once for all others.
        """
