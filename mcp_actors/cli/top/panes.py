"""The panes of ``mcp-actors top``: their columns, and their rows out of a snapshot.

Every text in a row came from the server or one of its peers. Control characters are removed here once more, since
the program that answers at the address may not be a server of ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from mcp_actors.telemetry.history import SAMPLES
from mcp_actors.telemetry.live_view import Action
from mcp_actors.telemetry.snapshot import NodeSnapshot, Snapshot, cleaned

__all__ = ["PANES", "Column", "Pane", "Row", "node_line", "seconds"]


@attrs.frozen
class Column:
    """A column: its width in cells, 0 for all that is left."""

    title: str
    width: int
    right: bool = False


@attrs.frozen
class Row:
    """A line of a pane."""

    key: tuple[str, str]
    """The key of the row, the same in every snapshot: its node, and its own key."""
    cells: tuple[str, ...]
    order: tuple[Any, ...]
    """The values that the columns are sorted by."""
    style: str = ""
    action: Action | None = None
    """The action that is possible, if any."""
    about: str = ""
    """What the action would end, in words."""


@attrs.frozen
class Pane:
    """One of the lists that are shown."""

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[NodeSnapshot], Iterable[Row]]
    sort: int
    """The column that it is first sorted by, largest value on top."""
    counts: Callable[[NodeSnapshot], tuple[int, int]]
    """How many rows a node has sent, and how many it has at least."""
    always: bool = True
    """Whether its tab is shown even if it has no rows."""

    def heading(self, snapshot: Snapshot) -> str:
        """Returns its name with the number of its rows; a large server does not send all."""
        counts = [self.counts(each) for each in snapshot.nodes]
        sent, there = sum(each[0] for each in counts), sum(max(each) for each in counts)
        return f"{self.name} {sent}" if sent == there else f"{self.name} {sent} of {amount(there)}"

    def is_shown(self, snapshot: Snapshot | None) -> bool:
        """Whether it has a tab."""
        return self.always or (snapshot is not None and bool(self.all_rows(snapshot)))

    def all_rows(self, snapshot: Snapshot) -> list[Row]:
        """Returns the rows of all nodes."""
        return [row for node in snapshot.nodes for row in self.rows(node)]


def seconds(value: float) -> str:
    """Returns a time as people read it: ``0.12s``, ``12s``, ``3m05``, ``2h03``, ``4d07``."""
    if value < 10:
        return f"{value:.2f}s"
    if value < 100:
        return f"{value:.0f}s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 100 else f"{hours // 24}d{hours % 24:02}"


def amount(value: float | None) -> str:
    """Returns a number in few cells: ``950``, ``12.3k``, ``4.5M``."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scale = 1e3 if unit == "k" else size
            return f"{value / scale:.1f}{unit}"
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:.0f}"


def _text(value: str | None) -> str:
    return cleaned(value) or "-"


def _row(
    node: NodeSnapshot,
    key: str,
    cells: Iterable[tuple[str, Any]],
    style: str = "",
    action: Any = None,
    about: str = "",
) -> Row:
    shown = tuple(cells)
    wanted = None if action is None else Action(action, node.node, key)
    texts, order = tuple(each[0] for each in shown), tuple(each[1] for each in shown)
    return Row((node.node, key), texts, order, style, wanted, about)


def _words(value: str | None) -> tuple[str, str]:
    return _text(value), _text(value)


def _number(value: float | None) -> tuple[str, float]:
    return amount(value), -1.0 if value is None else value


def _latency(value: float | None) -> tuple[str, float]:
    if value is None:
        return "-", -1.0
    return (seconds(value) if value >= 1 else f"{value * 1000:.3g}ms"), value


def _memory(value: float | None) -> tuple[str, float]:
    return ("-", -1.0) if value is None else (f"{value / 2**20:.0f}M", value)


def _processor(value: float | None) -> tuple[str, float]:
    return ("-", -1.0) if value is None else (f"{value:.0%}", value)


# Readings that one cell of a bar stands for, and the cells of the last ten minutes.
_READINGS_OF_A_CELL = 3
_CELLS = SAMPLES // _READINGS_OF_A_CELL


def bars(values: Sequence[float]) -> str:
    """Returns a series of numbers as a row of bars, the newest last."""
    start = len(values) % _READINGS_OF_A_CELL
    sums = [sum(values[:start])] if start else []
    sums += [
        sum(values[at : at + _READINGS_OF_A_CELL]) for at in range(start, len(values), _READINGS_OF_A_CELL)
    ]
    sums = sums[-_CELLS:]
    top = max(sums, default=0)
    if not top > 0:
        return ""
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(each / top * 7.99))] if each > 0 else " " for each in sums).rjust(
        _CELLS
    )


def _tools(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.operations:
        if each.upstream is not None:
            continue
        failing = each.failed * 10 >= each.calls and each.failed > 0
        cells = (
            _words(each.name),
            _number(each.rate),
            _number(each.calls),
            _number(each.failed),
            _latency(each.quantile(0.5)),
            _latency(each.quantile(0.99)),
            (bars(each.series), each.calls),
            (f"{node.pid}", node.pid),
        )
        yield _row(node, f"{each.method}/{each.target}", cells, "red" if failing else "")


def _tasks(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.tasks:
        cells = (
            (seconds(each.age), each.age),
            _words(each.tool),
            _words(each.principal),
            _words(each.state),
            _words(each.message),
            ("-" if each.left is None else seconds(each.left), math.inf if each.left is None else each.left),
        )
        about = f"the task of {_text(each.tool)}, {seconds(each.age)} old, {_caller(each.principal)}"
        yield _row(node, each.key, cells, action="cancel_task", about=about)


def _caller(principal: str | None) -> str:
    return "of a caller who is not authenticated" if principal is None else f"of {_text(principal)}"


_SLOW, _HANGS = 5.0, 30.0


def _calls(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.calls:
        style = "red" if each.age >= _HANGS else "yellow" if each.age >= _SLOW else ""
        yield _row(
            node,
            each.key or "",
            (
                (seconds(each.age), each.age),
                _words(each.method),
                _words(each.target),
                _words(each.principal),
                _words(each.session),
                _words(each.state),
                (f"{node.pid}", node.pid),
            ),
            style if each.state != "cancelled" else "dim",
            "cancel_call",
            f"the call of {_text(each.target or each.method)}, {seconds(each.age)} old, {_caller(each.principal)}",
        )


def _sessions(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.sessions:
        yield _row(
            node,
            each.name,
            (
                _words(each.name),
                _words(each.client),
                _words(each.version),
                _words(each.principal),
                _number(each.in_flight),
                _number(each.rate),
                _number(each.counters.requests),
                (seconds(each.age), each.age),
                _number(0 if each.link is None else each.link.outbox),
                _words(each.peer),
            ),
            "red" if each.link is not None and each.link.blocked else "",
            "end_session",
            f"the session of {_text(each.client)}, {seconds(each.age)} old, {_caller(each.principal)}, "
            f"with {each.in_flight} calls",
        )


def _kinds(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.kinds:
        restarted = "yes" if each.restarted else "no"
        cells = (
            _words(each.name),
            _number(each.tasks),
            _number(each.crashes),
            _words(each.costs),
            _words(restarted),
            _words(each.supervisor),
            (f"{node.pid}", node.pid),
        )
        yield _row(node, each.name, cells, "red" if each.crashes else "")


def _crashes(node: NodeSnapshot) -> Iterable[Row]:
    for number, each in enumerate(node.crashes):
        at = time.strftime("%H:%M:%S", time.localtime(min(max(each.at, 0), 4e9)))
        restarted = "restarted" if each.restarted else "ended"
        cells = ((at, each.at), _words(each.kind), _words(restarted), _words(each.error), _words(each.task))
        yield _row(node, f"{each.at}/{number}", cells, "red")


def _blockages(node: NodeSnapshot) -> Iterable[Row]:
    for number, each in enumerate(node.blockages):
        at = time.strftime("%H:%M:%S", time.localtime(min(max(each.at, 0), 4e9)))
        cells = (
            (at, each.at),
            (f"{seconds(each.seconds)}{'' if each.is_over else '…'}", each.seconds),
            _words(each.name),
            _words(each.session),
            _words(each.principal),
            _words(f"{each.place} {each.line}".strip()),
        )
        yield _row(node, f"{each.at}/{number}", cells, "yellow" if each.is_over else "red")


def _turns(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.turns:
        cells = (
            _words(each.key),
            _words(", ".join(each.tools)),
            _number(each.running),
            _number(each.waiting),
            (seconds(each.longest), each.longest),
            _words("all" if each.nodes else "this"),
            (f"{node.pid}", node.pid),
        )
        yield _row(node, f"{each.key}/{each.nodes}", cells, "yellow" if each.longest >= _SLOW else "")


def _processes(node: NodeSnapshot) -> Iterable[Row]:
    for place, each in enumerate(node.processes):
        cells = (
            _number(each.number),
            _words(each.state),
            _words(each.tool),
            (seconds(each.age), each.age),
            _number(each.calls),
            _number(each.replaced),
            _words(each.reason),
            _number(each.pid),
        )
        style = "yellow" if each.state == "starting" else ""
        yield _row(node, f"{place}", cells, style)


def _upstreams(node: NodeSnapshot) -> Iterable[Row]:
    for each in node.upstreams:
        called = next((row for row in node.operations if row.upstream == each.name), None)
        cells = (
            _words(each.name),
            _words(each.state),
            _number(None if called is None else called.rate),
            _number(None if called is None else called.failed),
            _latency(None if called is None else called.quantile(0.99)),
            _number(each.in_flight),
            _number(each.connections),
            _number(each.lost),
            _words(each.circuit),
            _words(each.last_failure or each.server),
        )
        yield _row(node, each.name, cells, "red" if not each.is_up or each.state == "away" else "")


def _nodes(node: NodeSnapshot) -> Iterable[Row]:
    queues, rates, process = node.queues, node.rates, node.process
    cells = (
        _words(node.node),
        (f"{node.pid}" if node.worker is None else f"{node.pid} w{node.worker}", node.pid),
        (_text(node.state), node.state),
        (seconds(node.uptime), node.uptime),
        _number(None if rates is None else rates.requests),
        _number(None if queues is None else queues.running),
        _number(None if queues is None else queues.sessions),
        _processor(None if rates is None else rates.processor),
        _memory(None if process is None else process.memory),
        _number(None if process is None else process.descriptors),
        (_loop(node), node.lag or 0.0),
        (f"{_text(node.host)} {cleaned(node.note) or ''}", node.host),
    )
    # The note of a supervisor, which serves nothing itself, says how many workers there are.
    is_odd = node.state == "gone" or (node.note and queues is not None)
    yield _row(node, "", cells, "red" if is_odd else "")


def _loop(node: NodeSnapshot) -> str:
    return "-" if node.lag is None else f"{node.lag * 1000:.1f}ms"


def _call_counts(node: NodeSnapshot) -> tuple[int, int]:
    queues = node.queues
    return len(node.calls), 0 if queues is None else queues.running + queues.waiting


def _session_counts(node: NodeSnapshot) -> tuple[int, int]:
    return len(node.sessions), 0 if node.queues is None else node.queues.sessions


def node_line(node: NodeSnapshot) -> str:
    """Returns a line on one node."""
    head = f"{_text(node.server)} {_text(node.version)} {_text(node.state)} {seconds(node.uptime)}"
    queues, rates = node.queues, node.rates
    if queues is None:
        return f"{head}  {cleaned(node.note) or ''}"
    rate = amount(None if rates is None else rates.requests)
    crashes = sum(each.crashes for each in node.kinds)
    history, process = node.history, node.process
    p99 = next((each for each in reversed(history.p99 if history else []) if each is not None), None)
    parts = [
        head,
        f"{rate} req/s",
        *([f"p99 {_latency(p99)[0]}"] if p99 is not None else []),
        f"{amount(queues.running)} run {amount(queues.waiting)} wait",
        f"{amount(queues.sessions)} sess",
        *([f"cpu {_processor(rates.processor)[0]}"] if rates is not None else []),
        *([f"{_memory(process.memory)[0]}B"] if process is not None and process.memory is not None else []),
        f"loop {_loop(node)}",
        f"{crashes} crash{'es' if crashes != 1 else ''}",
        *([cleaned(node.note) or ""] if node.note else []),
        f"{amount(queues.queued)} queued",
        f"{amount(queues.kept_bytes + queues.in_flight_bytes)}B",
        f"pid {node.pid}",
    ]
    return "  ".join(parts)


PANES = (
    Pane(
        "tools",
        (
            Column("TOOL", 0),
            Column("CALL/S", 7, True),
            Column("10MIN", 7, True),
            Column("FAILED", 7, True),
            Column("P50", 7, True),
            Column("P99", 7, True),
            Column("TREND", 20),
            Column("PID", 7, True),
        ),
        _tools,
        2,
        lambda node: (sum(each.upstream is None for each in node.operations), 0),
    ),
    Pane(
        "calls",
        (
            Column("AGE", 7, True),
            Column("METHOD", 16),
            Column("TARGET", 0),
            Column("PRINCIPAL", 12),
            Column("SESSION", 14),
            Column("STATE", 9),
            Column("PID", 7, True),
        ),
        _calls,
        0,
        _call_counts,
    ),
    Pane(
        "tasks",
        (
            Column("AGE", 7, True),
            Column("TOOL", 0),
            Column("PRINCIPAL", 12),
            Column("STATE", 14),
            Column("MESSAGE", 24),
            Column("LEFT", 7, True),
        ),
        _tasks,
        0,
        lambda node: (len(node.tasks), node.running_tasks),
        always=False,
    ),
    Pane(
        "sessions",
        (
            Column("SESSION", 12),
            Column("CLIENT", 0),
            Column("VERSION", 10),
            Column("PRINCIPAL", 9),
            Column("CALLS", 6, True),
            Column("REQ/S", 6, True),
            Column("REQS", 6, True),
            Column("AGE", 6, True),
            Column("QUEUE", 6, True),
            Column("PEER", 21),
        ),
        _sessions,
        4,
        _session_counts,
    ),
    Pane(
        "upstreams",
        (
            Column("UPSTREAM", 12),
            Column("STATE", 10),
            Column("CALL/S", 7, True),
            Column("FAILED", 7, True),
            Column("P99", 7, True),
            Column("CALLS", 5, True),
            Column("CONN", 5, True),
            Column("LOST", 5, True),
            Column("CIRCUIT", 9),
            Column("SERVER", 0),
        ),
        _upstreams,
        2,
        lambda node: (len(node.upstreams), 0),
        always=False,
    ),
    Pane(
        "nodes",
        (
            Column("NODE", 12),
            Column("PID", 9),
            Column("STATE", 7),
            Column("UP", 6, True),
            Column("REQ/S", 6, True),
            Column("CALLS", 5, True),
            Column("SESS", 5, True),
            Column("CPU", 5, True),
            Column("MEM", 6, True),
            Column("FDS", 5, True),
            Column("LOOP", 7, True),
            Column("HOST", 0),
        ),
        _nodes,
        4,
        lambda node: (1, 0),
    ),
    Pane(
        "crashes",
        (Column("AT", 8), Column("KIND", 16), Column("THEN", 9), Column("WHY", 0), Column("TASK", 14)),
        _crashes,
        0,
        lambda node: (len(node.crashes), 0),
        always=False,
    ),
    Pane(
        "turns",
        (
            Column("KEY", 0),
            Column("RUNS", 20),
            Column("CALLS", 6, True),
            Column("WAIT", 6, True),
            Column("LONGEST", 8, True),
            Column("NODES", 6),
            Column("PID", 7, True),
        ),
        _turns,
        3,
        lambda node: (len(node.turns), 0),
        always=False,
    ),
    Pane(
        "blocked",
        (
            Column("AT", 8),
            Column("FOR", 7, True),
            Column("BY", 20),
            Column("SESSION", 12),
            Column("PRINCIPAL", 10),
            Column("WHERE", 0),
        ),
        _blockages,
        0,
        lambda node: (len(node.blockages), 0),
        always=False,
    ),
    Pane(
        "engine",
        (
            Column("KIND", 0),
            Column("TASKS", 6, True),
            Column("CRASHES", 8, True),
            Column("ENDS", 10),
            Column("RESTART", 8),
            Column("SUPERVISOR", 22),
            Column("PID", 7, True),
        ),
        _kinds,
        2,
        lambda node: (len(node.kinds), 0),
    ),
    Pane(
        "processes",
        (
            Column("NUMBER", 7, True),
            Column("STATE", 9),
            Column("TOOL", 0),
            Column("FOR", 7, True),
            Column("CALLS", 7, True),
            Column("REPLACED", 9, True),
            Column("LAST", 10),
            Column("PID", 7, True),
        ),
        _processes,
        5,
        lambda node: (len(node.processes), 0),
        always=False,
    ),
)
