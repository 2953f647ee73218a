"""Every module can be imported on Windows, or says in one sentence why it has no use there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .pretended import NO_MODULES, NO_NAMES, ROOT, sources

# Modules that refuse to be imported on Windows, with a word of the reason.
REFUSING = {
    **dict.fromkeys(
        ("mcp_actors.cli.workers.process", "mcp_actors.cli.workers.supervisor"), "workers inherit"
    ),
    "mcp_actors.cli.workers.serving": "workers inherit",
    "mcp_actors.examples.filesystem": "openat(2)",
    "mcp_actors.examples.filesystem.root": "openat(2)",
    "mcp_actors.examples.filesystem.search": "openat(2)",
    "mcp_actors.examples.filesystem.watch": "openat(2)",
    "mcp_transports._epoll": "epoll(7)",
    "mcp_actors.examples.transports.http2_stdio": "descriptors as POSIX has them",
}
# What is still to be done.
NOT_YET = ("import of fcntl halted; None in sys.modules", "import of termios halted; None in sys.modules")
IMPORT_ALL = """
import json, sys
from tests.windows.pretended import pretend, sources
pretend(kernel32=None, msvcrt=type(sys)("msvcrt"))
import importlib
failures = {}
for name in sources():
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except BaseException as error:
            failures[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failures))
"""


def in_windows(program: str) -> str:
    """Runs a program in a process of its own and returns what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    found: dict[str, str] = json.loads(in_windows(IMPORT_ALL))
    return found


def test_every_module_is_imported_on_windows(failures: dict[str, str]) -> None:
    assert len(sources()) > 300
    others = {name: reason for name, reason in failures.items() if name not in REFUSING}
    assert {name: reason for name, reason in others.items() if not reason.endswith(NOT_YET)} == {}


def test_a_module_without_use_there_says_why(failures: dict[str, str]) -> None:
    for name, reason in REFUSING.items():
        assert failures.get(name, "").startswith("ImportError: ")
        assert reason in failures[name]


LOOK = """
import json, sys
from tests.windows.pretended import NO_MODULES, NO_NAMES, pretend
pretend(kernel32=None, msvcrt=type(sys)("msvcrt"))
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
import ctypes, signal, sys
print(json.dumps([sys.platform, signal.SIGBREAK, hasattr(ctypes, "WinDLL"), there]))
"""


def test_the_process_looks_like_windows() -> None:
    platform, signal_break, has_libraries, there = json.loads(in_windows(LOOK))
    assert (platform, signal_break, has_libraries) == ("win32", 21, True)
    assert there == []
    assert "fcntl" in NO_MODULES
    assert "killpg" in NO_NAMES["os"].split()
