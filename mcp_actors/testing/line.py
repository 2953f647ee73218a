"""The time at which frames arrive that are sent over one line, for the faulty and for the simulated links."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import trio

__all__ = ["SerialLine"]


class SerialLine:
    """One direction of a link. Frames leave one after the other, as fast as the bandwidth allows.

    Args:
        bandwidth: bytes per second.
        stall: the probability, for each frame, that the line stands still before it.
        stall_time: draws the seconds for which it stands still.
        latency: draws the seconds from the moment at which a frame has left until it arrives.
        on_stall: called when the line stands still.
    """

    __slots__ = ("_bandwidth", "_free", "_latency", "_on_stall", "_stall", "_stall_time")

    def __init__(
        self,
        bandwidth: float,
        stall: float,
        stall_time: Callable[[random.Random], float],
        latency: Callable[[random.Random], float],
        on_stall: Callable[[], None],
    ) -> None:
        self._bandwidth = bandwidth
        self._stall = stall
        self._stall_time = stall_time
        self._latency = latency
        self._on_stall = on_stall
        # When the last frame has left.
        self._free = -math.inf

    def arrival(self, size: int, rng: random.Random) -> float:
        """Sends a frame of ``size`` bytes now and returns the time at which it arrives."""
        begin = max(trio.current_time(), self._free)
        if self._stall and rng.random() < self._stall:
            self._on_stall()
            begin += self._stall_time(rng)
        self._free = begin + size / self._bandwidth
        return self._free + self._latency(rng)
