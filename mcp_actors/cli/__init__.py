"""The command line ``mcp-actors``: `main`, which catches signals and then loads everything else.

`commands` has the table of all commands, and says where each is; `start` has what signals do meanwhile.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence

from mcp_actors.cli.start import Start

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        args: The words after the name of the program. By default they are those of the process, which then is the
            command line for as long as it lives, and its signals do what `mcp_actors.cli.start` says.

    Raises:
        SystemExit: Always, with the exit code that ``mcp-actors --help`` lists.
    """
    start = None
    if args is None and threading.current_thread() is threading.main_thread():
        start = Start(sys.argv[1:])
        start.catch()
    importlib.import_module("mcp_actors.cli.commands").run(args, start)
