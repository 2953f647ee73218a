"""Is it healthy? What an operator should know first of a snapshot, in words: nothing of a server that is well.

The bounds are those of the alerts in ``docs/how-to/operations`` where there is an alert for it, over a minute in place
of five, since somebody is looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcp_actors.telemetry.history import OperationRow
from mcp_actors.telemetry.snapshot import NodeSnapshot, Queues, Trouble

__all__ = ["troubles_of"]

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


def troubles_of(nodes: Sequence[NodeSnapshot]) -> list[Trouble]:
    """Returns what is not as it should be, that first because of which calls fail."""
    found = [
        Trouble(node=node.node, grave=grave, text=text)
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
