"""Turns: calls of tools that have the same key run one after the other, in the order of their arrival.

A tool that is registered with ``turn=`` waits behind all calls that came before with its key, of any tool.
Tools that are annotated as read-only share: those next to each other run at once. Nobody overtakes, so that nobody
starves.

=====================================  ================================================================================
the call                               its turn
=====================================  ================================================================================
is cancelled, or times out, waiting    is given up at once: the calls behind it move up
is cancelled while it runs             ends when its function has ended, its thread included
asks its client by a retry             ends, and begins anew with the retry, at the end of the queue
finds too many that wait               is refused with `Overloaded`; so is one that has waited too long
=====================================  ================================================================================

With ``nodes=True`` the queue is a value in the shared state, in which each call has a ticket. The tickets at the front
run, and their nodes write again and again that they are alive. A ticket of a node that is gone is taken out, and so is
one of which nothing was heard for `LEASE` seconds, by the clock of who waits behind it. Its own node stops the function
before that (`TurnLost`), so that no clocks are compared.
"""

from __future__ import annotations

import math
import random
import secrets
import string
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import attrs
import msgspec
import trio

from mcp_actors._actors.beats import ProgressReports
from mcp_actors._server.context import Context
from mcp_actors._server.invoke import Function, ThreadUse, is_async, thread_use
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import OpenState
from mcp_actors.errors import Overloaded, SharedStateUnavailable, TurnLost
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.containment import one_error, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.supervision.task_kinds import TURN_LEASE
from mcp_actors.types import ToolAnnotations
from mcp_actors.types.records import Number, ValueRecord, frozen_record

__all__ = ["Turn", "TurnKey", "TurnStatistics", "TurnTaker", "Turns", "in_turn"]

LEASE = 15.0
"""Seconds after which a ticket counts as lost of which nothing is heard: what a store needs to come back, and more."""
# Seconds between two signs of life of a ticket; and before the end of its lease at which its function is stopped.
_RENEWAL, _MARGIN = LEASE / 3, LEASE / 5
# Seconds between two looks of a call that waits at the queue of all nodes, where no message has woken it.
_LOOK = 1.0
# Seconds that leaving the queue of all nodes may take.
_LEAVE_TIME = 10.0
# Seconds between two reports of a place.
_REPORT = 1.0
# Seconds that a change of the queue of all nodes waits at most where another node was faster.
_CONTENTION = 0.05
# Characters of a key.
_LONGEST = 1000
# Keys that a snapshot shows.
MOST_SHOWN = 200
# Seconds for which the queue of a key is kept, if nobody changes it: the longest call.
_KEPT = 86400.0
MOST_WAITING = 10_000

TurnKey = str | Callable[[Context, Mapping[str, Any]], str | None]
"""A text with arguments in braces, or a plain function of context and arguments, which returns ``None`` for no turn."""


@attrs.frozen
class Turn:
    """The way in which the calls of a tool take turns: ``@server.tool(turn=Turn("{path}", nodes=True))``.

    ``turn="{path}"`` is short for ``Turn("{path}")``.

    Args:
        key: Calls with the same key take turns. ``"{path}"`` is the value of an argument, ``"orders/{id}"`` a text with
            one, and ``"all"`` the same for all calls. A function of the `Context` and the arguments, a plain one that
            decides at once, returns the text, or ``None`` for a call that waits for nobody.
        nodes: Whether the calls of all nodes with the same shared state take turns, not only those of this process.
            The function has to be async then, since no thread can be stopped whose turn is lost.
        waiting: How many calls may wait for one key; 100 by default, as long as people look at a queue.
        max_wait: Seconds that a call waits at most; 300 by default, which is how long clients wait in all.

    Raises:
        TypeError: ``key`` is neither, or an argument is of another kind.
        ValueError: A number is out of range, or the braces of the text are malformed.
    """

    key: TurnKey
    nodes: bool = False
    waiting: int = 100
    max_wait: float = 300.0
    names: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)
    """The arguments that are part of the key."""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.key, str) and (not callable(self.key) or is_async(self.key)):
            raise TypeError(f'turn={self.key!r:.80}: write a text such as "{{path}}", or a plain def')
        object.__setattr__(self, "names", tuple(_names_in(self.key)) if isinstance(self.key, str) else ())
        require_number("Turn(waiting=)", self.waiting, 0, MOST_WAITING, whole=True)
        require_number("Turn(max_wait=)", self.max_wait, 0.001, _KEPT)

    @classmethod
    def of(cls, given: Turn | TurnKey) -> Turn:
        """Returns what an option of a tool means; raises as the class does."""
        return given if isinstance(given, Turn) else cls(given)

    def key_of(self, ctx: Context, arguments: Mapping[str, Any]) -> str | None:
        """Returns the key of a call, ``None`` if it takes no turn.

        Raises:
            TypeError: The function returns something else.
            Exception: What the function raises.
        """
        if isinstance(self.key, str):
            key: object = self.key.format_map({each: _text(arguments.get(each)) for each in self.names})
        else:
            key = self.key(ctx, arguments)
            if key is None:
                return None
        if not isinstance(key, str):
            raise TypeError(
                f"turn= returned {key!r:.80}: return a text, or None for a call that takes no turn"
            )
        return key[:_LONGEST]


def _names_in(text: str) -> Iterator[str]:
    """Yields the arguments that a key names; raises `ValueError` for braces that are malformed."""
    for _, name, form, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError(f'turn={text!r}: write arguments as "{{name}}", and no more in the braces')
        yield name


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


@frozen_record(eq=False, repr=False)
class TurnStatistics(ValueRecord):
    """A snapshot of the calls that take turns by one key, at this node."""

    key: str
    tools: tuple[str, ...]
    """The tools that run, whose turn it is."""
    running: Number
    waiting: Number
    longest: float
    """Seconds for which the oldest call has waited; 0 if none waits."""
    nodes: bool
    """Whether the calls of all nodes take these turns."""


class _Ticket:
    """The place of one call in a queue."""

    __slots__ = ("call", "came", "granted", "id", "shares", "tool")

    def __init__(self, ctx: Context, tool: str, shares: bool) -> None:
        self.call = ctx.call
        self.tool = tool
        self.shares = shares
        self.came = trio.current_time()
        self.granted = trio.Event()
        """Set when it is its turn; in the queue of all nodes, when it may be."""
        self.id = secrets.token_urlsafe(9)

    async def report_place(self, ahead: int) -> None:
        """Tells the client how many calls come first, if it wants reports of progress."""
        # A call has reports once it has waited.
        await trio.lowlevel.checkpoint()
        reports = self.call.reports
        if isinstance(reports, ProgressReports):
            era = self.call.invocation.era
            text = f"waits for its turn behind {ahead} {'call' if ahead == 1 else 'calls'}"
            await reports.say(text if era.progress_message else None)

    @property
    def pause(self) -> float:
        """Seconds after which the place has to be looked at again."""
        return _REPORT if isinstance(self.call.reports, ProgressReports) else math.inf


class _Queue:
    """The calls of one key at this node: those whose turn it is, and those that wait, in the order of arrival."""

    __slots__ = ("adding", "key", "nodes", "running", "waiting")

    def __init__(self, key: str, nodes: bool) -> None:
        self.key = key
        self.nodes = nodes
        self.running: dict[_Ticket, None] = {}
        self.waiting: dict[_Ticket, None] = {}
        self.adding = trio.Lock()
        """Has the calls of this node get into the queue of all nodes in their order."""

    def ahead_of(self, ticket: _Ticket) -> int:
        """Returns the number of calls of this node before one that waits, those that run included."""
        return len(self.running) + next(place for place, each in enumerate(self.waiting) if each is ticket)

    def grant(self) -> None:
        """Gives turns to those at the front, as many as may run at once."""
        while self.waiting:
            first = next(iter(self.waiting))
            if self.running and not (first.shares and all(each.shares for each in self.running)):
                return
            self.begin(first)
            first.granted.set()

    def begin(self, ticket: _Ticket) -> None:
        """It is the turn of a call that waits."""
        del self.waiting[ticket]
        self.running[ticket] = None


class Turns:
    """The queues of a server at this node."""

    def __init__(self) -> None:
        self._queues: dict[tuple[bool, str], _Queue] = {}
        self._of_nodes: _NodeQueues | None = None

    def __repr__(self) -> str:
        return f"<Turns of {len(self._queues)} keys>"

    def statistics(self) -> list[TurnStatistics]:
        """Returns the keys with the most calls that wait."""
        if not self._queues:
            return []
        now = trio.current_time()
        found = [
            TurnStatistics(
                printable(each.key, _LONGEST),
                tuple(ticket.tool for ticket in each.running),
                len(each.running),
                len(each.waiting),
                now - next(iter(each.waiting)).came if each.waiting else 0.0,
                each.nodes,
            )
            for each in self._queues.values()
        ]
        return sorted(found, key=lambda each: -each.waiting)[:MOST_SHOWN]

    async def run(
        self, ctx: Context, key: str, turn: Turn, ticket: _Ticket, function: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Runs ``function`` when it is the turn of the call, and returns its result.

        Raises:
            Overloaded: Too many calls wait for the key, or this one has waited too long.
            SharedStateUnavailable: The queue of all nodes cannot be reached. Nothing was run.
            TurnLost: The turn was lost while the function ran, which was cancelled.
            Exception: What ``function`` raises.
        """
        queue = self._queues.get((turn.nodes, key))
        if queue is None:
            queue = self._queues[turn.nodes, key] = _Queue(key, turn.nodes)
        elif len(queue.waiting) >= turn.waiting and queue.running:
            raise _refusal(queue)
        # Without a checkpoint before it: calls begin in the order of their arrival.
        queue.waiting[ticket] = None
        if turn.nodes:
            return await self._run_over_nodes(ctx, queue, ticket, turn, function)
        use = ThreadUse.of(ctx.call)
        try:
            queue.grant()
            with trio.move_on_after(turn.max_wait):
                while not ticket.granted.is_set():
                    await ticket.report_place(queue.ahead_of(ticket))
                    with trio.move_on_after(ticket.pause):
                        await ticket.granted.wait()
            if not ticket.granted.is_set():
                raise _refusal(queue)
            former = thread_use.set(use)
            try:
                return await function()
            finally:
                thread_use.reset(former)
        finally:
            # A thread runs on when its call was cancelled, and must not meet the next call in what it does.
            use.when_over(partial(self._leave, queue, ticket))

    def _leave(self, queue: _Queue, ticket: _Ticket) -> None:
        queue.running.pop(ticket, None)
        queue.waiting.pop(ticket, None)
        if not queue.nodes:
            queue.grant()
        if not queue.running and not queue.waiting:
            self._queues.pop((queue.nodes, queue.key), None)

    async def _run_over_nodes(
        self,
        ctx: Context,
        queue: _Queue,
        ticket: _Ticket,
        turn: Turn,
        function: Callable[[], Awaitable[Any]],
    ) -> Any:
        shared: OpenState = ctx._scope.shared  # type: ignore[assignment]
        if self._of_nodes is None or self._of_nodes.shared is not shared:
            self._of_nodes = _NodeQueues(shared)
        nodes = self._of_nodes
        try:
            with trio.move_on_after(turn.max_wait) as limit:
                async with queue.adding:
                    await nodes.add(queue.key, ticket)
                began = await nodes.wait(queue.key, ticket)
            if limit.cancelled_caught:
                raise _refusal(queue)
            queue.begin(ticket)
            return await nodes.hold(queue.key, ticket, began, function)
        finally:
            self._leave(queue, ticket)
            await nodes.remove(queue.key, ticket)


def _refusal(queue: _Queue) -> Overloaded:
    return Overloaded("turn", len(queue.running), len(queue.waiting))


# -- the queues of all nodes ---------------------------------------------------------------------------------------


class _Shared(msgspec.Struct, array_like=True, frozen=True):
    """A ticket in the queue of all nodes."""

    id: str
    address: str
    """The mailbox of its node."""
    shares: bool
    signs: int = 0
    """Signs of life, which its node counts while it is its turn."""


_Tickets = list[_Shared]
_read = msgspec.json.Decoder(_Tickets).decode


def _granted(tickets: _Tickets) -> int:
    """Returns the number of tickets at the front whose turn it is."""
    together = next((place for place, each in enumerate(tickets) if not each.shares), len(tickets))
    return together or min(len(tickets), 1)


class _NodeQueues:
    """The queues in the shared state, as this node sees and changes them.

    Args:
        shared: The state that a `serve` has opened.
    """

    def __init__(self, shared: OpenState) -> None:
        self.shared = shared
        # It ends with the node, and a message to it says no more than that a call should look at its place.
        self._address, _ = shared.bus.open_mailbox(self._take)
        self._waiting: dict[str, _Ticket] = {}
        # Calls of this node that wait or run, by the ids of their tickets.
        self._known: set[str] = set()
        # When the signs of life of a ticket were seen to change last.
        self._signs: dict[str, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<_NodeQueues of {self._address}, {len(self._known)} calls>"

    async def add(self, key: str, ticket: _Ticket) -> None:
        """Puts a call at the end of a queue."""
        self._known.add(ticket.id)
        mine = _Shared(ticket.id, self._address, ticket.shares)
        # Not cancelled in between: it would not be known whether it is there.
        with trio.CancelScope(shield=True):
            await self._change(key, lambda tickets: [*tickets, mine])

    async def wait(self, key: str, ticket: _Ticket) -> float:
        """Waits until it is the turn of a call, and returns the time of its first sign of life in it.

        Those behind it have waited for a sign since its turn came, and this node may have learned of that late.
        """
        self._waiting[ticket.id] = ticket
        told = -1
        try:
            while True:
                ticket.granted = trio.Event()
                tickets = await self._load(key)
                place = _place(tickets, ticket)
                if place is None:
                    # Others took this node for gone, or the state was lost.
                    await self.add(key, ticket)
                    continue
                if place < _granted(tickets):
                    began = trio.current_time()
                    if await self._gives_sign(key, ticket):
                        return began
                    continue
                if await self._drop_lost(key, tickets[:place], _granted(tickets)):
                    continue
                if place != told:
                    told = place
                    await ticket.report_place(place)
                with trio.move_on_after(_LOOK * random.uniform(0.8, 1.2)):
                    await ticket.granted.wait()
        finally:
            del self._waiting[ticket.id]

    async def hold(
        self, key: str, ticket: _Ticket, began: float, function: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Runs a function in the turn of its call. Raises `TurnLost` if that is lost meanwhile."""
        result: Any = None
        with one_error():
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()
                start(nursery, TURN_LEASE, self._keep, key, ticket, began, scope)
                with scope:
                    result = await function()
                nursery.cancel_scope.cancel(reason="the function has ended")
        if scope.cancelled_caught:
            raise TurnLost(key)
        return result

    async def remove(self, key: str, ticket: _Ticket) -> None:
        """Takes a call out of a queue, and has those look whose turn it is now. Never raises for want of the state."""
        try:
            with trio.CancelScope(shield=True), trio.fail_after(_LEAVE_TIME):
                left = await self._change(
                    key, lambda tickets: [each for each in tickets if each.id != ticket.id]
                )
                for each in left[: _granted(left)]:
                    await self._wake(each)
        except (SharedStateUnavailable, trio.TooSlowError) as error:
            log.warning(
                "a turn is not given back: others wait until its lease is over", key=key, cause=str(error)
            )
        finally:
            # Whoever sees the ticket from here on takes it out.
            self._known.discard(ticket.id)

    async def _keep(self, key: str, ticket: _Ticket, began: float, scope: trio.CancelScope) -> None:
        """Gives signs of life of a call whose turn it is; cancels ``scope`` where that is not possible in time."""
        last = began
        while True:
            is_there = False
            with trio.move_on_at(last + LEASE - _MARGIN):
                await trio.sleep(_RENEWAL)
                began = trio.current_time()
                is_there = await self._gives_sign_in_the_end(key, ticket)
                last = began
            if not is_there:
                scope.cancel(reason="the turn was lost")
                return

    async def _gives_sign_in_the_end(self, key: str, ticket: _Ticket) -> bool:
        while True:
            try:
                return await self._gives_sign(key, ticket)
            except SharedStateUnavailable:
                await trio.sleep(_LOOK)

    async def _gives_sign(self, key: str, ticket: _Ticket) -> bool:
        """Gives a sign of life of a call, and returns whether it is in the queue still."""
        tickets = await self._change(
            key,
            lambda tickets: [
                msgspec.structs.replace(each, signs=each.signs + 1) if each.id == ticket.id else each
                for each in tickets
            ],
        )
        return _place(tickets, ticket) is not None

    async def _drop_lost(self, key: str, ahead: _Tickets, granted: int) -> bool:
        """Takes out the tickets of those that are lost; returns whether there were any."""
        lost = {each.id for each in ahead if each.address == self._address and each.id not in self._known}
        gone = await self._gone({each.address for each in ahead} - {self._address})
        now = trio.current_time()
        for each in ahead[:granted]:
            signs, since = self._signs.get(each.id, (-1, now))
            if signs != each.signs:
                self._signs[each.id] = each.signs, now
            elif now - since >= LEASE:
                # It alone: its node may not have come to take it out, and have others that live.
                lost.add(each.id)
        lost |= {each.id for each in ahead if each.address in gone}
        if not lost:
            return False
        # One that has given a sign since it was looked at is not lost, nor one that has given its turn back.
        seen = [each for each in ahead if each.id in lost]
        taken: _Tickets = []

        def without_lost(tickets: _Tickets) -> _Tickets:
            taken[:] = [each for each in tickets if each in seen]
            return [each for each in tickets if each not in seen]

        left = await self._change(key, without_lost)
        self._signs = {id: signs for id, signs in self._signs.items() if any(id == each.id for each in left)}
        if taken:
            log.warning("turns of calls were taken away: their node is gone", key=key, calls=len(taken))
        for each in left[: _granted(left)]:
            await self._wake(each)
        return True

    async def _gone(self, addresses: set[str]) -> set[str]:
        """Returns those of some nodes that are known to be gone. A bus within this process knows nothing of others."""
        if not self.shared.bus.spans_processes:
            return set()
        return {each for each in addresses if not await self.shared.bus.send(each, b"")}

    async def _wake(self, ticket: _Shared) -> None:
        if ticket.address == self._address:
            self._take(ticket.id.encode())
        else:
            await self.shared.bus.send(ticket.address, ticket.id.encode())

    def _take(self, message: bytes) -> None:
        found = self._waiting.get(message.decode())
        if found is not None:
            found.granted.set()

    async def _load(self, key: str) -> _Tickets:
        data = await self.shared.values.load(_stored(key))
        return [] if data is None else _read(data)

    async def _change(self, key: str, change: Callable[[_Tickets], _Tickets]) -> _Tickets:
        """Puts what ``change`` makes of a queue in its place, and returns it."""
        stored = _stored(key)
        while True:
            before = await self.shared.values.load(stored)
            tickets = [] if before is None else _read(before)
            left = change(tickets)
            if left == tickets:
                return left
            after = msgspec.json.encode(left) if left else None
            if await self.shared.values.replace(stored, before, after, _KEPT):
                return left
            await trio.sleep(random.uniform(0, _CONTENTION))


def _place(tickets: _Tickets, ticket: _Ticket) -> int | None:
    return next((place for place, each in enumerate(tickets) if each.id == ticket.id), None)


def _stored(key: str) -> str:
    return encode_value(["turn", key]).decode()


# -- the function of a tool ----------------------------------------------------------------------------------------


class TurnTaker(NamedTuple):
    """A tool whose calls take turns, as far as that matters for them."""

    name: str
    annotations: ToolAnnotations | None
    schema: Mapping[str, Any]
    """Its input schema."""
    is_raw: bool
    """Whether its function takes the arguments as one dict."""

    @property
    def shares(self) -> bool:
        """Whether it is read-only, and shares its turn with others of the kind."""
        return self.annotations is not None and self.annotations.read_only_hint is True


def in_turn(
    function: Function,
    call: Callable[..., Any],
    given: Turn | TurnKey,
    tool: TurnTaker,
    turns: Callable[[], Turns],
) -> Function:
    """Returns a tool's function as it takes its turn.

    Args:
        function: The function, ready to be called.
        call: The function of the user.
        given: The option ``turn``.
        tool: The tool.
        turns: Returns the queues of the server that has the tool now.

    Raises:
        TypeError: The option is of another kind, or ``nodes`` is given for a function in a thread.
        ValueError: A number is out of range, the text names an argument that the tool does not have, or the function is
            inline.
    """
    turn = Turn.of(given)
    if function.inline:
        raise ValueError(f"turn={turn.key!r:.80}: an inline function waits for nobody; remove inline=True")
    if turn.nodes and not is_async(call):
        raise TypeError(
            f"turn={turn.key!r:.80}: with nodes=True write async def, since no thread can be stopped whose turn is lost"
        )
    unknown = [each for each in turn.names if each not in tool.schema.get("properties", {})]
    if unknown:
        raise ValueError(f"turn={turn.key!r}: the tool has no argument {unknown[0]!r}")
    begin = function.call

    async def run(ctx: Context, arguments: dict[str, Any]) -> Any:
        named = ctx.params.get("arguments") or {} if tool.is_raw else arguments
        key = turn.key_of(ctx, named)
        if key is None:
            return await begin(ctx, arguments)
        return await turns().run(
            ctx, key, turn, _Ticket(ctx, tool.name, tool.shares), partial(begin, ctx, arguments)
        )

    return Function(run, inline=False)
