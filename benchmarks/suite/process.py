"""The operating system's figures of a process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp_actors.cli.bench.plan import LoadError

__all__ = ["cpu_seconds", "peak_mib", "resident_kib"]


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used so far, in steps of 10 ms."""
    if sys.platform == "win32":
        raise LoadError("the figures of a process are read from /proc, which this system does not have")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """The most memory the process has held; the figure of ``wait4`` includes its parent before exec."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def resident_kib(pid: int) -> int:
    """Returns the memory that the process has now; the figure of ``status`` may be some pages behind."""
    return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nRss:")[2].split()[0])
