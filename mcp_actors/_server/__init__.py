"""The server: what it offers, and how each method is answered.

Here is what a program finds that imports servers without running them, and needs nothing else of the engine for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["isolated_process", "stop_if_loaded", "stopped_at_run"]


class _Loading(threading.local):
    """The function for this thread, in which a program is loaded; all others run their servers meanwhile."""

    stop: Callable[[Any], object] | None = None


_here = _Loading()


@contextmanager
def stopped_at_run(stop: Callable[[Any], object]) -> Iterator[None]:
    """Has every `Server.run` of this thread call a function with the server first, for the length of the block.

    Args:
        stop: Raises what leaves the program. Of blocks in one another, the inner one counts.
    """
    former, _here.stop = _here.stop, stop
    try:
        yield
    finally:
        _here.stop = former


def stop_if_loaded(server: object) -> None:
    """Leaves a program that is only loaded, by what the function of `stopped_at_run` raises."""
    if _here.stop is not None:
        _here.stop(server)


class _IsolatedProcess:
    """The state of a process that runs functions for a server in another one: ``isolate="process"``."""

    def __init__(self) -> None:
        self.is_here = False
        self.context: Callable[[], Any] = lambda: None
        """Returns the context of the call that runs here, ``None`` if there is none."""


isolated_process = _IsolatedProcess()
