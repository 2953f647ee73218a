"""Settings of the garbage collector for a process that does nothing but serve."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rare_full_passes"]

# Python's defaults suit programs with few long-lived objects. Ten thousand connections are millions of objects: a full
# pass over them stops everything for a second and finds next to nothing, because the engine makes no reference cycles
# for a call. With these thresholds young objects are still collected, every 50,000 new ones, and full passes come after
# 50 million.
THRESHOLDS = (50_000, 50, 20)


@contextmanager
def rare_full_passes() -> Iterator[None]:
    """Makes full passes rare within the block. It is not for programs that only embed a server."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
