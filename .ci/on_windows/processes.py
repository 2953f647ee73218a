"""Runs programs, of Linux or in Wine, each with a bound on its time, and takes what they print.

A program that Wine starts may start services of Wine, which keep its output open. So the end of a program is the end of
its process, and what is in the pipe then is read without waiting for another end. A regular file in place of the pipe
would not do: CPython for Windows does not start with one under Wine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finished", "end_all", "run"]

# Seconds in which the rest of what an ended program wrote is read.
_REST = 1.0
_PIECE = 64 * 1024
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    code: int | None
    """The exit code; None if it took too long and was ended."""
    output: str
    """Standard output and standard error."""
    seconds: float


def run(
    command: Sequence[str | Path],
    *,
    limit: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Runs a program with an empty standard input until it ends, or is ended with its process group.

    Args:
        command: the program and its arguments.
        limit: seconds.
        env: its whole environment; that of this process by default.
        cwd: its working directory; that of this process by default.

    Raises:
        FileNotFoundError: there is no such program.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        [str(each) for each in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read, args=(process.stdout.fileno(), pieces), daemon=True)
    reader.start()
    _running.add(process)
    code: int | None
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _running.discard(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reader.join(_REST)
    return Finished(code, b"".join(pieces).decode("utf-8", "replace"), time.monotonic() - began)


def end_all() -> None:
    """Ends the programs that other threads run, each with its process group; `run` returns there."""
    for process in list(_running):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _read(pipe: int, pieces: list[bytes]) -> None:
    while piece := os.read(pipe, _PIECE):
        pieces.append(piece)
