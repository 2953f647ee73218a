"""The goals as a table: the measured ratio, its interval, and whether it reaches the goal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.suite.goals import COLUMNS, GOALS, ITSELF, Against, Goal
from benchmarks.suite.views import warmth
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.results import METRICS, Document, Key, interval, median, number

__all__ = ["Cell", "about_goals", "goal_rows", "goals_markdown", "write_readme"]

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
NAMED = ("trio", "official", "typescript1")

Rounds = dict[int, float]
# The rounds of each metric of each place.
Found = dict[tuple[Key, str], Rounds]


class Cell(NamedTuple):
    text: str
    missed: bool = False


def goal_rows(
    document: Document, goals: Sequence[Goal] = GOALS, before: Document | None = None
) -> list[list[Cell]]:
    """Returns the head, then a row for each goal with a ratio; nothing without such goals.

    ``before`` are the figures of an earlier tree on the same machine, for goals that depend on them.
    """
    found = _by_round(document)
    earlier = _by_round(before) if before is not None else {}
    ran = {row.peer for row in document.rows} | {failure.peer for failure in document.failures}
    shown = [goal for goal in goals if any(_measured(goal, each, found) for each in goal.against)]
    asked = {ITSELF, *(each.column for goal in shown for each in goal.against)}
    columns = [column for column in COLUMNS if column in asked]
    rows = [
        [Cell(goal.what), *(_cell(goal, column, found, earlier, ran) for column in columns)] for goal in shown
    ]
    head = [Cell("what"), *(Cell(COLUMNS[column]) for column in columns)]
    return [head, *rows] if rows else []


def _by_round(document: Document) -> Found:
    found: Found = {}
    for row in document.rows:
        for metric, value in row.metrics.items():
            found.setdefault((row.key, metric), {})[row.round] = value
    return found


def _measured(goal: Goal, against: Against, found: Found) -> list[float]:
    """The ratio to the other peer, or the difference: in each round, since only within one is the machine the same."""
    ours, theirs = found.get((goal.ours, goal.metric), {}), found.get((against.key, goal.metric), {})
    if against.kind == "figure":
        return list(ours.values())
    both = [(value, theirs[turn]) for turn, value in ours.items() if theirs.get(turn)]
    return [value - other if against.kind == "difference" else value / other for value, other in both]


def _cell(goal: Goal, column: str, found: Found, earlier: Found, ran: set[str]) -> Cell:
    matching = [each for each in goal.against if each.column == column]
    figure = _figure(found.get((goal.ours, goal.metric)), goal.metric)
    if not matching:
        return Cell(figure if column == ITSELF else "-")
    [against] = matching
    aim, bound = _aim(goal, against, earlier)
    samples = _measured(goal, against, found)
    if not samples:
        # Who took no part in the run was not missed.
        missed = against.key.peer in ran
        return Cell(("no figure" if missed else "not run") + aim, missed and bound is not None)
    middle = median(samples)
    missed = bound is not None and (middle < bound if goal.at_least else middle > bound)
    tell = _ratio if against.kind == "ratio" else number
    text = f"{tell(middle)}{_unit(goal, against)}"
    if len(samples) > 1:
        low, high, _ = interval(samples)
        text += f" ({tell(low)} to {tell(high)})"
    if column == ITSELF and against.kind != "figure":
        other = _figure(found.get((against.key, goal.metric)), goal.metric)
        text = f"{other}, then {figure}: {text}"
    return Cell(text + aim + (": not reached" if missed else ""), missed)


def _unit(goal: Goal, against: Against) -> str:
    if against.kind == "ratio":
        return "x"
    return f" {METRICS[goal.metric].unit}" + (" more" if against.kind == "difference" else "")


def _aim(goal: Goal, against: Against, earlier: Found) -> tuple[str, float | None]:
    """The goal in words, if there is one, and the bound that it comes to."""
    bound, times = against.bound, against.times_before
    if bound is None:
        return "", None
    aim = f", goal {'≥' if goal.at_least else '≤'} {bound:g}{_unit(goal, against)}"
    if times:
        aim += f" or {times:g} times the tree before"
        if before := _measured(goal, against, earlier):
            enough = times * median(before)
            aim += f", which is {_ratio(enough)}x"
            bound = min(bound, enough) if goal.at_least else max(bound, enough)
    return aim, bound


def _figure(rounds: Rounds | None, metric: str) -> str:
    if not rounds:
        return "-"
    value, unit = median(rounds.values()), METRICS[metric].unit
    if unit == "us" and value >= 1000:
        value, unit = value / 1000, "ms"
    return f"{number(value)}/s" if unit == "1/s" else f"{number(value)} {unit}"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def about_goals(document: Document) -> str:
    """Returns the machine, the versions, the time and the command of the figures."""
    versions = document.versions
    named = [
        versions[name] if " " in versions[name] else f"{name} {versions[name]}"
        for name in NAMED
        if name in versions
    ]
    machine = [document.machine[name] for name in ("processor", "system") if name in document.machine]
    size = str(document.options["size"])
    command = "python -m benchmarks run" + ("" if size == "full" else f" --{size}")
    warm = warmth(document)
    parts = [
        *machine,
        f"Python {document.machine.get('python', 'unknown')}",
        *named,
        f"mcp-actors {document.commit}",
        document.started,
    ]
    about_node = f"; {warm}" if warm else ""
    rounds = f"{document.options['rounds']} rounds of loops of {document.options['seconds']:g} s"
    return (
        f"{', '.join(parts)}{about_node}; `{command}`, {rounds}, medians, and in brackets where those of the ratios "
        "lie:"
    )


def goals_markdown(document: Document, before: Document | None = None) -> str:
    """Returns the table and its introduction. Raises `LoadError` if the document has no figure for any goal."""
    rows = goal_rows(document, before=before)
    if not rows:
        raise LoadError("no goal has figures; python -m benchmarks run --goals takes them")
    lines = [
        "| " + " | ".join(f"**{cell.text}**" if cell.missed else cell.text for cell in row) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return about_goals(document) + "\n\n" + "\n".join(lines) + "\n"


def write_readme(readme: Path, text: str) -> None:
    """Puts the table between its two marks. Raises `LoadError` if they are not there."""
    try:
        before, begin, rest = readme.read_text().partition(BEGIN)
    except OSError as error:
        raise LoadError(f"{readme}: {error.strerror}") from error
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LoadError(f"{readme} has no marks for figures")
    readme.write_text(f"{before}{begin}{text}{end}{after}")
