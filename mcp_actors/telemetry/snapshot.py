"""Snapshots of a running server, as they travel in JSON to the live view, and how they are captured.

A snapshot is bounded in size. Of many sessions and calls it shows those that an operator looks for: the sessions with
the most calls in flight and the most requests, and the oldest calls. Every text in it that came from a peer, such as a
name or a target, is cut short and has no control characters; a program that shows it still treats it as untrusted.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import attrs
import msgspec
import trio

from mcp_actors._actors.connectionless import StatelessCalls
from mcp_actors._actors.dispatcher import Counters, SessionStatistics
from mcp_actors._actors.event_bus import EventBusStatistics
from mcp_actors._actors.inbound_call import CallStatistics, InboundCall
from mcp_actors._server.invoke import ProcessStatistics
from mcp_actors._server.runtime import ServerRuntime, UpstreamStatistics
from mcp_actors._server.server_extension import OperatedTasks, TaskStatistics
from mcp_actors._server.sessions import AnySession
from mcp_actors._server.turns import TurnStatistics
from mcp_actors.supervision.blockages import Blockage, blockage_log
from mcp_actors.supervision.containment import Crash, crash_log
from mcp_actors.supervision.printable import printable
from mcp_actors.supervision.task_kinds import TASKS
from mcp_actors.telemetry.history import HistoryRecorder, LoadHistory, OperationRow, ProcessRow
from mcp_actors.types import Implementation
from mcp_actors.types.records import Number

__all__ = [
    "HealthTrouble",
    "KindRow",
    "NodeSnapshot",
    "Queues",
    "Rates",
    "Snapshot",
    "SnapshotCapture",
    "cleaned",
    "this_process",
    "troubles_of",
]


LONGEST_TEXT = 120
"""Characters of a text from a peer that a snapshot has."""


def cleaned(text: str | None) -> str | None:
    """Returns a text of a peer, cut short, with ``?`` for what steers a terminal or the direction of writing."""
    return None if text is None else printable(text, LONGEST_TEXT)


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task, as `mcp_actors.supervision.task_kinds.TASKS` has it."""

    name: str
    supervisor: str
    """Whose nursery owns its tasks."""
    costs: str
    """What a crash of it ends."""
    restarted: bool
    tasks: Number
    """Running tasks of this kind."""
    crashes: Number
    """Crashes since the process began."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of the counts of a server a second, since the last snapshot."""

    requests: float
    cancelled: float
    malformed: float
    refused: float
    events: float
    processor: float = 0.0
    """Processors that the process uses: 1 is one of them all the time."""


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what is in flight, waits, or is held, with their limits."""

    sessions: Number
    running: Number
    """Calls that have a place."""
    running_limit: Number
    waiting: Number
    """Calls that wait for a place of the server."""
    queued: Number
    """Frames that wait for writers, of the sessions that are shown."""
    blocked: Number
    """Tasks that wait for room in these queues."""
    subscriptions: Number
    events: Number
    """Events that wait in mailboxes of subscribers."""
    in_flight_bytes: Number
    in_flight_limit: Number
    kept_bytes: Number
    kept_limit: Number


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One process that serves."""

    node: str
    """Names the node in an action."""
    server: str
    version: str
    host: str
    pid: Number
    worker: Number | None = None
    """Its number among the workers of a supervisor."""
    state: Literal["serving", "stopping", "gone"]
    """``gone`` of a worker that has ended and is started again."""
    uptime: float
    at: float
    """Seconds since the epoch."""
    took: float = 0.0
    """Seconds of processor time that the snapshot took, in which nothing else of the event loop ran."""
    lag: float | None = None
    """Seconds that a turn of its event loop takes: for so long everything waits."""
    missing: list[str] = []
    """What keeps it from being ready, in words, as ``/health/ready`` says it."""
    process: ProcessRow | None = None
    history: LoadHistory | None = None
    operations: list[OperationRow] = []
    """The tools, prompts and other methods that were called most in the last ten minutes, then the upstreams that were;
    empty where no `mcp_actors.telemetry.Metrics` counts the calls."""
    counts_calls: bool = False
    """Whether something counts them."""
    tasks: list[TaskStatistics] = []
    """The oldest tasks of clients that run in this process."""
    running_tasks: Number = 0
    """How many there are."""
    queues: Queues | None = None
    totals: Counters = msgspec.field(default_factory=Counters)
    """Counts since the server began, of all sessions and exchanges, including those that have ended."""
    published: Number = 0
    """Changes that were published to subscribers since then."""
    rates: Rates | None = None
    sessions: list[SessionStatistics] = []
    """The busiest ones, without their lists of calls."""
    calls: list[CallStatistics] = []
    """The oldest ones."""
    kinds: list[KindRow] = []
    crashes: list[Crash] = []
    """The last ones, the newest first."""
    blockages: list[Blockage] = []
    """The last times in which a function has blocked an event loop, the newest first."""
    turns: list[TurnStatistics] = []
    """The keys by which calls take turns now, those with the most calls that wait."""
    processes: list[ProcessStatistics] = []
    """The processes that run functions with ``isolate="process"``."""
    transports: list[dict[str, Any]] = []
    """What the transports say of themselves."""
    upstreams: list[UpstreamStatistics] = []
    """The servers behind it, where it is a gateway."""
    note: str | None = None
    """Why a worker is gone, or what else there is to say."""


class HealthTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something about one node that is not as it should be, in words."""

    node: str
    grave: bool
    """Whether calls fail because of it, or soon will."""
    text: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes, at one moment."""

    at: float
    interval: float
    """Seconds between two snapshots."""
    watchers: Number
    nodes: list[NodeSnapshot]
    troubles: list[HealthTrouble] = []
    """What an operator should know first; empty of a server that is well."""
    bounds: list[float] = []
    """The bounds of `OperationRow.buckets`, in seconds."""


# -- capturing -----------------------------------------------------------------------------------------

# Rows of one node: more than a person reads, and as much as a message between nodes holds.
MOST_SESSIONS = 200
MOST_CALLS = 200
MOST_TASKS_SHOWN = 100
MOST_CRASHES = 20
# Tasks that are counted by kind; of a process with more, the counts are those of the first ones.
MOST_TASKS = 5_000
# Sessions that are looked at in one turn of the event loop: a few milliseconds.
SLICE = 1_000

_STARTED = time.monotonic()
_KINDS = {each.name: each for each in TASKS}


@attrs.define
class _Seen:
    """The sessions and calls that an operator looks for, of those that were looked at so far."""

    totals: Counters
    sessions: list[AnySession] = attrs.field(factory=list)
    """Those with the most calls and requests."""
    calls: list[InboundCall] = attrs.field(factory=list)
    """The oldest ones."""
    took: float = 0.0
    """Seconds of processor time."""

    def look_at(self, part: Sequence[AnySession | StatelessCalls]) -> None:
        """Looks at some more, of which there are at most `SLICE`."""
        began = time.thread_time()
        calls: list[InboundCall] = []
        for each in part:
            self.totals.add(each.dispatcher.counters)
            calls += each.dispatcher.calls.values()
        sessions = [each for each in part if not isinstance(each, StatelessCalls)]
        self.sessions = heapq.nlargest(MOST_SESSIONS, [*self.sessions, *sessions], key=_activity)
        self.calls = heapq.nsmallest(MOST_CALLS, [*self.calls, *calls], key=_age_order)
        self.took += time.thread_time() - began


class SnapshotCapture:
    """Captures the server of this process, as an operator sees it.

    Args:
        running: The live side of the server.
        node: The name of the node.
        info: Returns what the server says of itself. Another server may have taken its place since.
        history: What it did in the last ten minutes.
        operated: The tasks of its extensions.
        worker: The number of this process among the workers of a supervisor.
    """

    def __init__(
        self,
        running: ServerRuntime,
        node: str,
        info: Callable[[], Implementation],
        history: HistoryRecorder,
        operated: Sequence[OperatedTasks] = (),
        worker: int | None = None,
    ) -> None:
        self.running = running
        self.node = node
        self._history = history
        self._operated = operated
        self._info = info
        self._worker = worker
        self._began = trio.current_time()
        self._host = platform.node()

    def __repr__(self) -> str:
        return f"<SnapshotCapture {self.running!r}>"

    async def capture(self, lag: float, missing: list[str]) -> NodeSnapshot:
        """Returns a snapshot of the server.

        ``lag`` are the seconds that a turn of its event loop takes, and ``missing`` is what keeps it from being ready.
        Other tasks run between two parts of many sessions, so that no call waits for all of them.
        """
        running = self.running
        seen = _Seen(totals=attrs.evolve(running.sessions.past.counters))
        everything = [*running.sessions, *running.exchanges()]
        for start in range(0, len(everything), SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            seen.look_at(everything[start : start + SLICE])
        if len(everything) > SLICE:
            await trio.lowlevel.checkpoint()
        began = time.thread_time()
        sessions = [self._shown_session(each) for each in seen.sessions if each in running.sessions]
        bus, info = running.bus.statistics(), self._info()
        tasks = [task for each in self._operated for task in each.statistics()]
        return NodeSnapshot(
            node=self.node,
            server=info.name,
            version=info.version,
            host=self._host,
            pid=os.getpid(),
            worker=self._worker,
            state="stopping" if running.stopping else "serving",
            uptime=trio.current_time() - self._began,
            at=time.time(),
            queues=self._queues(sessions, bus),
            totals=seen.totals,
            published=bus.published,
            sessions=sessions,
            calls=[_shown_call(each) for each in seen.calls if each.state != "answered"],
            kinds=_kinds(),
            crashes=_crashes(),
            blockages=_blockages(),
            turns=[_shown_turn(each) for each in running.features.tools.turns.statistics()],
            processes=[attrs.evolve(each, tool=cleaned(each.tool)) for each in running.processes()],
            transports=[_plain(each) for each in running.transport_statistics()],
            upstreams=[_shown_upstream(each) for each in running.upstreams()],
            lag=lag,
            missing=[cleaned(each) or "" for each in missing],
            process=self._history.process(),
            history=self._history.history(),
            operations=self._history.operations(),
            counts_calls=self._history.counts_calls,
            tasks=[_shown_task(each) for each in heapq.nlargest(MOST_TASKS_SHOWN, tasks, key=_task_age)],
            running_tasks=len(tasks),
            took=seen.took + time.thread_time() - began,
        )

    # -- actions -----------------------------------------------------------------------------------------------------

    def session_named(self, name: str) -> AnySession | None:
        """Returns the session of that name."""
        return next((each for each in self.running.sessions if each.dispatcher.name == name), None)

    def call_named(self, key: str) -> InboundCall | None:
        """Returns the call with that key, ``None`` unless exactly one has it."""
        found = [each for each in self._calls() if _key(each) == key]
        return found[0] if len(found) == 1 else None

    # -- rows --------------------------------------------------------------------------------------------------------

    def _calls(self) -> Iterator[InboundCall]:
        for session in self.running.sessions:
            yield from session.dispatcher.calls.values()
        for each in self.running.exchanges():
            yield from each.dispatcher.calls.values()

    def _shown_session(self, session: AnySession) -> SessionStatistics:
        now = self.running.sessions.statistics(session)
        return attrs.evolve(
            now,
            client=cleaned(now.client),
            principal=cleaned(now.principal),
            peer=cleaned(now.peer) or "",
            calls=(),
            pending=(),
        )

    def _queues(self, sessions: list[SessionStatistics], bus: EventBusStatistics) -> Queues:
        running = self.running
        limiter, memory = running.limiter.statistics(), running.budgets.statistics()
        return Queues(
            sessions=len(running.sessions),
            running=limiter.inside,
            running_limit=running.limiter.limit,
            waiting=limiter.waiting,
            queued=sum(each.link.outbox for each in sessions if each.link is not None),
            blocked=sum(each.link.blocked for each in sessions if each.link is not None),
            subscriptions=bus.subscriptions,
            events=bus.pending,
            in_flight_bytes=memory.in_flight.held,
            in_flight_limit=memory.in_flight.limit,
            kept_bytes=memory.kept.held,
            kept_limit=memory.kept.limit,
        )


def this_process(node: str, name: str, note: str) -> NodeSnapshot:
    """Returns a process that serves nothing itself, such as a supervisor of workers: its tasks and their crashes.

    Args:
        node: Names it.
        name: Its name for people.
        note: A sentence about it.
    """
    return NodeSnapshot(
        node=node,
        server=name,
        version="",
        host=platform.node(),
        pid=os.getpid(),
        state="serving",
        uptime=time.monotonic() - _STARTED,
        at=time.time(),
        process=ProcessRow.now(),
        kinds=_kinds(),
        crashes=_crashes(),
        note=note,
    )


def _activity(session: AnySession) -> tuple[int, int]:
    dispatcher = session.dispatcher
    return len(dispatcher.calls), dispatcher.counters.requests


def _age_order(call: InboundCall) -> float:
    return call.started


def _shown_call(call: InboundCall) -> CallStatistics:
    now = call.statistics()
    texts: dict[str, Any] = {
        name: cleaned(text)
        for name in (field.name for field in attrs.fields(CallStatistics))
        if isinstance(text := getattr(now, name), str)
    }
    return attrs.evolve(now, **{"id": str(now.id), **texts, "key": _key(call)})


def _task_age(task: TaskStatistics) -> float:
    return task.age


def _shown_task(now: TaskStatistics) -> TaskStatistics:
    return attrs.evolve(
        now,
        tool=cleaned(now.tool) or "",
        principal=cleaned(now.principal),
        message=cleaned(now.message),
    )


def _key(call: InboundCall) -> str:
    """Returns a text that no other call in flight has: ids repeat, since each client gives its own."""
    text = f"{call.owner.name}\0{type(call.id).__name__}\0{call.id}\0{call.started!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _kinds() -> list[KindRow]:
    """Returns the kinds of tasks that are running or have crashed."""
    alive: Counter[str] = Counter()
    root = trio.lowlevel.current_root_task()
    for count, task in enumerate(() if root is None else _below(root)):
        if count >= MOST_TASKS:
            break
        name = task.name
        while name and name not in _KINDS:
            name = name.rpartition(" ")[0]
        if name:
            alive[name] += 1
    return [
        KindRow(
            name=kind.name,
            supervisor=kind.supervisor,
            costs=kind.cost,
            restarted=kind.restarted,
            tasks=alive[kind.name],
            crashes=crash_log.counts[kind.name],
        )
        for kind in TASKS
        if alive[kind.name] or crash_log.counts[kind.name]
    ]


def _below(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    waiting = [root]
    while waiting:
        task = waiting.pop()
        yield task
        for nursery in task.child_nurseries:
            waiting += nursery.child_tasks


def _crashes() -> list[Crash]:
    last = list(crash_log.recent)[-MOST_CRASHES:]
    return [
        attrs.evolve(each, task=cleaned(each.task) or "", error=cleaned(each.error) or "")
        for each in reversed(last)
    ]


def _blockages() -> list[Blockage]:
    return [
        msgspec.structs.replace(
            each,
            target=cleaned(each.target),
            session=cleaned(each.session),
            principal=cleaned(each.principal),
            place=cleaned(each.place) or "",
            line=cleaned(each.line) or "",
        )
        for each in blockage_log.recent
    ]


def _shown_turn(now: TurnStatistics) -> TurnStatistics:
    tools = tuple(cleaned(each) or "" for each in now.tools)
    return attrs.evolve(now, key=cleaned(now.key) or "", tools=tools)


def _shown_upstream(now: UpstreamStatistics) -> UpstreamStatistics:
    return attrs.evolve(
        now, name=cleaned(now.name) or "", server=cleaned(now.server), last_failure=cleaned(now.last_failure)
    )


def _plain(statistics: Any) -> dict[str, Any]:
    """Returns what a transport says of itself as plain JSON, or its text if that is something else."""
    if attrs.has(type(statistics)):
        found: dict[str, Any] = attrs.asdict(statistics)
        return {"kind": type(statistics).__name__, **found}
    return {"kind": type(statistics).__name__, "text": cleaned(repr(statistics))}


# -- Is it healthy? ------------------------------------------------------------------------------------

# The bounds are those of the alerts in ``docs/how-to/operations`` where there is an alert for it, over a minute in
# place of five, since somebody is looking.

# The share of failed calls of an operation, and how many calls have to have ended for it to mean something.
FAILED_SHARE, ENOUGH_CALLS = 0.1, 5
# Readings of the history that are a minute.
MINUTE = 6
# Seconds in which a turn of the event loop is late, and in which it keeps everybody waiting.
LATE_TURN, LONG_TURN = 0.1, 1.0
# The share of a bound from which on it is nearly reached.
NEARLY = 0.8
# Seconds for which a crash is news.
RECENT = 600.0


def troubles_of(nodes: Sequence[NodeSnapshot]) -> list[HealthTrouble]:
    """Returns what is not as it should be, that first because of which calls fail."""
    found = [
        HealthTrouble(node=node.node, grave=grave, text=text)
        for node in nodes
        for grave, text in (*_of_process(node), *_of_calls(node), *_of_upstreams(node))
    ]
    return sorted(found, key=lambda each: not each.grave)


_Found = tuple[bool, str]


def _of_process(node: NodeSnapshot) -> Iterator[_Found]:
    name = node.node if node.worker is None else f"worker {node.worker}"
    if node.state == "gone":
        yield True, f"{name} is gone: {node.note or 'no reason is known'}"
        return
    if node.state == "stopping":
        yield False, f"{name} is stopping"
    elif node.note and node.queues is not None:
        yield False, f"{name} is {node.note}"
    for each in node.missing:
        yield True, f"not ready: {each}"
    process = node.process
    if process is not None and process.descriptors_limit:
        used, limit = process.descriptors or 0, process.descriptors_limit
        if used >= NEARLY * limit:
            yield True, f"{used} of {limit} descriptors are open"
    if node.lag is not None and node.lag >= LATE_TURN:
        what = f"a turn of the event loop takes {node.lag:.2f} s: a function does not await"
        yield node.lag >= LONG_TURN, what
    blocked = [each for each in node.blockages if not each.is_over or node.at - each.at < RECENT]
    if blocked:
        yield not blocked[0].is_over, blocked[0].sentence()
    recent = [each for each in node.crashes if node.at - each.at < RECENT]
    if recent:
        many = "a task has" if len(recent) == 1 else f"{len(recent)} tasks have"
        yield False, f"{many} crashed in the last ten minutes: {recent[0].kind}"


def _of_calls(node: NodeSnapshot) -> Iterator[_Found]:
    if node.queues is not None:
        yield from _of_queues(node.queues)
    for row in node.operations:
        if row.upstream is None and (failed := _failed_of(row)) is not None:
            yield True, f"{row.name}: {failed} calls failed in the last minute"


def _of_queues(queues: Queues) -> Iterator[_Found]:
    if queues.waiting:
        many = "1 call waits" if queues.waiting == 1 else f"{queues.waiting} calls wait"
        yield False, f"{many} for one of {queues.running_limit} places"
    for held, limit in (
        (queues.kept_bytes, queues.kept_limit),
        (queues.in_flight_bytes, queues.in_flight_limit),
    ):
        if held >= NEARLY * limit > 0:
            yield False, f"clients fill {held / limit:.0%} of the memory that they may take"


def _failed_of(row: OperationRow) -> str | None:
    """Returns how many of how many calls failed, if that is too many."""
    # What came since the last reading is in the sums alone.
    calls = sum(row.series[-MINUTE:]) + row.calls - sum(row.series)
    failed = sum(row.series_failed[-MINUTE:]) + row.failed - sum(row.series_failed)
    return f"{failed} of {calls}" if calls >= ENOUGH_CALLS and failed >= FAILED_SHARE * calls else None


def _of_upstreams(node: NodeSnapshot) -> Iterator[_Found]:
    rows = {each.upstream: each for each in node.operations if each.upstream is not None}
    for each in node.upstreams:
        if not each.is_up:
            yield True, f"upstream {each.name} is away: {each.last_failure or 'no reason is known'}"
        elif (row := rows.get(each.name)) is not None and (failed := _failed_of(row)) is not None:
            yield True, f"upstream {each.name}: {failed} requests failed in the last minute"
