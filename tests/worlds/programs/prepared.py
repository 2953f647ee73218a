"""Runs other programs here without importing the frameworks for each of them, which is most of a run.

It reads lines of JSON: ``[words, environment, file]`` forks, and the child becomes the program ``words[0]``, in a
session of its own, with its output in the file; ``[pid]`` waits for the end of that process. It answers with the
process's number, or its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys

PREPARED = ("mcp_actors.asyncio", "mcp_actors.sync", "mcp_transports.stdio", "mcp_transports.http")
ASGI = ("fastapi", "granian", "hypercorn.asyncio", "hypercorn.trio", "uvicorn", "uvloop")


def next_program() -> list[str]:
    """Returns the words of a program, in the child that shall be it. The process itself stays here until it ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if len(request) == 1:
            print(os.waitstatus_to_exitcode(os.waitpid(request[0], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        words, environment, output = request
        os.setsid()
        os.environ.update(environment)
        for name, flags, number in ((os.devnull, os.O_RDONLY, 0), (output, os.O_WRONLY | os.O_CREAT, 1)):
            descriptor = os.open(name, flags)
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.dup2(1, 2)
        return [str(word) for word in words]
    sys.exit()


if __name__ == "__main__":
    for each in (*PREPARED, *ASGI):
        importlib.import_module(each)
    sys.argv[:] = next_program()
    runpy.run_path(sys.argv[0], run_name="__main__")
