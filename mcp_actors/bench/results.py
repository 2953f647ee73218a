"""The results of a run: rows, each with the figures of one place in one round, and a document with all of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mcp_actors.bench.errors import LoadError

__all__ = [
    "METRICS",
    "Document",
    "JobFailure",
    "Key",
    "Metric",
    "Place",
    "ResultRow",
    "place_text",
]

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
        """Reads a document. Raises `LoadError` for a file that is none."""
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
