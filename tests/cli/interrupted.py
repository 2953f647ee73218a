"""``python interrupted.py EVERY FIRST OUT WORD...``: a command that a signal interrupts at many moments.

It runs ``mcp-actors WORD...`` until that begins a Trio loop, and counts the calls of Python functions from the moment
at which it catches signals. At each EVERY-th of them it forks: the child gets SIGTERM or SIGINT and goes on, the
parent waits for its end. What became of each child is a line of JSON in the file OUT: the moment, the exit code, and
what it wrote.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from types import FrameType

LIMIT = 60.0  # seconds for a child, which has to end by itself
FOLLOWED = 20  # frames that say where it was


def main() -> None:
    every, first = map(int, sys.argv[1:3])
    results = open(sys.argv[3], "w")  # noqa: SIM115 - open as long as the process
    sys.argv[1:] = sys.argv[4:]
    # A child here is to be what its parent is, and not a process that a program has forked.
    os.register_at_fork = lambda **_: None  # type: ignore[assignment]
    calls = -1

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event != "call":
            return
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if calls < 0:
            calls += name == "run" and file.endswith("commands.py")
            return
        if name == "run" and "/trio/_core/" in file:
            sys.setprofile(None)
            os._exit(0)
        calls += 1
        if calls % every == first:
            sys.setprofile(None)
            if interrupted(frame):
                return
            sys.setprofile(count)

    def interrupted(frame: FrameType | None) -> bool:
        """Returns whether this is the child, which has got the signal."""
        where = []
        while frame is not None and len(where) < FOLLOWED:
            where.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        said, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(writes, 1)
            os.dup2(writes, 2)
            os.close(said)
            os.close(writes)
            os.kill(os.getpid(), (signal.SIGTERM, signal.SIGINT)[calls // every % 2])
            return True
        os.close(writes)
        code = ended(pid)
        with open(said, "rb") as file:
            text = file.read().decode(errors="replace")
        print(json.dumps([calls, code, text, where]), file=results, flush=True)
        return False

    sys.setprofile(count)
    runpy.run_module("mcp_actors", run_name="__main__", alter_sys=True)


def ended(pid: int) -> int | None:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, 9)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
