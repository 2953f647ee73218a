"""Supervision: the owner of each task, the cost of its crash, and what the whole engine writes down.

`task_kinds` is the table of every kind of task, and `containment` starts tasks by it. `logging` writes the lines,
`budget` keeps account of what is held for peers, `principal` is who a peer is, `printable` makes texts of peers safe to
show, and `platform` has what differs between operating systems. `blockages` is what has blocked event loops.
"""

from __future__ import annotations

import importlib

from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_actors.supervision.printable import printable, safe, safe_json, spelled_out, without_paths

__all__ = [
    "STREAM_GRACE",
    "TASKS",
    "Account",
    "Blockage",
    "Budget",
    "BudgetStatistics",
    "Containment",
    "Cost",
    "Crash",
    "CrashLog",
    "Limited",
    "Principal",
    "TaskKind",
    "crash_log",
    "flush_to_stderr",
    "holder_of",
    "log",
    "logger",
    "outliving",
    "printable",
    "reraised",
    "safe",
    "safe_json",
    "spelled_out",
    "start",
    "start_again",
    "start_and_wait",
    "wait_until_written",
    "without_paths",
    "write_to_stderr",
]

# What needs Trio is loaded when it is first asked for: rooms that know no Trio import the others, and a process that
# runs functions imports those rooms. ``__init__.pyi`` tells type checkers what there is.
_NAMES = {
    "blockages": ("Blockage",),
    "budget": ("Account", "Budget", "BudgetStatistics", "Limited", "holder_of"),
    "containment": (
        "Containment", "Cost", "Crash", "CrashLog", "TaskKind",
        "crash_log", "outliving", "reraised", "start", "start_again", "start_and_wait",
    ),
    "logging": ("flush_to_stderr", "log", "logger", "wait_until_written", "write_to_stderr"),
    "task_kinds": ("TASKS",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Loads a name of the table above when it is first asked for.

    Raises:
        AttributeError: The name does not exist.
    """
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
