"""Wakes those who wait for the engine, when the engine has done all that there is to do.

A loop that is woken by the first of many results wants the interpreter's lock in the middle of the engine's work, takes
the few results that are there, and brings as few new calls. With many calls in flight most of the time goes into
handing the lock to and fro then. Woken when the engine is about to wait, a loop finds all results in one lot.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from mcp_actors.logging import log

__all__ = ["WakeUps"]

# Seconds after which a loop is woken in the middle of the engine's work: an engine that serves others may never wait.
MAX_DELAY = 0.0005


class WakeUps(trio.abc.Instrument):
    """An instrument of the engine's loop. It is used in the engine's thread alone."""

    def __init__(self) -> None:
        self._due: list[Callable[[], object]] = []
        self._since = 0.0

    def add(self, wake: Callable[[], object]) -> None:
        """Has ``wake`` called soon. It may raise ``RuntimeError`` when nobody waits any more."""
        if not self._due:
            self._since = time.perf_counter()
        self._due.append(wake)

    def before_io_wait(self, timeout: float) -> None:
        """Called by Trio at the end of each turn; without a timeout more is to be done at once."""
        if self._due and (timeout > 0 or time.perf_counter() - self._since > MAX_DELAY):
            self.flush()

    def flush(self) -> None:
        """Wakes all of them now."""
        due, self._due = self._due, []
        for wake in due:
            try:
                wake()
            except RuntimeError as error:
                log.debug("nobody is left to be woken", exc_info=error)
