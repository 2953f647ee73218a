"""The live view of a running server: its snapshots for watchers, and the actions of operators on it.

A `ServerView` shows and steers the server of this process. A `Feed` captures one snapshot an interval for all watchers
together, and adds rates.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol

import attrs
import msgspec
import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.dispatcher import SessionStatistics
from mcp_actors._server.runtime import ServerRuntime, TransportHandler
from mcp_actors._server.server_extension import OperatedTasks
from mcp_actors.abc import ServerHandler
from mcp_actors.errors import INTERNAL_ERROR, RpcError
from mcp_actors.supervision.logging import log
from mcp_actors.telemetry.exposition import FINE_BUCKETS
from mcp_actors.telemetry.history import HistoryRecorder, OperationRow
from mcp_actors.telemetry.snapshot import NodeSnapshot, Rates, Snapshot, SnapshotCapture, troubles_of

__all__ = ["Action", "ActionOutcome", "Feed", "LiveView", "ServerView", "Watcher"]


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action on a call, a task or a session of one node."""

    action: Literal["cancel_call", "cancel_task", "end_session"]
    node: str
    """`NodeSnapshot.node`."""
    target: str
    """`CallStatistics.key`, `TaskStatistics.key` or `SessionStatistics.name`."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """The outcome of an action."""

    done: bool
    text: str
    """A sentence for the operator."""


class LiveView(Protocol):
    """A source of snapshots for an admin endpoint: a server, all nodes of one, or workers."""

    async def snapshot(self) -> list[NodeSnapshot]:
        """Returns the state of every node. Bounded in time: a node that does not answer is left out."""

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Does what an operator asks for, and logs it with ``who``. Bounded in time."""


# -- the server of this process ------------------------------------------------------------------------

# Seconds for the calls of a session that ends to be answered.
_ANSWER_TIME = 1.0
# The text that a client is sent for its call.
_CALL_ENDED = "the call was cancelled by an operator of the server"
_SESSION_ENDED = "the session was ended by an operator of the server"
_TASK_ENDED = "cancelled by an operator of the server"


class ServerView:
    """A `LiveView` of the server that a handler belongs to, and of no other node.

    Args:
        handler: What `ServerTransport.serve` was given.
        worker: The number of this process among the workers of a supervisor; ``None`` without a supervisor.

    Raises:
        TypeError: The handler belongs to another engine.
    """

    def __init__(self, handler: ServerHandler, worker: int | None = None) -> None:
        if not isinstance(handler, TransportHandler) or not isinstance(handler.running, ServerRuntime):
            raise TypeError(f"a live view needs a handler of this engine, not {handler!r:.80}")
        responder = handler.responder
        self._missing = handler.missing
        self._operated: list[OperatedTasks] = responder.operated
        self._history = HistoryRecorder(handler.running, responder.telemetry)
        self._capture = SnapshotCapture(
            handler.running,
            handler.shared.node,
            lambda: responder.scope.server.info,
            self._history,
            self._operated,
            worker,
        )

    def __repr__(self) -> str:
        return f"<ServerView {self._capture!r}>"

    @property
    def node(self) -> str:
        """The name of the node."""
        return self._capture.node

    async def keep_history(self) -> None:
        """Keeps the history of the last ten minutes, which snapshots have, until it is cancelled."""
        await self._history.run()

    async def own_snapshot(self) -> NodeSnapshot:
        """Returns the state of the server of this process, and how long a turn of its event loop takes."""
        began = trio.current_time()
        await trio.lowlevel.checkpoint()
        turn = trio.current_time() - began
        return await self._capture.capture(turn, self._missing())

    async def snapshot(self) -> list[NodeSnapshot]:
        """See `LiveView.snapshot`."""
        return [await self.own_snapshot()]

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Ends a call, a task or a session. The client of each ended call gets an error as its answer.

        Args:
            action: What to do.
            who: Who wants it, for the log.
        """
        outcome = await self._act(action)
        log.warning(
            "an operator acted",
            action=action.action,
            target=action.target[:64],
            who=who,
            done=outcome.done,
            outcome=outcome.text,
        )
        return outcome

    async def _act(self, action: Action) -> ActionOutcome:
        await trio.lowlevel.checkpoint()
        if action.node != self.node:
            return ActionOutcome(False, "there is no such node")
        if action.action == "cancel_call":
            return self._cancel_call(action.target)
        if action.action == "cancel_task":
            return await self._cancel_task(action.target)
        return await self._end_session(action.target)

    def _cancel_call(self, key: str) -> ActionOutcome:
        call = self._capture.call_named(key)
        if call is None:
            return ActionOutcome(False, "the call is not in flight any more")
        if call.cut_short:
            return ActionOutcome(False, "the call is cancelled already, and its function cleans up")
        call.end_with(RpcError(INTERNAL_ERROR, _CALL_ENDED))
        return ActionOutcome(True, f"{call.invocation.method.name} was cancelled")

    async def _cancel_task(self, key: str) -> ActionOutcome:
        for each in self._operated:
            if await each.cancel(key, _TASK_ENDED):
                return ActionOutcome(True, "the task was cancelled")
        return ActionOutcome(False, "the task has ended")

    async def _end_session(self, name: str) -> ActionOutcome:
        session = self._capture.session_named(name)
        if session is None:
            return ActionOutcome(False, "the session has ended")
        for call in tuple(session.dispatcher.calls.values()):
            call.end_with(RpcError(INTERNAL_ERROR, _SESSION_ENDED))
        if isinstance(session, ConnectionlessSession):
            # Calls are answered before the session is gone: after a 404, a client would repeat them in a new session.
            with trio.move_on_after(_ANSWER_TIME):
                await session.wait_until_idle()
            session.end()
        else:
            session.stop()
        return ActionOutcome(True, f"{name} ends")


# -- one snapshot an interval for all watchers together ------------------------------------------------

# The share of an event loop's time that snapshots may take; a larger server is captured less often.
SHARE = 0.02
# Seconds between two snapshots at most: a watcher that hears nothing for a minute takes the server for dead, and the
# time that a snapshot took is what a node says of itself.
LONGEST_PAUSE = 30.0
# Seconds between two snapshots of which a rate is computed; over less, it would say nothing.
SHORTEST = 0.2


class Watcher(Protocol):
    """A receiver of every snapshot."""

    def show(self, snapshot: bytes) -> None:
        """Takes a snapshot as JSON. Must neither wait nor raise."""


class Feed:
    """Captures snapshots while there are watchers.

    Args:
        watch: The view to capture.
        interval: Seconds between two snapshots. They are longer apart where one takes more than 2 % of that.
    """

    def __init__(self, watch: LiveView, interval: float = 1.0) -> None:
        self.watch = watch
        self.interval = interval
        self.watchers: set[Watcher] = set()
        self._wanted = trio.Event()
        self._capturing = trio.Lock()
        self._last = b""
        self._last_at = float("-inf")
        self._pause = interval
        self._before: dict[str, NodeSnapshot] = {}

    def __repr__(self) -> str:
        return f"<Feed {len(self.watchers)} watchers>"

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if not self.watchers:
                self._wanted = trio.Event()
                await self._wanted.wait()
            data = await self.latest()
            for watcher in tuple(self.watchers):
                watcher.show(data)
            await trio.sleep(self._pause)

    def add(self, watcher: Watcher) -> None:
        """Shows snapshots to ``watcher`` from now on; the last one at once, if it is young enough."""
        self.watchers.add(watcher)
        if self._is_young(self._pause):
            watcher.show(self._last)
        self._wanted.set()

    def remove(self, watcher: Watcher) -> None:
        """Shows nothing more to ``watcher``. Idempotent."""
        self.watchers.discard(watcher)

    async def latest(self) -> bytes:
        """Returns a snapshot as JSON, at most half an interval old, so that many callers share one.

        Raises:
            Exception: What the view raises.
        """
        async with self._capturing:
            if not self._is_young(self._pause / 2):
                nodes = await self.watch.snapshot()
                took = max((each.took for each in nodes), default=0.0)
                self._pause = max(self.interval, min(took / SHARE, LONGEST_PAUSE))
                nodes = [_rated(each, self._before.get(each.node)) for each in nodes]
                self._before = {each.node: each for each in nodes}
                snapshot = Snapshot(
                    at=time.time(),
                    interval=self._pause,
                    watchers=len(self.watchers),
                    nodes=nodes,
                    troubles=troubles_of(nodes),
                    bounds=list(FINE_BUCKETS),
                )
                self._last, self._last_at = msgspec.json.encode(snapshot), trio.current_time()
            return self._last

    def _is_young(self, seconds: float) -> bool:
        return trio.current_time() - self._last_at < seconds


def _rated(now: NodeSnapshot, before: NodeSnapshot | None) -> NodeSnapshot:
    """Returns a snapshot with the rates since the one before."""
    seconds = 0.0 if before is None else now.uptime - before.uptime
    if before is None or seconds < SHORTEST:
        if before is not None:
            return msgspec.structs.replace(now, rates=before.rates)
        return now
    ended = {_place_of(each): each.ended for each in before.operations}
    requests = {each.name: each.counters.requests for each in before.sessions}
    return msgspec.structs.replace(
        now,
        rates=_rates(now, before, seconds),
        operations=[
            _operation_rated(each, ended.get(_place_of(each), 0), seconds) for each in now.operations
        ],
        sessions=[_session_rated(each, requests.get(each.name), seconds) for each in now.sessions],
    )


def _rates(now: NodeSnapshot, before: NodeSnapshot, seconds: float) -> Rates:
    new, old = now.totals, before.totals
    return Rates(
        requests=(new.requests - old.requests) / seconds,
        cancelled=(new.cancelled - old.cancelled) / seconds,
        malformed=(new.malformed - old.malformed) / seconds,
        refused=(new.refused - old.refused) / seconds,
        events=(now.published - before.published) / seconds,
        processor=0.0
        if now.process is None or before.process is None
        else (now.process.processor - before.process.processor) / seconds,
    )


def _place_of(row: OperationRow) -> tuple[str, str | None, str | None]:
    return row.method, row.target, row.upstream


def _operation_rated(now: OperationRow, ended: int, seconds: float) -> OperationRow:
    return msgspec.structs.replace(now, rate=max(now.ended - ended, 0) / seconds)


def _session_rated(now: SessionStatistics, before: int | None, seconds: float) -> SessionStatistics:
    requests = now.counters.requests
    since = requests - before if before is not None else requests if now.age < seconds else None
    return now if since is None else attrs.evolve(now, rate=since / seconds)
