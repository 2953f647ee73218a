"""Compares two runs, one before and one after a change: which figures changed, with what confidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mcp_actors.bench.results import METRICS, Document, Key, place_text
from mcp_actors.bench.statistics import Interval, adjusted, mann_whitney, median, ratio_interval, smallest_p

__all__ = ["Comparison", "FigureChange", "compare", "comparison_text"]

SIGNIFICANT = 0.05
# Says something of the load, not of what was measured.
NOT_COMPARED = ("late_p99_us",)
BESIDE = " --beside floor compares ratios to the floor of the same run instead."
MACHINE = ("processor", "memory", "system", "python")

# The last of them are those of a load on one server.
OPTIONS = ("size", "seconds", "url", "version", "calls", "sessions", "cancel_share")

Verdict = Literal["regression", "improvement", "no clear change", "too few rounds"]


@dataclass
class FigureChange:
    """``times`` is after / before; ``p`` is the chance to see such a difference if there is none; ``corrected`` is that
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
