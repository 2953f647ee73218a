"""The results of runs: their rows and documents, the statistics of a few samples, and the comparison of two runs.

Rounds are the samples, never single requests: those of one round depend on each other, and thousands of them would
prove anything. Nothing here assumes a distribution.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from mcp_actors.cli.arguments import NumberRange
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.failures import EXIT_CROSSED, WrongUsage, reported, traceback_option
from mcp_actors.cli.output import echo
from mcp_actors.supervision.printable import safe

__all__ = [
    "METRICS",
    "Comparison",
    "Document",
    "FigureChange",
    "Interval",
    "JobFailure",
    "Key",
    "Metric",
    "Place",
    "ResultRow",
    "adjusted",
    "compare",
    "compare_command",
    "comparison_text",
    "figure_text",
    "interval",
    "mann_whitney",
    "median",
    "milliseconds",
    "number",
    "place_text",
    "ratio_interval",
    "smallest_p",
]


# -- Rows, each with the figures of one place in one round, and the document with all of them ----------

FORMAT = 1

# Where in a scenario a figure was taken: (("in_flight", 64),). Sorted, so that it can be compared.
Place = tuple[tuple[str, int | str], ...]


class Metric(NamedTuple):
    """The name, unit and direction of a figure."""

    title: str
    unit: str
    better: Literal["higher", "lower"]


METRICS = {
    "per_second": Metric("throughput", "1/s", "higher"),
    "p50_us": Metric("median latency", "us", "lower"),
    "p90_us": Metric("90th percentile", "us", "lower"),
    "p99_us": Metric("99th percentile", "us", "lower"),
    "p999_us": Metric("99.9th percentile", "us", "lower"),
    "max_us": Metric("longest", "us", "lower"),
    "cpu_us": Metric("the server's processor time a request", "us", "lower"),
    "call_us": Metric("the client's processor time a call", "us", "lower"),
    "each_us": Metric("what a caller waits for a call (mean)", "us", "lower"),
    "rss_mib": Metric("the server's memory", "MiB", "lower"),
    "start_ms": Metric("start to first answer", "ms", "lower"),
    "start_cpu_ms": Metric("processor time of a start", "ms", "lower"),
    "kib_each": Metric("memory of an idle session", "KiB", "lower"),
    "setups_per_second": Metric("sessions begun", "1/s", "higher"),
    "setup_cpu_us": Metric("the server's processor time of a set-up", "us", "lower"),
    "churn_per_second": Metric("sessions begun and ended", "1/s", "higher"),
    "mib_per_second": Metric("payload, both ways", "MiB/s", "higher"),
    "decode_us": Metric("reading a request", "us", "lower"),
    "encode_us": Metric("writing an answer", "us", "lower"),
    "late_p99_us": Metric("the generator was late by (99th percentile)", "us", "lower"),
    "never": Metric("handlers that were not cancelled", "", "lower"),
    "failed_share": Metric("calls that failed", "%", "lower"),
    "beside_p99_us": Metric("99th percentile beside a stalled peer", "us", "lower"),
    "growth_mib": Metric("memory that a stalled peer costs", "MiB", "lower"),
}


class Key(NamedTuple):
    """The fields that the rows of all rounds have in common."""

    scenario: str
    transport: str
    era: str
    at: Place
    peer: str


def place_text(at: Place) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in at) or "-"


@dataclass
class ResultRow:
    """One place of one job in one round: the samples of a document. ``latency`` is an HdrHistogram in nanoseconds."""

    round: int
    scenario: str
    transport: str
    era: str
    peer: str
    at: dict[str, int | str]
    metrics: dict[str, float]
    latency: str | None = None
    generator: float | None = None

    @property
    def key(self) -> Key:
        return Key(self.scenario, self.transport, self.era, tuple(sorted(self.at.items())), self.peer)


@dataclass
class JobFailure:
    """A job without a figure, and the reason. It is not repeated in later rounds."""

    scenario: str
    transport: str
    era: str
    peer: str
    reason: str


@dataclass
class Document:
    """A run: the machine, the versions, every sample, and the failures. ``details`` is what no row has."""

    machine: dict[str, str]
    versions: dict[str, str]
    commit: str
    started: str
    options: dict[str, Any]
    seconds: float = 0.0
    rows: list[ResultRow] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def samples(self) -> dict[Key, dict[str, list[float]]]:
        """For each key the samples of each metric, one a round."""
        found: dict[Key, dict[str, list[float]]] = {}
        for row in self.rows:
            metrics = found.setdefault(row.key, {})
            for name, value in row.metrics.items():
                metrics.setdefault(name, []).append(value)
        return found

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Document:
        """Reads a document. Raises `LoadError` for any other file."""
        try:
            members = json.loads(path.read_text())
            if members.pop("format") != FORMAT:
                raise LoadError(f"{path} is of another version of the suite")
            members["rows"] = [ResultRow(**each) for each in members["rows"]]
            members["failures"] = [JobFailure(**each) for each in members["failures"]]
            return cls(**members)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError(
                f"{path} is no file of figures that mcp-actors bench --json wrote, or the suite"
            ) from error


# -- Statistics ----------------------------------------------------------------------------------------

CONFIDENCE = 0.95
RESAMPLES = 2000
# All ways to split n + m rounds are tried up to this number; beyond it the normal approximation is good.
MOST_SPLITS = 20_000

median = statistics.median


class Interval(NamedTuple):
    """``confidence`` is the share of repetitions in which the interval holds the true value; it may be less than
    was asked for, when there are too few samples for more.
    """

    low: float
    high: float
    confidence: float


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Returns two samples between which the median is, whatever the distribution.

    They are the narrowest pair of order statistics that is sure enough; with few samples the lowest and the highest,
    and the confidence is given.
    """
    ordered = sorted(samples)
    size = len(ordered)
    tail = 0.0  # the probability that fewer than `rank` samples lie below the median
    best = Interval(ordered[0], ordered[-1], 1.0 - 2.0 ** (1 - size))
    for rank in range(size // 2):
        tail += math.comb(size, rank) / 2.0**size
        if 1.0 - 2.0 * tail < confidence:
            break
        best = Interval(ordered[rank], ordered[size - 1 - rank], 1.0 - 2.0 * tail)
    return best


def ratio_interval(
    mine: Sequence[float], other: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Returns the interval of median(mine) / median(other), by the percentile bootstrap with a fixed seed."""
    chance = random.Random(seed)
    ratios = []
    for _ in range(RESAMPLES):
        below = median(chance.choices(other, k=len(other)))
        if below:
            ratios.append(median(chance.choices(mine, k=len(mine))) / below)
    if not ratios:
        return Interval(math.nan, math.nan, 0.0)
    ratios.sort()
    cut = (1.0 - confidence) / 2.0
    last = len(ratios) - 1
    return Interval(ratios[round(cut * last)], ratios[round((1.0 - cut) * last)], confidence)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of "no difference": exact while the splits can be counted, ties and all."""
    values = [*first, *second]
    ranks = _ranks(values)
    observed = sum(ranks[: len(first)])
    if math.comb(len(values), len(first)) > MOST_SPLITS:
        return _approximate(ranks, observed, len(first), len(second))
    # Ranks with ties are halves: doubled, they are whole, and splits are counted by their sums.
    doubled = [round(2 * rank) for rank in ranks]
    ways: list[dict[int, int]] = [{} for _ in range(len(first) + 1)]
    ways[0][0] = 1
    for rank in doubled:
        for taken in range(len(first), 0, -1):
            for total, count in ways[taken - 1].items():
                ways[taken][total + rank] = ways[taken].get(total + rank, 0) + count
    middle = sum(doubled) * len(first) / len(doubled)
    distance = abs(2 * observed - middle)
    far = sum(count for total, count in ways[-1].items() if abs(total - middle) >= distance - 1e-9)
    return far / sum(ways[-1].values())


def smallest_p(first: int, second: int) -> float:
    """The least p-value that so many samples can give: above 0.05 no difference, however large, can be shown."""
    return 2.0 / math.comb(first + second, first)


def adjusted(values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg: p-values of many comparisons, so that few of those below 0.05 are false alarms."""
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    result = [0.0] * len(values)
    lowest = 1.0
    for place, index in enumerate(order):
        lowest = min(lowest, values[index] * (len(values) / (len(values) - place)))
        result[index] = lowest
    return result


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + 1 + end) / 2
        start = end
    return ranks


def _approximate(ranks: Sequence[float], observed: float, first: int, second: int) -> float:
    size = first + second
    middle = first * (size + 1) / 2
    spread = sum((rank - (size + 1) / 2) ** 2 for rank in ranks) * first * second / (size * (size - 1))
    if not spread:
        return 1.0
    distance = max(0.0, abs(observed - middle) - 0.5) / math.sqrt(spread)
    return math.erfc(distance / math.sqrt(2.0))


# -- Figures as people read them -----------------------------------------------------------------------


def number(value: float) -> str:
    """Returns a figure with its significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def figure_text(samples: list[float]) -> str:
    """The median and where it lies."""
    if len(samples) == 1:
        return number(samples[0])
    low, high, _ = interval(samples)
    return f"{number(median(samples))} ({number(low)} to {number(high)})"


def milliseconds(seconds: float) -> str:
    """Returns a duration with three significant digits, always in one unit, so that figures compare at sight."""
    thousandths = seconds * 1000
    return f"{thousandths:,.0f} ms" if thousandths >= 1000 else f"{thousandths:.3g} ms"


# -- The comparison of two runs: which figures changed, with what confidence ---------------------------

SIGNIFICANT = 0.05
# A figure of the load, not of the server.
NOT_COMPARED = ("late_p99_us",)
BESIDE = " --beside floor compares ratios to the floor of the same run instead."
MACHINE = ("processor", "memory", "system", "python")

# The last of them are those of a load on one server.
OPTIONS = ("size", "seconds", "url", "version", "calls", "sessions", "cancel_share")

Verdict = Literal["regression", "improvement", "no clear change", "too few rounds"]


@dataclass
class FigureChange:
    """``times`` is after / before; ``p`` is the chance to see such a difference by noise alone; ``corrected`` is that
    for all places of the scenario together, of which some always differ by chance.
    """

    key: Key
    metric: str
    before: float
    after: float
    times: float
    interval: Interval
    p: float
    corrected: float = 1.0
    verdict: Verdict = "no clear change"

    @property
    def worse(self) -> bool:
        return (self.times > 1.0) == (METRICS[self.metric].better == "lower")

    @property
    def sure(self) -> bool:
        return self.corrected < SIGNIFICANT


@dataclass
class Comparison:
    changes: list[FigureChange] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def of(self, verdict: Verdict) -> list[FigureChange]:
        return [change for change in self.changes if change.verdict == verdict]

    @property
    def regressions(self) -> list[FigureChange]:
        """Returns the regressions that are significant after correction for the number of comparisons."""
        return [change for change in self.of("regression") if change.sure]


def compare(before: Document, after: Document, *, beside: str = "", least: float = 0.05) -> Comparison:
    """Compares every metric of every place that both runs have. Changes of less than the share ``least`` are ignored.

    If ``beside`` names a peer, the ratios to that peer are compared, round by round, in each run.
    """
    comparison = Comparison(remarks=_remarks(before, after, beside))
    first, second = _samples(before, beside), _samples(after, beside)
    few = 0
    for key in first:
        for metric, old in first[key].items():
            new = second.get(key, {}).get(metric)
            if (
                new is None
                or metric not in METRICS
                or metric in NOT_COMPARED
                or not median(old)
                or not median(new)
            ):
                continue
            few += smallest_p(len(old), len(new)) > SIGNIFICANT
            times = median(new) / median(old)
            interval = ratio_interval(new, old)
            p = mann_whitney(old, new)
            comparison.changes.append(FigureChange(key, metric, median(old), median(new), times, interval, p))
    families: dict[tuple[str, str], list[FigureChange]] = {}
    for change in comparison.changes:
        families.setdefault((change.key.scenario, change.metric), []).append(change)
    for family in families.values():
        for change, corrected in zip(family, adjusted([each.p for each in family]), strict=True):
            change.corrected = corrected
            rounds = len(first[change.key][change.metric]), len(second[change.key][change.metric])
            change.verdict = _verdict(change, rounds, least)
    if few:
        comparison.remarks.append(
            f"{few} of {len(comparison.changes)} comparisons have too few rounds to show anything: four rounds in each "
            "run are the least (two-sided, 5 %), more when many places are compared at once."
        )
    missing = len(first.keys() ^ second.keys())
    if missing:
        comparison.remarks.append(f"{missing} places are in one run only, and are not compared.")
    return comparison


def _verdict(change: FigureChange, rounds: tuple[int, int], least: float) -> Verdict:
    if smallest_p(*rounds) > SIGNIFICANT:
        return "too few rounds"
    apart = change.interval.low > 1.0 or change.interval.high < 1.0
    if change.p >= SIGNIFICANT or not apart or abs(change.times - 1.0) < least:
        return "no clear change"
    return "regression" if change.worse else "improvement"


def _samples(document: Document, beside: str) -> dict[Key, dict[str, list[float]]]:
    samples = document.samples()
    if not beside:
        return samples
    found: dict[Key, dict[str, list[float]]] = {}
    for key, metrics in samples.items():
        other = samples.get(key._replace(peer=beside))
        if other is None or key.peer == beside:
            continue
        for metric, values in metrics.items():
            yardstick = other.get(metric, [])
            if len(yardstick) == len(values) and all(yardstick):
                ratios = [mine / theirs for mine, theirs in zip(values, yardstick, strict=True)]
                found.setdefault(key, {})[metric] = ratios
    return found


def _remarks(before: Document, after: Document, beside: str) -> list[str]:
    pairs = [
        *((name, before.machine.get(name), after.machine.get(name)) for name in MACHINE),
        *((name, before.versions.get(name), after.versions.get(name)) for name in before.versions),
        *((name, before.options.get(name), after.options.get(name)) for name in OPTIONS),
    ]
    remarks = [f"{name} differs: {old} / {new}" for name, old, new in pairs if old != new]
    if not beside:
        remarks.append(
            "The runs were taken one after the other: a drift of the machine between them looks like a change."
            + BESIDE * any(row.peer == "floor" for row in before.rows)
        )
    return sorted(remarks)


def comparison_text(comparison: Comparison) -> str:
    """Returns Markdown: first the differences, then the comparisons without one."""
    lines = ["# Comparison", ""]
    verdicts: tuple[Verdict, ...] = ("regression", "improvement")
    for verdict in verdicts:
        changes = sorted(comparison.of(verdict), key=lambda each: (each.corrected, -abs(each.times - 1.0)))
        sure = sum(change.sure for change in changes)
        lines += [f"## {verdict.capitalize()}s: {sure} sure, {len(changes) - sure} that may be chance", ""]
        if changes:
            lines += [
                "| scenario | transport | era | where | peer | what | before | after | after / before (95 %) | sure |",
                "|---|---|---|---|---|---|---|---|---|---|",
                *map(_row, changes),
                "",
            ]
    unclear, few = len(comparison.of("no clear change")), len(comparison.of("too few rounds"))
    tested = len(comparison.changes) - few
    lines += [
        f"{tested} comparisons were tested, each with a two-sided Mann-Whitney test on its rounds at 5 %: about "
        f"{tested * SIGNIFICANT:.0f} of them would be listed by chance alone if nothing had changed at all. Sure are "
        "those that are left after the correction of Benjamini and Hochberg among the places of a scenario. "
        f"{unclear} show no clear change, which is not the same as none; {few} had too few rounds. Intervals of "
        "ratios are bootstrapped.",
        "",
        *(f"- {remark}" for remark in comparison.remarks),
    ]
    return "\n".join(lines) + "\n"


def _row(change: FigureChange) -> str:
    key, metric = change.key, METRICS[change.metric]
    cells = [
        key.scenario,
        key.transport,
        key.era,
        place_text(key.at),
        key.peer,
        f"{metric.title}, {metric.unit}",
        f"{change.before:,.4g}",
        f"{change.after:,.4g}",
        f"{change.times:.2f} ({change.interval.low:.2f} to {change.interval.high:.2f})",
        f"{'yes' if change.sure else 'may be chance'}, p = {change.p:.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


# -- ``mcp-actors bench --compare A.json B.json`` ------------------------------------------------------

_WORDS = {"regression": "worse", "improvement": "better"}


@click.command("bench --compare")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="A.json")
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="B.json")
@click.option(
    "--least",
    type=NumberRange(0, 1000),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Smaller changes are none.",
)
@click.option(
    "--fail-if",
    type=click.Choice(["regression"]),
    multiple=True,
    help="Exit with 6 if a figure became worse, and not by chance.",
)
@traceback_option
def compare_command(
    before: Path, after: Path, least: float, fail_if: tuple[str, ...], show_traceback: bool
) -> None:
    """Compare two files that `mcp-actors bench --json` wrote, with intervals."""
    with reported(show_traceback):
        try:
            # They may be of two servers: the same load is the same place.
            first, second = (_of_one_place(Document.read(path)) for path in (before, after))
        except LoadError as error:
            raise WrongUsage(str(error)) from error
        comparison = compare(first, second, least=least / 100)
        for line in _lines(comparison):
            echo(safe(line))
    if fail_if and comparison.regressions:
        raise click.exceptions.Exit(EXIT_CROSSED)


def _lines(comparison: Comparison) -> Iterator[str]:
    """Returns each figure of both files, place by place, with its ratio and what that means."""
    for place in dict.fromkeys(change.key.at for change in comparison.changes):
        yield place_text(place)
        for change in comparison.changes:
            if change.key.at != place:
                continue
            metric, (low, high, _) = METRICS[change.metric], change.interval
            verdict = _WORDS.get(change.verdict, change.verdict)
            if change.verdict in _WORDS and not change.sure:
                verdict += ", which may be chance"
            yield (
                f"  {f'{metric.title}, {metric.unit}':26} {change.before:>12,.4g} {change.after:>12,.4g}   "
                f"{change.times:.2f}x ({low:.2f} to {high:.2f})  {verdict}"
            )
    if not comparison.changes:
        yield "nothing can be compared: the files have no load in common"
    yield from (f"Mind: {remark}" for remark in comparison.remarks)


def _of_one_place(document: Document) -> Document:
    rows = [dataclasses.replace(row, transport="-", era="-", peer="-") for row in document.rows]
    return dataclasses.replace(document, rows=rows)
