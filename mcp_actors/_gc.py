"""The garbage collector of a process that is a server and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rare_full_passes"]

# Python's own thresholds suit programs that hold little for long. Ten thousand connections are millions of objects: a
# full pass over them takes a second in which nothing else runs, and finds next to nothing, for the engine makes no
# cycles for a call. Young garbage is still found, every fifty thousand objects; full passes come after fifty million.
THRESHOLDS = (50_000, 50, 20)


@contextmanager
def rare_full_passes() -> Iterator[None]:
    """For the length of the block; not for programs that only embed a server."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
