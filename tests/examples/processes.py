"""The child processes of the tests."""

from __future__ import annotations

import os


def children() -> set[str]:
    """The processes that this one started and that have not ended, by their ids."""
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as listed:
                found.update(listed.read().split())
        except OSError:  # a thread that has ended
            continue
    return found
