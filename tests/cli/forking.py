"""Runs ``mcp-actors`` many times without starting the interpreter as often: to import the package is most of a run.

A process that has imported the commands and done nothing else waits at a socket. For each run it is sent words, an
environment, a folder and descriptors, and forks. The child leaves this loop, becomes ``python -m mcp_actors``, and
ends as any interpreter ends. Between the two is a process that waits for its end and says how it was.

``python forking.py DESCRIPTOR`` is the first of them.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["ForkedProcess", "ForkingServer"]

LARGEST = 1 << 20  # bytes of a request, most of which is the environment
START_WITHIN = 60.0  # seconds


class ForkedProcess:
    """A run that has begun; its methods are those of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], status: socket.socket) -> None:
        self.args = ["mcp-actors", *words]
        self.returncode: int | None = None
        self._status = status
        status.settimeout(START_WITHIN)
        self.pid = int(status.recv(100))

    def poll(self) -> int | None:
        with suppress(TimeoutError, BlockingIOError):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises `TimeoutError` if it has not ended by then, and `BlockingIOError` if nothing is waited for."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._status.recv(100)))
            self._status.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkingServer:
    """The process that forks, as those see it that have it run commands."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def start(
        self,
        words: Sequence[str],
        descriptors: tuple[int, int, int],
        folder: Path,
        environment: Mapping[str, str],
        *,
        on_terminal: bool = False,
    ) -> ForkedProcess:
        """Begins a run with three descriptors of standard streams, which the caller closes.

        Args:
            on_terminal: Whether the first one is a terminal, which then is its own, so that keys are signals.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([words, str(folder), dict(environment), on_terminal]).encode()
        with theirs:
            socket.send_fds(self._socket, [request], [*descriptors, theirs.fileno()])
        return ForkedProcess(words, ours)

    def run(
        self, words: list[str], text: str, folder: Path, environment: dict[str, str], limit: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured output; raises `TimeoutError` after ``limit`` seconds."""
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_error, theirs_error) = (
            os.pipe(),
            os.pipe(),
            os.pipe(),
        )
        theirs = (theirs_in, theirs_out, theirs_error)
        process = self.start(words, theirs, folder, environment)
        for descriptor in theirs:
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
        code = process.wait(limit)
        for reader in readers:
            reader.join(limit)
        return subprocess.CompletedProcess(process.args, code, said[ours_out], said[ours_error])


def _read(descriptor: int, said: dict[int, str]) -> None:
    with open(descriptor) as file:
        said[descriptor] = file.read()


def next_run(requests: socket.socket) -> list[str]:
    """Returns the words of a run, in the child that shall be it. The process itself stays here as long as it lives."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            *streams, status = descriptors
            pid = os.fork()
            if pid == 0:
                os.close(status)
                return become(request, streams)
            for descriptor in streams:
                os.close(descriptor)
            os.write(status, str(pid).encode())
            with suppress(BrokenPipeError):  # nobody asks any more
                os.write(status, str(os.waitpid(pid, 0)[1]).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def become(request: bytes, streams: list[int]) -> list[str]:
    """Makes this process what a run is that an interpreter has just begun; returns its words."""
    words, folder, environment, on_terminal = json.loads(request)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if on_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # It may be ignored by whoever runs the tests, as in the background of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return [str(word) for word in words]


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
