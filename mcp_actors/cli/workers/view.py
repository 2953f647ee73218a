"""The live view of several workers: their supervisor has the admin endpoint and asks each of them over a socket.

A worker is asked for its own snapshot. Where the workers share their state with other machines, one of them is asked
for those nodes, too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Literal

import attrs
import msgspec
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ADMIN_NODE
from mcp_actors.telemetry.cluster import ClusterView
from mcp_actors.telemetry.live_view import Action, ActionOutcome, LiveView, ServerView
from mcp_actors.telemetry.snapshot import NodeSnapshot, this_process

__all__ = ["ViewedWorker", "WorkerState", "WorkerView", "WorkersView"]

# Seconds for a worker to answer: one that hangs delays no snapshot of the others for longer.
_PATIENCE = 0.5
_ACTION_TIME = 5.0
# Bytes of one line between a supervisor and a worker.
_LONGEST_LINE = 16 * 1024 * 1024
_SUPERVISOR = "supervisor"


class Question(msgspec.Struct, frozen=True):
    """From the supervisor: a request for a snapshot, or an action."""

    number: int
    others: bool = False
    """Whether other nodes are wanted too."""
    action: Action | None = None
    who: str = ""


class WorkerAnswer(msgspec.Struct, frozen=True):
    """From a worker."""

    number: int
    nodes: list[NodeSnapshot] = []
    outcome: ActionOutcome | None = None


_QUESTION: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
_ANSWER: msgspec.json.Decoder[WorkerAnswer] = msgspec.json.Decoder(WorkerAnswer)


class _Lines:
    """Reads lines from a socket, each with a bound."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def line(self) -> bytes | None:
        """Returns the next line, ``None`` at the end."""
        while (end := self._received.find(b"\n")) < 0:
            more = await self._stream.receive_some()
            if not more or len(self._received) > _LONGEST_LINE:
                return None
            self._received += more
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


class WorkerView:
    """The worker's side: a companion of its transports, which answers its supervisor.

    Args:
        descriptor: The socket to the supervisor.
        number: The number of the worker.
    """

    is_companion: Literal[True] = True

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self._number = number

    def __repr__(self) -> str:
        return f"<WorkerView {self._number}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answers until the supervisor is gone.

        Raises:
            TypeError: The handler is not one of this engine.
        """
        own = ServerView(handler, worker=self._number)
        connected = socket.socket(fileno=self._descriptor)
        connected.setblocking(False)
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(
                trio.SocketStream(trio.socket.from_stdlib_socket(connected))
            )
            every: LiveView = own
            if handler.shared.bus.spans_processes:
                every = await stack.enter_async_context(ClusterView.open(own, handler.shared))
            task_status.started("")
            lines = _Lines(stream)
            while (line := await lines.line()) is not None:
                answer = await self._answer(_QUESTION.decode(line), own, every)
                await stream.send_all(msgspec.json.encode(answer) + b"\n")

    async def _answer(self, question: Question, own: ServerView, every: LiveView) -> WorkerAnswer:
        if question.action is not None:
            return WorkerAnswer(question.number, outcome=await every.act(question.action, question.who))
        nodes = await every.snapshot() if question.others else await own.snapshot()
        return WorkerAnswer(question.number, nodes)


@attrs.define(eq=False)
class ViewedWorker:
    """The supervisor's side of the socket to one worker."""

    connected: socket.socket
    stream: trio.SocketStream | None = None
    number: int = 0
    """The number of the last question."""
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    lines: _Lines | None = None

    async def ask(
        self, seconds: float, *, others: bool = False, action: Action | None = None, who: str = ""
    ) -> WorkerAnswer | None:
        """Returns what the worker answers; ``None`` if that takes longer, or it is gone."""
        with trio.move_on_after(seconds):
            async with self.lock:
                return await self._ask(others, action, who)
        return None

    async def _ask(self, others: bool, action: Action | None, who: str) -> WorkerAnswer | None:
        if self.stream is None or self.lines is None:
            self.connected.setblocking(False)
            self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(self.connected))
            self.lines = _Lines(self.stream)
        self.number += 1
        question = Question(self.number, others, action, who)
        try:
            await self.stream.send_all(msgspec.json.encode(question) + b"\n")
            while (line := await self.lines.line()) is not None:
                answer = _ANSWER.decode(line)
                # Answers to questions that were given up come late.
                if answer.number == question.number:
                    return answer
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        except msgspec.MsgspecError as error:
            log.error("a worker said something unknown", reason=str(error))
        return None

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        if self.stream is not None:
            self.stream.socket.close()
        self.connected.close()


@attrs.frozen
class WorkerState:
    """One place for a worker, and the worker in it."""

    number: int
    pid: int
    view: ViewedWorker | None
    """``None`` until a worker in it is ready."""
    reason: str
    """Why the last worker there has ended; empty if none has."""


class WorkersView:
    """A `mcp_actors.telemetry.live_view.LiveView` of all workers, and of their supervisor.

    Args:
        workers: Returns the places of the workers as they are now.
    """

    def __init__(self, workers: Callable[[], Sequence[WorkerState]]) -> None:
        self._workers = workers
        # By node: the worker that is asked to act there.
        self._nodes: dict[str, ViewedWorker] = {}

    def __repr__(self) -> str:
        return f"<WorkersView {len(self._workers())} workers>"

    async def snapshot(self) -> list[NodeSnapshot]:
        """See `mcp_actors.telemetry.live_view.LiveView.snapshot`."""
        workers = self._workers()
        found: dict[int, list[NodeSnapshot]] = {}
        asked = [each for each in workers if each.view is not None]
        async with trio.open_nursery() as nursery:
            for place, each in enumerate(asked):
                start(nursery, ADMIN_NODE, self._look, each, place == 0, found, about=f"of {each.number}")
        gone = sum(each.view is None for each in workers)
        note = f"{len(workers) - gone} of {len(workers)} workers"
        nodes = {_SUPERVISOR: this_process(_SUPERVISOR, _SUPERVISOR, note)}
        views = {each.number: each.view for each in asked if each.view is not None}
        # What a worker says of itself comes first, and takes precedence over what another worker says of it.
        said = [(at > 0, number, node) for number, seen in found.items() for at, node in enumerate(seen)]
        # A node is forgotten with its process.
        self._nodes = {}
        for _, number, node in sorted(said, key=lambda each: each[:2]):
            nodes.setdefault(node.node, node)
            self._nodes.setdefault(node.node, views[number])
        shown = [*nodes.values()]
        shown += [_missing(each) for each in workers if each.number not in found]
        return shown

    async def _look(self, worker: WorkerState, others: bool, found: dict[int, list[NodeSnapshot]]) -> None:
        assert worker.view is not None
        answer = await worker.view.ask(2 * _PATIENCE if others else _PATIENCE, others=others)
        if answer is not None:
            found[worker.number] = answer.nodes

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Runs the action on the worker that it names. See `mcp_actors.telemetry.live_view.LiveView.act`."""
        view = self._nodes.get(action.node)
        answer = None if view is None else await view.ask(_ACTION_TIME, action=action, who=who)
        if answer is None or answer.outcome is None:
            return ActionOutcome(False, "the worker is gone, or does not answer")
        return answer.outcome


def _missing(worker: WorkerState) -> NodeSnapshot:
    """Returns a worker that has not answered."""
    silent = worker.view is not None
    note = "does not answer" if silent else worker.reason or "is not ready yet"
    name = f"worker {worker.number}"
    snapshot = this_process(name, name, note)
    return msgspec.structs.replace(
        snapshot, pid=worker.pid, worker=worker.number, state="gone", uptime=0.0, kinds=[], crashes=[]
    )
