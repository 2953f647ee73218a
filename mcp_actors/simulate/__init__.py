"""Experiments at a scale that one machine does not have: thousands of sessions in one process, in virtual time.

    report = simulate(World(clients=10_000, link=Link(latency=0.1, disconnect=0.01)), seed=1, duration=60)
    print(report)

Servers and clients are the real ones, with everything they do on a lost connection, a timeout or a cancellation. The
links are in memory, and as slow and faulty as a `Link` says; the clock jumps to the next thing that happens. So the
figures are about protocol and program, not about the machine: computing takes no virtual time. What it takes in this
world: 10,000 sessions that make a call every ten seconds for a minute need about 45 s of one core, and 110 KiB each.

The same world and seed give the same report, byte for byte, in any process, as long as servers and behaviours draw
from dice they are given, or from the `random` module, and use no threads, no real time and no input or output.
"""

from __future__ import annotations

from mcp_actors.simulate.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
)
from mcp_actors.simulate.links import Link
from mcp_actors.simulate.report import Latencies, Report
from mcp_actors.simulate.world import User, World, simulate

__all__ = [
    "Constant",
    "Distribution",
    "Empirical",
    "Exponential",
    "Latencies",
    "Link",
    "LogNormal",
    "Report",
    "Uniform",
    "User",
    "World",
    "simulate",
]
