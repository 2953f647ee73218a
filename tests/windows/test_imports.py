"""Every module can be imported on Windows, or says in one sentence why it has no use there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .pretended import NO_MODULES, NO_NAMES, run_in_windows, sources

# Modules that refuse to be imported on Windows, with a word of the reason.
REFUSING = {
    "mcp_actors.cli.workers.supervisor": "workers inherit",
    "mcp_actors.cli.workers.serving": "workers inherit",
    "mcp_actors.examples.filesystem": "openat(2)",
    "mcp_actors.examples.transports.http2": "descriptors as POSIX has them",
    # The packages import them elsewhere alone.
    "mcp_transports.stdio.starting": "mcp_transports.stdio.windows",
    "mcp_transports.stdio.streams": "mcp_transports.stdio.windows",
}
PROGRAM = """
import json, sys
from tests.windows.pretended import NO_MODULES, NO_NAMES, pretend, sources
pretend(everything=True, kernel32=None, msvcrt=type(sys)("msvcrt"))
import importlib
there = []
for name in NO_MODULES:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    there.append(name)
for module, names in NO_NAMES.items():
    there += [f"{module}.{each}" for each in names.split() if hasattr(importlib.import_module(module), each)]
failures = {}
for name in sources():
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except BaseException as error:
            failures[name] = f"{type(error).__name__}: {error}"
import ctypes, signal, sys
print(json.dumps([sys.platform, signal.SIGBREAK, hasattr(ctypes, "WinDLL"), there, failures]))
"""


@pytest.fixture(scope="module")
def found() -> list[Any]:
    """Runs the program in a process of its own: the platform, a signal, libraries, what is too much, and failures."""
    result: list[Any] = json.loads(run_in_windows(PROGRAM))
    return result


def test_the_process_looks_like_windows(found: list[Any]) -> None:
    assert found[:4] == ["win32", 21, True, []]
    assert "fcntl" in NO_MODULES
    assert "killpg" in NO_NAMES["os"].split()


def test_every_module_is_imported_on_windows(found: list[Any]) -> None:
    assert len(sources()) > 300
    assert {name: reason for name, reason in found[4].items() if name not in REFUSING} == {}


def test_a_module_without_use_there_says_why(found: list[Any]) -> None:
    for name, reason in REFUSING.items():
        assert reason in found[4].get(name, "it can be imported")
