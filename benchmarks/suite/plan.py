"""The jobs of a run: every scenario on every transport in every era for every peer that supports them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.suite.endpoints import transport
from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.peers import FACES, OURS, PEERS, Peer
from benchmarks.suite.scenarios.table import SCENARIOS, Scenario
from mcp_actors.cli.bench.plan import Era, LoadError

__all__ = ["FULL", "QUICK", "TOY", "Case", "Size", "make_plan"]


@dataclass(frozen=True)
class Size:
    """The length of a run. ``seconds`` is the length of one loop; no job is begun after ``budget`` seconds."""

    name: Literal["quick", "full", "toy", "goals"]
    rounds: int
    seconds: float
    peers: tuple[str, ...]
    transports: tuple[str, ...]
    budget: float = math.inf


ALL_OF_OURS = ("stdio", "http", "memory", "tcp", "unix", "ws")
# The budget leaves some of five minutes for the job that is running then and for the report.
QUICK = Size("quick", 3, 0.2, ("ours", *FACES, "floor", "official"), ("stdio", "http"), budget=280.0)
FULL = Size("full", 5, 0.5, tuple(PEERS), ALL_OF_OURS)
TOY = Size("toy", 1, 0.05, ("ours",), ("stdio", "http", "memory"))


@dataclass(frozen=True)
class Case:
    """Jobs for several peers, one after another in a round. ``parameters`` of a peer replace those of the size."""

    scenario: Scenario
    transport: str
    era: Era
    peers: tuple[str, ...]
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)

    def job(
        self,
        peer: str,
        size: Size,
        seconds: float,
        seed: int,
        prepared: dict[str, str],
        loads: tuple[str, ...],
        prefix: tuple[str, ...] = (),
    ) -> BenchmarkJob:
        given = self.parameters.get(peer)
        parameters = self.scenario.parameters(size.name) if given is None else given
        names = self.scenario.name, self.transport, peer, self.era
        return BenchmarkJob(*names, seed, seconds, parameters, prepared, loads, prefix)


def make_plan(
    size: Size,
    *,
    scenarios: Sequence[str] = (),
    transports: Sequence[str] = (),
    peers: Sequence[str] = (),
    eras: Sequence[str] = (),
) -> list[Case]:
    """Returns the jobs; empty names mean all of the size. Raises `LoadError` for unknown names."""
    for given, known, what in ((scenarios, SCENARIOS, "scenario"), (peers, PEERS, "peer")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise LoadError(f"no {what} is called {', '.join(unknown)}; there are: {', '.join(known)}")
    found = []
    for name in scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        extra = scenario.quick_extra if size.name == "quick" and not transports else ()
        wanted = peers or (*size.peers, *(scenario.quick_peers if size.name == "quick" else ()))
        for chosen in scenario.schemes or (*(transports or size.transports), *extra):
            if scenario.lanes and transport(chosen).drive in ("pipe", "none"):
                continue
            for era in scenario.quick_eras if size.name == "quick" else scenario.eras:
                if chosen in extra and era != "modern":
                    continue
                if eras and era not in eras and len(scenario.eras) > 1:
                    continue
                able = tuple(peer for peer in wanted if _able(PEERS[peer], scenario, chosen, era))
                if able:
                    found.append(Case(scenario, chosen, "legacy" if era == "legacy" else "modern", able))
    return found


def _able(peer: Peer, scenario: Scenario, chosen: str, era: str) -> bool:
    here = transport(chosen)
    if (scenario.peers and peer.name not in scenario.peers) or era not in peer.eras:
        return False
    if peer.scenarios and scenario.name not in peer.scenarios:
        return False
    if scenario.clients:
        return peer.calls(here.scheme)
    if here.drive in ("memory", "channel") and peer.name != OURS:
        return False
    return peer.has(here.scheme) and not (scenario.name == "eras" and len(peer.eras) < 2)
