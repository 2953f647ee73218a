"""Experiments at a scale that one machine does not have: thousands of sessions in one process, in virtual time.

    world = World(clients=10_000, link=LinkProfile(latency=0.1, disconnect=0.01))
    report = simulate(world, seed=1, duration=60)
    print(report)

Servers and clients are the real ones, and do on a lost connection, a timeout or a cancellation what they always do. The
links are in memory, and as slow and faulty as a `LinkProfile` says; the clock jumps to the next event. Computing takes
no virtual time, so the figures are about the protocol and the program, not about the machine. In this world, 10,000
sessions that make a call every ten seconds, for a minute, take about 45 s of one core and 110 KiB each.

The same world and seed give the same report, byte for byte, in any process, as long as servers and behaviours take
their random numbers from the generators that they are given, or from the `random` module, and use no threads, no real
time and no input or output.
"""

from __future__ import annotations

from mcp_actors.testing.simulate.links import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    LinkProfile,
    LogNormal,
    Uniform,
)
from mcp_actors.testing.simulate.report import Latencies, Report
from mcp_actors.testing.simulate.world import User, World, simulate

__all__ = [
    "Constant",
    "Distribution",
    "Empirical",
    "Exponential",
    "Latencies",
    "LinkProfile",
    "LogNormal",
    "Report",
    "Uniform",
    "User",
    "World",
    "simulate",
]
