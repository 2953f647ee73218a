"""The machine of a run, and the versions of what ran there."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["machine", "versions"]

OWN_PACKAGES = ("mcp-actors", "trio", "msgspec", "attrs", "cattrs", "httptools", "hdrhistogram")


def machine(load: str) -> dict[str, str]:
    """Returns a description of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    model = platform.processor() or platform.machine()
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = "not known"
    if sys.platform != "win32":
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return {
        "processor": f"{model}, {os.cpu_count()} processors",
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": f"{load} (1 and 5 minutes; other work makes figures worse)",
    }


def versions() -> dict[str, str]:
    """Returns the versions of this package and of what it is made of."""
    found = {}
    for name in OWN_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
