"""Measures in short windows side by side, and says how much of the machine other programs took in each."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Others", "Window", "processor_time", "summary"]

TICK = os.sysconf("SC_CLK_TCK")
PROCESSORS = os.cpu_count() or 1
QUIET = 0.05
"""The share of the machine that others may take in a window that counts as quiet."""
STATES = ("idle", "iowait", "guest", "guest_nice")
FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


@dataclass(frozen=True)
class Window:
    value: float
    others: float


def processor_time(pids: Iterable[int]) -> float:
    """Returns the seconds of processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK


def busy_time() -> float:
    """Returns the seconds of processor time that all programs have used, and what the host took away."""
    values = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(value) for name, value in zip(FIELDS, values, strict=False) if name not in STATES) / TICK


class Others:
    """Watches what programs other than this one and ``pids`` use of the machine, from its creation on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._began = time.perf_counter()
        self._foreign = self._used_by_others()

    def share(self) -> float:
        took = time.perf_counter() - self._began
        return max(0.0, self._used_by_others() - self._foreign) / took / PROCESSORS

    def _used_by_others(self) -> float:
        return busy_time() - processor_time(self._pids)


def summary(windows: Sequence[Window]) -> str:
    """Returns the median of all windows, and that of the quiet ones."""
    quiet = [each.value for each in windows if each.others <= QUIET]
    values = [each.value for each in windows]
    text = f"median {statistics.median(values):.3f} of {len(values)} windows"
    if quiet:
        text += f"; {statistics.median(quiet):.3f} ({min(quiet):.3f} to {max(quiet):.3f}) of {len(quiet)} quiet ones"
    return f"{text}; load average {os.getloadavg()[0]:.1f}"
