"""Simulates ten thousand users on a link of 200 ms that disconnects; the figures are the same every time.

``python -m mcp_actors.examples.simulation [clients] [seed]``
"""

from __future__ import annotations

import sys

from mcp_actors.testing.simulate.links import Exponential, LinkProfile, LogNormal
from mcp_actors.testing.simulate.report import Report
from mcp_actors.testing.simulate.world import World, simulate


def experiment(disconnect: float, clients: int = 10_000, seed: int = 1) -> Report:
    """A minute of users who think for 10 s, wait half a second for an answer, and now and then give up."""
    world = World(
        clients=clients,
        link=LinkProfile(latency=LogNormal(median=0.1, sigma=0.3), disconnect=disconnect),  # each way
        think=Exponential(mean=10.0),
        service=Exponential(mean=0.5),
        cancel=0.1,  # of all calls are given up if they take
        cancel_after=1.0,  # that long
    )
    return simulate(world, seed=seed, duration=60)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    print(experiment(0.01, *numbers))  # one message in a hundred takes its connection with it
