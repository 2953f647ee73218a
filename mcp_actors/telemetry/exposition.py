"""Metrics as values: they become a page for Prometheus, travel from process to process, and are added up.

A page has the text format of Prometheus, 0.0.4. Of several processes that serve the same, counters and histograms are
added, and each gauge says itself what becomes of several of it. The numbers of a process that has ended have to be kept
by whoever adds: a counter that falls looks to Prometheus like one that began again, and all of it would count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from mcp_actors.supervision.platform import process_numbers
from mcp_actors.supervision.printable import encodable

__all__ = [
    "BUCKETS",
    "FINE_BUCKETS",
    "OTHER",
    "Family",
    "Sample",
    "coarse",
    "counted",
    "page_of",
    "process_families",
    "summed",
]

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds in seconds, as OpenTelemetry's conventions for MCP have them."""
FINE_BUCKETS = (
    *(0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7),
    *(10, 15, 20, 30, 45, 60, 90, 120, 180, 300),
)
"""The bounds by which calls are counted, all of `BUCKETS` among them: most tools take less than the first of those."""
_PLACES = (0, *(FINE_BUCKETS.index(bound) + 1 for bound in BUCKETS), len(FINE_BUCKETS) + 1)
OTHER = "other"
"""The label of every name that has no label of its own."""

Number = int | float
Together = Literal["sum", "max", "min"]


def coarse(fine: Sequence[int]) -> tuple[int, ...]:
    """Returns counts by `FINE_BUCKETS` as counts by `BUCKETS`."""
    return tuple(sum(fine[start:end]) for start, end in pairwise(_PLACES))


class Sample(msgspec.Struct, array_like=True):
    """One number with its labels, or one histogram."""

    labels: dict[str, str]
    value: Number
    """Of a histogram, the sum of what was measured."""
    buckets: tuple[int, ...] = ()
    """Of a histogram, how many were in each of `BUCKETS`, and above all of them; each is counted once."""


class Family(msgspec.Struct):
    """All numbers of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[Sample]
    together: Together = "sum"
    """The number of several processes, made of the number of each."""


def page_of(families: Iterable[Family], labels: Mapping[str, str] | None = None) -> str:
    """Returns a page of metrics. A family without a number is left out.

    Args:
        families: The metrics.
        labels: Labels of every line; none by default.
    """
    return "\n".join(_lines(families, labels or {})) + "\n"


def _lines(families: Iterable[Family], common: Mapping[str, str]) -> Iterator[str]:
    for family in families:
        name = family.name
        if not family.samples:
            continue
        yield f"# HELP {name} {family.help}"
        yield f"# TYPE {name} {family.kind}"
        for sample in family.samples:
            labels = {**common, **sample.labels}
            if family.kind != "histogram":
                yield _line(name, sample.value, labels)
                continue
            below = 0
            for bound, number in zip(BUCKETS, sample.buckets, strict=False):
                below += number
                yield _line(f"{name}_bucket", below, {**labels, "le": f"{bound:g}"})
            count = sum(sample.buckets)
            yield _line(f"{name}_bucket", count, {**labels, "le": "+Inf"})
            yield _line(f"{name}_sum", sample.value, labels)
            yield _line(f"{name}_count", count, labels)


def _line(name: str, number: Number, labels: Mapping[str, str]) -> str:
    text = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{text}}} {number!r}" if text else f"{name} {number!r}"


def _escaped(value: str) -> str:
    return encodable(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# -- the numbers of several processes ------------------------------------------------------------------


def summed(pages: Sequence[Sequence[Family]], most: int) -> list[Family]:
    """Returns the metrics of several processes as those of one.

    Args:
        pages: The metrics of each.
        most: Different sets of labels of one name that are kept apart; those that come later are counted together. The
            processes that come after each other may have other names each.
    """
    found: dict[str, Family] = {}
    numbers: dict[str, dict[tuple[tuple[str, str], ...], Sample]] = {}
    for families in pages:
        for family in families:
            found.setdefault(family.name, family)
            kept = numbers.setdefault(family.name, {})
            for sample in family.samples:
                labels, key = sample.labels, tuple(sample.labels.items())
                if key not in kept and len(kept) >= most:
                    labels = _folded(labels)
                    key = tuple(labels.items())
                before = kept.get(key)
                kept[key] = (
                    Sample(labels, sample.value, sample.buckets)
                    if before is None
                    else _added(before, sample, family.together)
                )
    return [
        msgspec.structs.replace(family, samples=list(numbers[name].values()))
        for name, family in found.items()
    ]


def counted(families: Iterable[Family]) -> list[Family]:
    """Returns those metrics that stay true of a process that has ended: its counters and histograms."""
    return [each for each in families if each.kind != "gauge"]


def _added(one: Sample, other: Sample, together: Together) -> Sample:
    if one.buckets and other.buckets:
        buckets = tuple(map(int.__add__, one.buckets, other.buckets))
        return Sample(one.labels, one.value + other.value, buckets)
    if together == "sum":
        return Sample(one.labels, one.value + other.value)
    return Sample(one.labels, (max if together == "max" else min)(one.value, other.value))


def _folded(labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels of what has none of its own: of those that names and codes make many, nothing is left."""
    without = {"mcp_method_name": OTHER, "target": OTHER, "tool": OTHER, "upstream": OTHER, "code": ""}
    return {name: without.get(name, value) for name, value in labels.items()}


# -- the process itself --------------------------------------------------------------------------------

# The standard names of Prometheus for them. Of several processes the memory and the time are added; of the descriptors
# those of the process with the fewest left count, because each process has a limit of its own.
_OF_A_PROCESS: Mapping[str, tuple[Literal["counter", "gauge"], str, Together]] = {
    "process_cpu_seconds_total": ("counter", "Seconds of processor time, of the user and the system.", "sum"),
    "process_open_fds": ("gauge", "Open descriptors.", "max"),
    "process_max_fds": ("gauge", "Descriptors that may be open.", "min"),
    "process_resident_memory_bytes": ("gauge", "Resident memory in bytes.", "sum"),
    "process_virtual_memory_bytes": ("gauge", "Virtual memory in bytes.", "sum"),
    "process_start_time_seconds": ("gauge", "Start of the process, in seconds since the epoch.", "min"),
}


def process_families() -> list[Family]:
    """Returns the numbers of this process, as far as the system says them."""
    numbers = process_numbers()
    return [
        Family(name, kind, text, [Sample({}, numbers[name])], together)
        for name, (kind, text, together) in _OF_A_PROCESS.items()
        if name in numbers
    ]
