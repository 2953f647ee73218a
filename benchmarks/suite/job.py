"""Jobs for load processes, and what they return."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from mcp_actors.cli.bench.plan import Era

__all__ = ["BenchmarkJob", "Point"]


@dataclass(frozen=True)
class BenchmarkJob:
    """One load process's work. ``peer`` and ``prepared`` name a program and what starts it; see `peers`. ``prefix`` is
    a command that starts the program's own, as profilers do.
    """

    scenario: str
    transport: str
    peer: str
    era: Era
    seed: int
    seconds: float
    parameters: dict[str, Any]
    prepared: dict[str, str] = field(default_factory=dict)
    loads: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> BenchmarkJob:
        members = json.loads(text)
        return cls(**members | {name: tuple(members[name]) for name in ("loads", "prefix")})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Point:
    """The measurement of a scenario at one place. ``took`` has the seconds of each request.

    ``generator`` is the share of a processor that the load itself took, where that is another process; ``note`` is
    what a reader of the figure must know.
    """

    at: dict[str, int | str]
    metrics: dict[str, float]
    took: list[float] = field(default_factory=list)
    generator: float | None = None
    note: str = ""
