"""The decision which calls the SDK is asked about, where they come without a trace that has decided it."""

from __future__ import annotations

import random
import time

from mcp_actors.logging import log

__all__ = ["Sampling"]


class Sampling:
    """Says of which calls the SDK is asked for a span.

    Args:
        share: The share of them, from 0 to 1.
        most: Of these at most so many a second, ``None`` for any number. As many may come at once after a second
            without any; while there are more, they are spread evenly.

    Raises:
        ValueError: ``share`` is not from 0 to 1, or ``most`` is not above 0.
    """

    def __init__(self, share: float, most: float | None) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share is a number from 0 to 1, not {share!r}")
        if most is not None and not most > 0:
            raise ValueError(f"most_traces is a number above 0, not {most!r}")
        self._share = share
        self._most = most
        # The moment until which no further call is sampled.
        self._free = 0.0
        self._is_logged = False

    def takes(self, now: float | None = None) -> bool:
        """Returns whether the call that comes now is sampled.

        Args:
            now: The monotonic clock, in seconds; by default it is read.
        """
        # `random` is in [0, 1), so that a share of 1 is all of them.
        if self._share < 1 and random.random() >= self._share:
            return False
        if self._most is None:
            return True
        now = time.monotonic() if now is None else now
        if now <= self._free:
            if not self._is_logged:
                self._is_logged = True
                log.info("not every trace is recorded: more begin than a second may have", most=self._most)
            return False
        self._free = max(self._free, now - 1.0) + 1.0 / self._most
        return True
