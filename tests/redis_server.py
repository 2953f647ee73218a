"""A Redis server of a test's own, which can be slow, away, restarted empty, or full."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

__all__ = ["RedisServer"]

_PATIENCE = 20.0


class RedisServer:
    """A process ``redis-server``, or another with its protocol, in a temporary folder.

    It listens on a Unix socket and keeps nothing on disk.
    """

    def __init__(self, *arguments: str, program: str = "redis-server") -> None:
        self._arguments = arguments
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.path = str(self._folder / "redis.sock")
        self._process: subprocess.Popen[bytes] | None = None
        self._ways = 0

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Starts it, empty, and waits until it answers."""
        program = shutil.which(self._program)
        assert program is not None, f"{self._program} is not installed: apt-get install redis-server"
        always = ["--port", "0", "--unixsocket", self.path, "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(
            [program, *always, *self._arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + _PATIENCE
        while self._ask("PING") != "PONG":
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends it at once; what it had is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Makes it slow beyond all bounds: it takes connections, and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends `stop`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def new_way(self) -> str:
        """Returns another path at which it is reached, for one client."""
        self._ways += 1
        way = f"{self.path}.{self._ways}"
        os.symlink(self.path, way)
        return way

    def take_over(self, way: str) -> None:
        """Has a way of another server lead here, for new connections."""
        os.unlink(way)
        os.symlink(self.path, way)

    def cut_off(self, way: str, node: str) -> None:
        """Cuts one node's connections, and the way by which it comes back."""
        os.unlink(way)
        self.disconnect(node)

    def disconnect(self, node: str = "") -> None:
        """Cuts the connections of one node, or all."""
        for line in self.do("CLIENT", "LIST").splitlines():
            shown = dict(each.partition("=")[::2] for each in line.split())
            if node in shown["name"] and shown["name"]:
                self.do("CLIENT", "KILL", "ID", shown["id"])

    def do(self, *command: str) -> str:
        """Runs a command of Redis, and returns its answer as ``redis-cli`` prints it."""
        answer = self._ask(*command)
        assert answer is not None, f"redis-server does not answer {command[0]}"
        return answer

    def _ask(self, *command: str) -> str | None:
        try:
            done = subprocess.run(
                ["redis-cli", "-s", self.path, *command], capture_output=True, timeout=_PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout.decode().strip() if done.returncode == 0 else None
