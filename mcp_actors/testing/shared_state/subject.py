"""The rules of `mcp_actors.abc.shared` that the kit checks, and the shared state under test with its nodes.

The rules have the words in which a breach is reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import attrs
import trio

from mcp_actors.abc.shared import OpenState, SharedState, TaskBounds, TaskRecord
from mcp_actors.testing.conformance.rules import RuleBroken

__all__ = [
    "ABANDONED",
    "BOUNDS",
    "CANCELLED",
    "COALESCED",
    "COMPARED",
    "CREATED",
    "DESCRIBED",
    "ENDED_STREAM",
    "EVENT_IDS",
    "EXPIRED",
    "FLUSHED",
    "FORGOTTEN",
    "FORGOTTEN_EVENTS",
    "FOUND",
    "HANDED_OVER",
    "KEPT",
    "LAST_VALUE",
    "MAILBOXES",
    "MESSAGES",
    "MISSED",
    "NAME",
    "NAMES_APART",
    "NODE_GONE",
    "NODE_NAMES",
    "OPENED",
    "PAGES",
    "PUBLISHED",
    "PUBLISHED_SINCE",
    "REACHED",
    "REPLAYED",
    "ROOMY",
    "SHUT",
    "SURVIVES",
    "UNAVAILABLE",
    "UNKNOWN_EVENTS",
    "UNSUBSCRIBED",
    "USED_ONCE",
    "VALUES",
    "VALUES_END",
    "Act",
    "SharedStateMaker",
    "SharedStateSubject",
    "StateUnderTest",
    "all_at_once",
    "make_task",
]


# -- nodes
DESCRIBED = "an open state has a node, six roles, and each role says whether it spans processes"
NODE_NAMES = "the name of a node is new each time, and no other node ever has it"
NAMES_APART = "servers of different names share nothing"
NODE_GONE = (
    "a node that ends, or that was not heard of for the length of its lease, is gone, and no other node is"
)
OPENED = "open raises SharedStateUnavailable, within its bound, if the state cannot be reached"
UNAVAILABLE = (
    "every method that waits is bounded in time and raises SharedStateUnavailable when the state cannot be reached; "
    "the others neither wait nor raise"
)
REACHED = (
    "outages end by themselves: the node comes back under the same name, with its sessions and mailboxes"
)
FLUSHED = "a state that lost everything tells no node something wrong, and works again"
CANCELLED = "cancelling a method may leave its effect done or not done, and never half done"

# -- sessions
FOUND = "a registered session is found at every node, as it was registered, and an unknown one is not"
HANDED_OVER = (
    "a session that was handed over is free until one node takes it, with its record, or its time is over"
)
FORGOTTEN = (
    "a session that was forgotten is soon found at no node, also when it was forgotten during an outage"
)

# -- events
EVENT_IDS = "the id of an event is visible ASCII and unique in its session, over all its streams"
KEPT = (
    "kept is called for the events of a session in their order, with True once they can be replayed, or with False if "
    "they never can; a log that does not span processes calls it before append returns"
)
REPLAYED = "after returns all that followed an event in its stream, in order and unchanged, or None"
UNKNOWN_EVENTS = (
    "after returns None for an id that was never given out, is malformed or belongs to another session"
)
ENDED_STREAM = "the events of a stream that ended may still be asked for"
FORGOTTEN_EVENTS = "forget frees all events of a session, and of no other"

# -- the bus
PUBLISHED = "every event reaches every other node, with its topic and key, and not the node that published it"
COALESCED = "an event that waits to be sent is not put a second time"
MISSED = "when events are lost, missed() is called at the nodes that did not get them"
UNSUBSCRIBED = "nothing is called any more once the returned function was called, and others still are"
MESSAGES = "messages to a mailbox arrive once, whole, in the order of their sender, and at no other mailbox"
PUBLISHED_SINCE = (
    "since returns what was published behind a position, by any node, or None if some may be missing"
)
SHUT = "a mailbox that was shut takes nothing that begins something, and all that was sent before"
MAILBOXES = (
    "send says whether the mailbox's node was there; messages to an address that is closed are dropped"
)

# -- tasks
CREATED = "when create returned None, every node can read the task, as it was given"
BOUNDS = "create returns whose bounds have no room, exactly, and keeps nothing then"
COMPARED = "replace keeps a value if the stored revision is the one before it, and only one of several wins"
LAST_VALUE = "a terminal value is the last one"
EXPIRED = "a task whose ttl is over does not exist, and one whose ttl is not over does"
PAGES = "page returns the tasks of one owner, oldest first, also behind one that was dropped in between"
ABANDONED = "abandoned returns the tasks that are not terminal and whose node is gone, and no others"
SURVIVES = "a store that survives has its tasks when all nodes have ended and one begins"

# -- replays
USED_ONCE = (
    "first_use is true once in so many seconds for a name, at all nodes together, and true again after them"
)

# -- values
VALUES = "a value replaces the one that is named, at all nodes together, and only one of several does"
VALUES_END = "a value is there for its seconds, no longer, and no other key has it"


Act = Callable[[], Awaitable[object]]

NAME = "kit"
ROOMY = TaskBounds(10_000, 10_000, 1 << 30, 1 << 30)


@attrs.define
class SharedStateSubject:
    """An implementation of shared state, with what `check_shared_state` may do to it.

    What is left out is not tried, and the checks that need it are skipped.

    Args:
        share: Makes a `~mcp_actors.abc.SharedState` of the same place, as a new process would.
        lose: Makes one open node vanish, as the death of its process would: nothing is sent for it any more, and the
            end of its ``async with`` block notifies no other node.
        cut: Begins an outage for all nodes.
        mend: Ends it.
        flush: Makes the state forget everything, while the nodes are there.
        pass_time: Lets seconds pass, for the leases and the tasks; by default the kit sleeps.
        now: Returns the seconds since the epoch by which tasks are dropped.
        lease: Seconds without a word after which a node is gone.
        bound: Seconds within which a method answers when the state cannot be reached.
    """

    share: Callable[[], SharedState]
    lose: Callable[[OpenState], Awaitable[None]] | None = None
    cut: Act | None = None
    mend: Act | None = None
    flush: Act | None = None
    pass_time: Callable[[float], Awaitable[None]] = trio.sleep
    now: Callable[[], float] = trio.current_time
    lease: float = 1.0
    bound: float = 1.0


SharedStateMaker = Callable[[], AbstractAsyncContextManager[SharedStateSubject]]
"""Makes an implementation of its own for one check: see `check_shared_state`."""


@attrs.frozen
class StateUnderTest:
    """A subject, made for one check, and the patience of the kit."""

    subject: SharedStateSubject
    patience: float
    quiet: float
    many: int

    @asynccontextmanager
    async def node(self, name: str = NAME) -> AsyncIterator[OpenState]:
        """Opens a node, as a process of its own would."""
        async with self.subject.share().open(name) as state:
            yield state

    @asynccontextmanager
    async def nodes(self, number: int = 2) -> AsyncIterator[list[OpenState]]:
        """Opens several nodes."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.node()) for _ in range(number)]

    async def until(self, holds: Callable[[], Awaitable[bool]], rule: str, seen: str) -> None:
        """Waits until something holds.

        Raises:
            RuleBroken: It did not hold within the patience.
        """
        with trio.move_on_after(self.patience):
            while True:
                if await holds():
                    return
                await trio.sleep(self.quiet / 10)
        raise RuleBroken(rule, seen)

    async def until_true(self, holds: Callable[[], bool], rule: str, seen: str) -> None:
        """As `until`, for a condition that is checked without waiting."""

        async def asked() -> bool:
            await trio.lowlevel.checkpoint()
            return holds()

        await self.until(asked, rule, seen)

    def earlier_than(self, seconds: float) -> Callable[[], bool]:
        """Returns a function that says whether fewer seconds have passed since now.

        What is kept for some seconds may be gone when a slow machine looks at it, and that is no fault.
        """
        end = trio.current_time() + seconds
        return lambda: trio.current_time() < end

    @contextmanager
    def soon(self, rule: str, seen: str, seconds: float | None = None) -> Iterator[None]:
        """Raises `RuleBroken` if the block takes too long."""
        with trio.move_on_after(self.patience if seconds is None else seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise RuleBroken(rule, seen)


_numbers = count(1)


def make_task(tested: StateUnderTest, runs_at: OpenState, /, **changes: Any) -> TaskRecord:
    """Returns a task that a node begins."""
    number = next(_numbers)
    now = tested.subject.now()
    fields: dict[str, Any] = {
        "id": f"task-{number:06}-{number * 7919 % 1000:03}",
        "owner": "alice",
        "tool": "work",
        "version": "kit",
        "request": b'{"arguments":{"text":"\xc3\xa9"}}',
        "created": now,
        "updated": now,
        "ttl": 3600.0,
        "poll_interval": 0.5,
        "node": runs_at.node,
    }
    return TaskRecord(**{**fields, **changes})


async def all_at_once(acts: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Runs functions at the same time, and returns what they return, in their order."""
    results: list[Any] = [None] * len(acts)

    async def run(index: int, act: Callable[[], Awaitable[Any]]) -> None:
        results[index] = await act()

    async with trio.open_nursery() as nursery:
        for index, act in enumerate(acts):
            nursery.start_soon(run, index, act)
    return results
