"""``python -m benchmarks http WHAT``: one measurement of one server over HTTP, as JSON."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.http.disconnect import measure_disconnect
from benchmarks.http.load import measure_http
from benchmarks.http.sessions import measure_sessions
from benchmarks.http.stalled import measure_stalled
from benchmarks.suite.process import LoadError

__all__ = ["main"]


def _load(command: list[str], options: argparse.Namespace) -> Any:
    connections = options.number or 32
    return measure_http(command, era=options.era, seconds=options.seconds, connections=connections)


def _sessions(command: list[str], options: argparse.Namespace) -> Any:
    return measure_sessions(command, sessions=options.number or 10_000)


def _disconnect(command: list[str], options: argparse.Namespace) -> Any:
    return measure_disconnect(command, disconnects=options.number or 50)


def _stalled(command: list[str], options: argparse.Namespace) -> Any:
    return measure_stalled(command, seconds=options.seconds, connections=options.number or 200)


MEASUREMENTS: dict[str, Callable[[list[str], argparse.Namespace], Any]] = {
    "load": _load,
    "sessions": _sessions,
    "disconnect": _disconnect,
    "stalled": _stalled,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks http",
        usage="%(prog)s WHAT [options] [-- COMMAND ...]",
        description="Measures one server over HTTP. load: calls per second; sessions: memory of idle sessions; "
        "disconnect: from a client's close to the handler's end; stalled: the p99 beside a client that never reads. "
        "COMMAND starts the server, with its port behind it (default: python -m benchmarks.peers.ours_http).",
        epilog="To see where a server spends its time, let a profiler start it: pip install py-spy, then\n"
        "  python -m benchmarks http load --seconds 10 --prefix 'py-spy record -r 500 -o profile.svg --'\n"
        "or, for the hottest lines as text, '... -f raw -o profile.txt --'.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=list(MEASUREMENTS))
    parser.add_argument("--era", choices=["legacy", "modern"], default="modern", help="of load")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of load and stalled (default: %(default)s)"
    )
    parser.add_argument(
        "--number",
        type=int,
        default=0,
        help="connections (32 of load, 200 of stalled), sessions (10,000) or disconnects (50)",
    )
    parser.add_argument(
        "--prefix", default="", help="a command that starts the server's command, as a profiler does"
    )
    return parser


def main(arguments: list[str]) -> int:
    # Not left to argparse, which takes no command behind options that follow a positional argument.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = _parser().parse_args(arguments[:cut])
    server = arguments[cut + 1 :] or [sys.executable, "-m", "benchmarks.peers.ours_http"]
    try:
        measured = MEASUREMENTS[options.what](shlex.split(options.prefix) + server, options)
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(measured)))
    return 0
