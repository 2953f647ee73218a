"""Runs the process of a load, and passes on what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from mcp_actors.bench.plan import LoadPlan
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure
from mcp_actors.platform.signals import STOP_SIGNALS

__all__ = ["run_process"]

# From the result, or from being told, to the end of the process: servers over stdio take their time to end.
_END_WITHIN_SECONDS = 15.0


class _LoadStopped(CommandFailure):
    """Ctrl-C came a second time, or before there was a figure."""

    exit_code = EXIT_INTERRUPTED


class _Stops:
    """Ctrl-C ends the load early, with its figures; the second one ends the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.count = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._process.poll() is None:
            if self.count == 1:
                self._process.terminate()
            else:
                self._process.kill()


def run_process(plan: LoadPlan, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Returns the results of the load, as `mcp_actors.bench.load.RunningLoad.run` does.

    Args:
        plan: The load.
        show: Is called with each report, some times a second.

    Raises:
        CommandFailure: There is no figure; the text says why.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "mcp_actors.cli.bench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # The terminal sends Ctrl-C to its whole group; here one process decides what becomes of it.
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stops = _Stops(process)
        before = [(number, signal.signal(number, stops)) for number in STOP_SIGNALS]
        try:
            process.stdin.write(plan.to_json() + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = {}
            for line in process.stdout:
                answer = json.loads(line)
                if "result" not in answer and "failure" not in answer:
                    show(answer)
        except BrokenPipeError:
            answer = {}
        finally:
            if "result" not in answer and process.poll() is None:
                process.terminate()
            try:
                process.wait(_END_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            for number, handler in before:
                signal.signal(number, handler)
    if "result" in answer:
        result: dict[str, Any] = answer["result"]
        return result
    if stops.count:
        raise _LoadStopped("the load was ended before there were figures")
    raise CommandFailure(answer.get("failure") or f"the process of the load ended with {process.returncode}")
