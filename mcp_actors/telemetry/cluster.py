"""The live view of all nodes of a server, which asks each over their bus and forwards actions to the node they name.

A node answers as long as it has a live view of its own, so a cluster can be watched from any of them. A node that can
write to the shared state could end sessions without this too, so nothing is trusted here that is not trusted there.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import msgspec
import trio

from mcp_actors.abc import Bus, OpenState
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.containment import start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ADMIN_NODE
from mcp_actors.telemetry.live_view import Action, ActionOutcome, ServerView
from mcp_actors.telemetry.snapshot import NodeSnapshot, cleaned

__all__ = ["ClusterView"]

TOPIC = "mcp-actors admin"
# Seconds that a snapshot waits for the other nodes: below the interval, so that a node that is gone delays nothing.
PATIENCE = 0.5
# Seconds after which a node that is silent is shown no more.
FORGOTTEN = 10.0
# Seconds for another node to act.
ACTION_TIME = 3.0
# Nodes that are shown, and questions of theirs that wait to be answered.
MOST_NODES = 64
MOST_QUESTIONS = 64
# Bytes of one answer: half of what a bus has to carry in one message.
MOST_BYTES = 512 * 1024


class _NodeAnswer(msgspec.Struct, frozen=True, tag=True):
    """A node's snapshot, and its own mailbox."""

    address: str
    snapshot: NodeSnapshot


class _Ordered(msgspec.Struct, frozen=True, tag=True):
    """An action for the node that gets this."""

    order: str
    address: str
    action: Action
    who: str


class _Acted(msgspec.Struct, frozen=True, tag=True):
    """The outcome of an action."""

    order: str
    outcome: ActionOutcome


T = TypeVar("T")

_MESSAGE: msgspec.json.Decoder[_NodeAnswer | _Ordered | _Acted] = msgspec.json.Decoder(
    _NodeAnswer | _Ordered | _Acted
)


@attrs.frozen
class _KnownNode:
    """The last answer of another node."""

    answer: _NodeAnswer
    at: float


@attrs.define
class _Order:
    """An action that another node was asked for."""

    outcome: ActionOutcome | None = None
    done: trio.Event = attrs.field(factory=trio.Event)


class ClusterView:
    """A `LiveView` of all nodes of a server that have a live view. Made by `open`.

    Args:
        own: The node of this process.
        bus: The way to the others.
    """

    def __init__(self, own: ServerView, bus: Bus) -> None:
        self._own = own
        self._bus = bus
        self._known: dict[str, _KnownNode] = {}
        self._arrived = trio.lowlevel.ParkingLot()
        self._orders: dict[str, _Order] = {}
        self._address = ""
        self._wanted_send, self._wanted = trio.open_memory_channel[str](MOST_QUESTIONS)
        self._ordered_send, self._ordered = trio.open_memory_channel[_Ordered](MOST_QUESTIONS)

    def __repr__(self) -> str:
        return f"<ClusterView {len(self._known) + 1} nodes>"

    @classmethod
    @asynccontextmanager
    async def open(cls, own: ServerView, state: OpenState) -> AsyncIterator[ClusterView]:
        """Yields the view of all nodes, and answers the other nodes meanwhile."""
        view = cls(own, state.bus)
        view._address, close = state.bus.open_mailbox(view._take)
        leave = state.bus.subscribe(view._asked, lambda: None)
        try:
            async with trio.open_nursery() as nursery:
                start_again(nursery, ADMIN_NODE, view._answer)
                # In a task of its own: ending a session takes up to a second, and this node must answer meanwhile.
                start_again(nursery, ADMIN_NODE, view._obey)
                yield view
                nursery.cancel_scope.cancel(reason="the live view ends")
        finally:
            leave()
            close()

    async def snapshot(self) -> list[NodeSnapshot]:
        """See `LiveView.snapshot`."""
        asked = trio.current_time()
        self._bus.publish(TOPIC, self._address)
        own = await self._own.own_snapshot()
        with trio.move_on_after(PATIENCE):
            # No node is known the first time; those that answer are shown from the next snapshot on.
            while any(each.at < asked for each in self._known.values()):
                await self._arrived.park()
        now = trio.current_time()
        self._known = {node: each for node, each in self._known.items() if now - each.at < FORGOTTEN}
        others = [_shown(each, now - each.at if each.at < asked else 0.0) for each in self._known.values()]
        return [own, *sorted(others, key=lambda each: each.node)]

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Runs the action on the node that it names. See `LiveView.act`."""
        known = self._known.get(action.node)
        if known is None:
            return await self._own.act(action, who)
        order = secrets.token_hex(8)
        self._orders[order] = waiting = _Order()
        try:
            with trio.move_on_after(ACTION_TIME):
                message = msgspec.json.encode(_Ordered(order, self._address, action, who))
                if not await self._bus.send(known.answer.address, message):
                    return ActionOutcome(False, "the node is gone")
                await waiting.done.wait()
        except SharedStateUnavailable as error:
            return ActionOutcome(False, str(error))
        finally:
            del self._orders[order]
        return waiting.outcome or ActionOutcome(False, "the node has not answered; it may have done it")

    # -- messages of the bus: nothing here waits or raises ---------------------------------------------------------

    def _asked(self, topic: str, key: str) -> None:
        if topic == TOPIC:
            self._put(self._wanted_send, key)

    def _take(self, message: bytes) -> None:
        try:
            found = _MESSAGE.decode(message)
        except msgspec.MsgspecError as error:
            log.warning("another node said something unknown", reason=str(error))
            return
        if isinstance(found, _Ordered):
            self._put(self._ordered_send, found)
        elif isinstance(found, _Acted):
            if (order := self._orders.get(found.order)) is not None:
                order.outcome = ActionOutcome(found.outcome.done, cleaned(found.outcome.text) or "")
                order.done.set()
        elif self._may_speak(found):
            self._known[found.snapshot.node] = _KnownNode(found, trio.current_time())
            self._arrived.unpark_all()

    def _may_speak(self, found: _NodeAnswer) -> bool:
        """Whether an answer comes from the node that it names: not this one, nor one known at another address."""
        node = found.snapshot.node
        known = self._known.get(node)
        if node == self._own.node or (known is not None and known.answer.address != found.address):
            log.debug("a node gave the name of another", node=cleaned(node))
            return False
        return known is not None or len(self._known) < MOST_NODES

    def _put(self, waiting: trio.MemorySendChannel[T], question: T) -> None:
        try:
            waiting.send_nowait(question)
        except trio.WouldBlock:
            log.debug("a question of another node was dropped", limit=MOST_QUESTIONS)

    async def _answer(self) -> None:
        async for address in self._wanted:
            await self._send(address, _encoded(self._address, await self._own.own_snapshot()))

    async def _obey(self) -> None:
        async for ordered in self._ordered:
            who = f"{cleaned(ordered.who)}, through another node"
            outcome = await self._own.act(ordered.action, who)
            await self._send(ordered.address, msgspec.json.encode(_Acted(ordered.order, outcome)))

    async def _send(self, address: str, answer: bytes) -> None:
        try:
            await self._bus.send(address, answer)
        except SharedStateUnavailable as error:
            log.debug("another node could not be answered", reason=str(error))


def _encoded(address: str, snapshot: NodeSnapshot) -> bytes:
    """Returns a message that the bus carries, with fewer rows if need be."""
    while True:
        data = msgspec.json.encode(_NodeAnswer(address, snapshot))
        if len(data) <= MOST_BYTES:
            return data
        snapshot = msgspec.structs.replace(
            snapshot,
            sessions=snapshot.sessions[: len(snapshot.sessions) // 2],
            calls=snapshot.calls[: len(snapshot.calls) // 2],
            transports=[],
        )


def _shown(known: _KnownNode, silent: float) -> NodeSnapshot:
    snapshot = known.answer.snapshot
    return msgspec.structs.replace(snapshot, note=f"silent for {silent:.1f} s") if silent else snapshot
