"""The live view and the metrics of several workers: their supervisor asks each of them over a socket.

A worker is asked for its own snapshot, or for its metrics. Where the workers share their state with other machines, one
of them is asked for those nodes, too.

The page of metrics is at the address of the workers, so that one of them is asked for it. It hands on what its
supervisor says, over a second socket: the sum of all, in which those count that have ended. What a worker has counted
last it leaves there when it ends; of one that was killed, the supervisor knows what it said when it was last asked.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Literal

import attrs
import msgspec
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ADMIN_HISTORY, ADMIN_NODE
from mcp_actors.telemetry.cluster import ClusterView
from mcp_actors.telemetry.exposition import Family, Sample, counted, page_of, summed
from mcp_actors.telemetry.live_view import Action, ActionOutcome, LiveView, ServerView
from mcp_actors.telemetry.metrics import MOST_SERIES, Metrics
from mcp_actors.telemetry.snapshot import NodeSnapshot, this_process

__all__ = ["ViewedWorker", "WorkerPages", "WorkerState", "WorkerView", "WorkersMetrics", "WorkersView"]

# Seconds for a worker to answer: one that hangs delays no snapshot of the others for longer.
_PATIENCE = 0.5
_ACTION_TIME = 5.0
# The same for its metrics: Prometheus gives a scrape 10 s. One that was silent is not waited for so long again, so that
# scrapes with less time are answered, too.
_METRICS_TIME = 4.0
_METRICS_TIME_OF_SILENT = 1.0
# Seconds that a worker waits for the page of all of them, and that it has to leave its last numbers.
_PAGE_TIME = 8.0
_LEAVE_TIME = 1.0
# Bytes of one line between a supervisor and a worker.
_LONGEST_LINE = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024
_SUPERVISOR = "supervisor"


class Question(msgspec.Struct, frozen=True):
    """From the supervisor: a request for a snapshot or for metrics, or an action."""

    number: int
    others: bool = False
    """Whether other nodes are wanted too."""
    action: Action | None = None
    who: str = ""
    metrics: bool = False
    """Whether the metrics are wanted, and no snapshot."""


class WorkerAnswer(msgspec.Struct, frozen=True):
    """From a worker."""

    number: int
    nodes: list[NodeSnapshot] = []
    outcome: ActionOutcome | None = None
    families: list[Family] = []


class PageMessage(msgspec.Struct, frozen=True):
    """Between a worker and its supervisor: a request for the page of metrics, the page, or the last numbers."""

    number: int
    text: str | None = None
    """The page; ``None`` from a worker."""
    families: list[Family] | None = None
    """The numbers of a worker that ends; ``None`` in a request for the page."""


_PAGE_MESSAGE: msgspec.json.Decoder[PageMessage] = msgspec.json.Decoder(PageMessage)
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


class WorkerPages:
    """The worker's side of the metrics of all workers, for its route of them.

    Args:
        descriptor: The socket to the supervisor.
        metrics: The metrics of this worker.
    """

    def __init__(self, descriptor: int, metrics: Metrics) -> None:
        self.metrics = metrics
        self._socket = socket.socket(fileno=descriptor)
        self._received = bytearray()
        self._lock = threading.Lock()
        self._number = 0
        self._asked_at = -math.inf
        self._page = ""

    def __repr__(self) -> str:
        return f"<WorkerPages {self.metrics!r}>"

    def text(self) -> str:
        """Returns the page of all workers. It blocks, and is called in worker threads.

        Those that ask while another one waits share one further page: a worker that hangs must not make them a queue.

        Raises:
            OSError: The supervisor is gone, or does not answer in time.
        """
        came_at = time.monotonic()
        with self._lock:
            if self._asked_at < came_at:
                asked_at = time.monotonic()
                self._page = self._ask(asked_at + _PAGE_TIME)
                self._asked_at = asked_at
            return self._page

    def _ask(self, until: float) -> str:
        self._number += 1
        self._socket.settimeout(_PAGE_TIME)
        self._socket.sendall(msgspec.json.encode(PageMessage(self._number)) + b"\n")
        while True:
            answer = _PAGE_MESSAGE.decode(self._line(until))
            # Answers to what was asked before may come late.
            if answer.number == self._number and answer.text is not None:
                return answer.text

    def _line(self, until: float) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            data = self._socket.recv(_READ_BYTES)
            if not data or len(self._received) > _LONGEST_LINE:
                raise OSError("the supervisor is gone")
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def leave(self) -> None:
        """Tells the supervisor what this worker has counted, because it ends. It blocks, for a second at most.

        Raises:
            OSError: The supervisor is gone, or does not listen.
        """
        left = msgspec.json.encode(PageMessage(0, families=counted(self.metrics.families())))
        with self._lock:
            self._socket.settimeout(_LEAVE_TIME)
            self._socket.sendall(left + b"\n")


class WorkerView:
    """The worker's side: a companion of its transports, which answers its supervisor.

    Args:
        descriptor: The socket to the supervisor.
        number: The number of the worker.
        pages: The metrics of this worker, if the supervisor adds them up.
    """

    is_companion: Literal[True] = True

    def __init__(self, descriptor: int, number: int, pages: WorkerPages | None = None) -> None:
        self._descriptor = descriptor
        self._number = number
        self._pages = pages

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
            nursery = await stack.enter_async_context(trio.open_nursery())
            start_again(nursery, ADMIN_HISTORY, own.keep_history)
            task_status.started("")
            lines = _Lines(stream)
            try:
                while (line := await lines.line()) is not None:
                    answer = await self._answer(_QUESTION.decode(line), own, every)
                    await stream.send_all(msgspec.json.encode(answer) + b"\n")
            finally:
                nursery.cancel_scope.cancel(reason="the supervisor is gone, or the server ends")
                # All calls have ended by now, and the server still says what it has counted.
                if self._pages is not None:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(_left, self._pages)

    async def _answer(self, question: Question, own: ServerView, every: LiveView) -> WorkerAnswer:
        if question.metrics and self._pages is not None:
            families = await trio.to_thread.run_sync(self._pages.metrics.families)
            return WorkerAnswer(question.number, families=families)
        if question.action is not None:
            return WorkerAnswer(question.number, outcome=await every.act(question.action, question.who))
        nodes = await every.snapshot() if question.others else await own.snapshot()
        return WorkerAnswer(question.number, nodes)


def _left(pages: WorkerPages) -> None:
    try:
        pages.leave()
    except (OSError, LocalProtocolError) as error:
        log.debug("the last numbers of a worker are lost", reason=str(error))


@attrs.define(eq=False)
class ViewedWorker:
    """The supervisor's side of the sockets to one worker."""

    connected: socket.socket
    pages: socket.socket | None = None
    """Over which the worker asks for the page of metrics; ``None`` if there is none."""
    families: list[Family] = attrs.field(factory=list)
    """What it said last of its metrics."""
    stream: trio.SocketStream | None = None
    number: int = 0
    """The number of the last question."""
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    lines: _Lines | None = None

    async def ask(
        self,
        seconds: float,
        *,
        others: bool = False,
        action: Action | None = None,
        who: str = "",
        metrics: bool = False,
    ) -> WorkerAnswer | None:
        """Returns what the worker answers; ``None`` if that takes longer, or it is gone."""
        with trio.move_on_after(seconds):
            async with self.lock:
                return await self._ask(Question(0, others, action, who, metrics))
        return None

    async def _ask(self, question: Question) -> WorkerAnswer | None:
        if self.stream is None or self.lines is None:
            self.connected.setblocking(False)
            self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(self.connected))
            self.lines = _Lines(self.stream)
        self.number += 1
        question = msgspec.structs.replace(question, number=self.number)
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

    async def serve_pages(self, page: Callable[[], Awaitable[str]]) -> None:
        """Answers the worker with the page of metrics, and takes its last numbers, until it has ended."""
        assert self.pages is not None
        self.pages.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(self.pages))
        lines = _Lines(stream)
        try:
            while (line := await lines.line()) is not None:
                asked = _PAGE_MESSAGE.decode(line)
                if asked.families is not None:
                    self.families = asked.families
                    continue
                answer = PageMessage(asked.number, await page())
                await stream.send_all(msgspec.json.encode(answer) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        except msgspec.MsgspecError as error:
            log.error("a worker said something unknown", reason=str(error))

    def close(self) -> None:
        """Closes the sockets. Idempotent."""
        if self.stream is not None:
            self.stream.socket.close()
        self.connected.close()
        if self.pages is not None:
            self.pages.close()


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


# -- The metrics of all workers ------------------------------------------------------------------------

# Each process may open so many descriptors of its own: of the supervisor, which opens few, that says nothing.
_NOT_OF_THE_SUPERVISOR = frozenset({"process_open_fds", "process_max_fds"})


class WorkersMetrics:
    """The metrics of all workers as those of one process, with those that have ended.

    Args:
        workers: Returns the workers that have not ended, and are ready.
        states: Returns how many places for workers are in which state, by its name.
        count: How many places there are.
    """

    def __init__(
        self,
        workers: Callable[[], Iterable[ViewedWorker]],
        states: Callable[[], Mapping[str, int]],
        count: int,
    ) -> None:
        self._workers = workers
        self._states = states
        self._silent: set[ViewedWorker] = set()
        self._past: list[Family] = []
        self._own = Metrics()
        self._deaths = dict.fromkeys(range(1, count + 1), 0)
        self._replacements = 0

    def __repr__(self) -> str:
        return f"<WorkersMetrics {sum(self._deaths.values())} deaths, {self._replacements} replacements>"

    def died(self, number: int) -> None:
        """Counts a worker that ended without having been asked to."""
        self._deaths[number] += 1

    def replaced(self) -> None:
        """Counts a worker that gave its place to another one."""
        self._replacements += 1

    def ended(self, worker: ViewedWorker) -> None:
        """Keeps what a worker has counted that is not among the workers any more."""
        self._past = summed([self._past, counted(worker.families)], MOST_SERIES)

    async def text(self) -> str:
        """Returns the page. What a worker says that does not answer in time is what it has counted before."""
        answered: set[ViewedWorker] = set()
        async with trio.open_nursery() as nursery:
            for worker in self._workers():
                start(nursery, ADMIN_NODE, self._look, worker, answered, about="at metrics")
        # From here on nothing waits: a worker that ends is either among those that are or among those that were.
        workers = list(self._workers())
        self._silent = {each for each in workers if each not in answered}
        said = [each.families if each in answered else counted(each.families) for each in workers]
        states = {**self._states(), "silent": len(self._silent)}
        own = [each for each in self._own.families() if each.name not in _NOT_OF_THE_SUPERVISOR]
        return page_of([*self._of_workers(states), *summed([*said, self._past, own], MOST_SERIES)])

    async def _look(self, worker: ViewedWorker, answered: set[ViewedWorker]) -> None:
        seconds = _METRICS_TIME_OF_SILENT if worker in self._silent else _METRICS_TIME
        answer = await worker.ask(seconds, metrics=True)
        if answer is not None and answer.families:
            worker.families = answer.families
            answered.add(worker)

    def _of_workers(self, states: Mapping[str, int]) -> Sequence[Family]:
        found = [Sample({"state": state}, number) for state, number in states.items()]
        deaths = [Sample({"worker": str(worker)}, number) for worker, number in self._deaths.items()]
        return (
            Family("mcp_actors_workers", "gauge", "Workers by state; silent ones are ready too.", found),
            Family("mcp_actors_worker_deaths_total", "counter", "Workers that died, by their place.", deaths),
            Family(
                "mcp_actors_worker_replacements_total",
                "counter",
                "Workers that gave their place to new ones, as SIGHUP asks for.",
                [Sample({}, self._replacements)],
            ),
        )
