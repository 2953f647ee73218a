"""A server that is measured: a process of its own that listens on a port that it was given."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from types import TracebackType

from benchmarks.suite.process import LoadError

__all__ = ["ListeningServer"]

START_WITHIN_SECONDS = 30.0
END_WITHIN_SECONDS = 10.0
LOOK_EVERY_SECONDS = 0.02


class ListeningServer:
    """Starts ``command PORT``, waits until it accepts connections, and ends it with the block."""

    def __init__(self, command: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        try:
            # A group of its own: a signal reaches a profiler and what it profiles.
            self._process = subprocess.Popen(
                [*command, str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise LoadError(f"{command[0]}: {error.strerror}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> ListeningServer:
        deadline = time.monotonic() + START_WITHIN_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__(None, None, None)
                    raise LoadError(f"{self._process.args!r} does not listen; start it by hand") from None
                time.sleep(LOOK_EVERY_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGINT)
            try:
                self._process.wait(END_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def told(self, word: str, within: float) -> float | None:
        """The number on the next line ``word NUMBER`` of what the server prints, or nothing within that time."""
        deadline = time.monotonic() + within
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            for position, line in enumerate(lines):
                said, _, number = line.decode().partition(" ")
                if said == word:
                    self._unread = b"\n".join([*lines[position + 1 :], self._unread])
                    return float(number)
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._output, 65536)
            if not chunk:
                raise LoadError("the server has ended; start it by hand to see why")
            self._unread += chunk
