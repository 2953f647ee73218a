"""The types of the public names, some of which are loaded late: see ``__init__.py``."""

from mcp_actors.supervision.blockages import Blockage
from mcp_actors.supervision.budget import Account, Budget, BudgetStatistics, Limited, holder_of
from mcp_actors.supervision.containment import (
    Containment,
    Cost,
    Crash,
    CrashLog,
    TaskKind,
    crash_log,
    outliving,
    reraised,
    start,
    start_again,
    start_and_wait,
)
from mcp_actors.supervision.logging import (
    flush_to_stderr,
    log,
    logger,
    wait_until_written,
    write_to_stderr,
)
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_actors.supervision.printable import printable, safe, safe_json, spelled_out, without_paths
from mcp_actors.supervision.task_kinds import TASKS

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
