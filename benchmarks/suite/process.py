"""What the system knows of a process that is measured."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["LoadError", "cpu_seconds", "peak_mib", "resident_kib"]


class LoadError(Exception):
    """The server did not answer as it should, so there is no figure."""


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used so far, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """The most memory the process has held; the figure of ``wait4`` includes its parent before exec."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def resident_kib(pid: int) -> int:
    """Memory the process holds now. What ``status`` says of it may be some pages behind."""
    return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nRss:")[2].split()[0])
