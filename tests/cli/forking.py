"""Runs ``mcp-actors`` many times without starting the interpreter as often: to import the package is most of a run.

A process that has imported the commands and done nothing else waits at a socket. For each run it is sent words, an
environment, a folder and three descriptors, and forks. The child leaves this loop, becomes ``python -m mcp_actors``,
and ends as any interpreter ends.

``python forking.py DESCRIPTOR`` is that process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path

__all__ = ["ForkingServer"]

LARGEST = 1 << 20  # bytes of a request, most of which is the environment


class ForkingServer:
    """The process, as those see it that have it run commands."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def run(
        self, words: list[str], text: str, folder: Path, environment: dict[str, str], limit: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured output; raises `TimeoutError` after ``limit`` seconds."""
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_error, theirs_error) = (
            os.pipe(),
            os.pipe(),
            os.pipe(),
        )
        request = json.dumps([words, str(folder), environment]).encode()
        self._socket.settimeout(limit)
        socket.send_fds(self._socket, [request], [theirs_in, theirs_out, theirs_error])
        for descriptor in (theirs_in, theirs_out, theirs_error):
            os.close(descriptor)
        said: dict[int, str] = {}
        readers = [threading.Thread(target=_read, args=(each, said)) for each in (ours_out, ours_error)]
        for reader in readers:
            reader.start()
        try:
            with open(ours_in, "w") as stdin:
                stdin.write(text)
        except BrokenPipeError:
            pass  # it has ended without reading it
        pid, status = json.loads(self._socket.recv(100))
        for reader in readers:
            reader.join(limit)
        assert pid
        return subprocess.CompletedProcess(
            ["mcp-actors", *words], os.waitstatus_to_exitcode(status), said[ours_out], said[ours_error]
        )


def _read(descriptor: int, said: dict[int, str]) -> None:
    with open(descriptor) as file:
        said[descriptor] = file.read()


def next_run(requests: socket.socket) -> list[str]:
    """Returns the words of a run, in the child that shall be it. The process itself stays here as long as it lives."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not request:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            words, folder, environment = json.loads(request)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            return [str(word) for word in words]
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(json.dumps(os.waitpid(pid, 0)).encode())


if __name__ == "__main__":
    commands = importlib.import_module("mcp_actors.cli")
    for each in pkgutil.iter_modules(commands.__path__, "mcp_actors.cli."):
        importlib.import_module(each.name)
    # Else each run collects at its end what it has not made, which takes longer than the rest of it.
    gc.collect()
    gc.freeze()
    sys.argv[1:] = next_run(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = os.getcwd()
    runpy.run_module("mcp_actors", run_name="__main__", alter_sys=True)
