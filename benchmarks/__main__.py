"""``python -m benchmarks NAME``: runs one measurement."""

from __future__ import annotations

import importlib
import sys

from benchmarks import beside_official, load
from benchmarks.http import command as http

COMMANDS = {"beside_official": beside_official.main, "load": load.main, "http": http.main}

# Loaded when asked for: they need the extra "benchmarks".
SUITE = ("run", "compare", "report", "list")

USAGE = """usage: python -m benchmarks NAME [--help] ...

  run               the suite: every scenario on every transport for every peer; --quick: under five minutes
  compare           what became slower or faster between two runs, and how sure that is
  report            Markdown and one HTML page with plots from the results of a run
  list              scenarios, transports and peers
  beside_official   one figure each, ours beside the official Python SDK, in one run
  load              raw load on one stdio server of your choice; also the way to profile one
  http              the same over HTTP, and what sessions, disconnects and stalled readers cost
"""


def main(arguments: list[str]) -> int:
    if arguments[:1] and arguments[0] in SUITE:
        code: int = importlib.import_module("benchmarks.suite.command").main(arguments)
        return code
    if not arguments or arguments[0] not in COMMANDS:
        print(USAGE, end="")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
