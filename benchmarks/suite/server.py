"""Starts, watches and ends the process of a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import deque
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.suite.process import cpu_seconds, peak_mib, resident_kib
from benchmarks.suite.programs.telling import TELL
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.streams import Ends

__all__ = [
    "END_WITHIN_SECONDS",
    "PROFILE_WITHIN_SECONDS",
    "ROOT",
    "HandlerEvents",
    "ServerProcess",
    "free_port",
]

ROOT = Path(__file__).parent.parent.parent
START_WITHIN_SECONDS = 30.0
# Some servers never end by themselves; a profiler takes its time to write.
END_WITHIN_SECONDS, PROFILE_WITHIN_SECONDS = 1.0, 30.0
LOOK_EVERY_SECONDS = 0.005
STREAMS = "MCP_BENCHMARK_STREAMS"


KEPT_PORTS = 100
"""Ports that were given away last: far more than one job has servers."""
_kept: deque[socket.socket] = deque()


def free_port() -> int:
    """Returns a port for a program that is told one.

    Nobody else gets it before that program has come to listen there: it stays bound here without a listener, so that
    the system gives it to no other socket by itself, and a server that names it gets it, as servers do that may be
    started again at once (``SO_REUSEADDR``).
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    if len(_kept) > KEPT_PORTS:
        _kept.popleft().close()
    port: int = kept.getsockname()[1]
    return port


class HandlerEvents:
    """Reads the events that handlers wrote with `benchmarks.suite.programs.telling`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._seen = 0

    def all(self) -> list[tuple[str, float]]:
        """Returns the new events: words and their times."""
        with self.path.open("rb") as file:
            file.seek(self._seen)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        pairs = [line.decode().partition(" ") for line in whole.splitlines()]
        return [(word, float(number)) for word, _, number in pairs]


class ServerProcess:
    """Runs ``command`` for the length of a ``with`` block. Its pid is 0 when it is this process itself."""

    def __init__(
        self,
        command: list[str],
        url: str,
        port: int,
        directory: Path,
        *,
        streams: bool,
        end_within: float = END_WITHIN_SECONDS,
    ) -> None:
        self.url = url
        self.port = port
        self.events = HandlerEvents(directory / "events")
        parts = urlsplit(url)
        self.socket_path = ""
        if "unix" in parts.scheme:
            self.socket_path = unquote(parts.netloc) or parts.path
        self._open = False
        self._end_within = end_within
        self._stderr = directory / "stderr"
        self._piped = url == "stdio:"
        environment = os.environ | {TELL: str(self.events.path)} | ({STREAMS: "1"} if streams else {})
        # A start is not to compile anew what an earlier one has compiled, as an installation has.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        pipe = subprocess.PIPE if self._piped else subprocess.DEVNULL
        try:
            with self._stderr.open("wb") as stderr:
                # A group of its own: a signal reaches a profiler and what it profiles.
                self._process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdin=pipe,
                    stdout=pipe,
                    stderr=stderr,
                    bufsize=0,
                    start_new_session=True,
                )
        except OSError as error:
            raise LoadError(f"{command[0]}: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        return [self.pid]

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def peak_mib(self) -> float:
        return peak_mib(self.pid)

    def resident_kib(self) -> int:
        return resident_kib(self.pid)

    def take_pipes(self) -> Ends:
        """Its standard input and output: the one connection of a stdio server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ends = self._process.stdout.fileno(), self._process.stdin.fileno()
        for descriptor in ends:
            os.set_blocking(descriptor, False)
        return Ends(*ends, self._process.stdin.close)

    def wait_until_open(self) -> None:
        """Until connections are accepted. Raises `LoadError` if that takes too long or the process ends."""
        deadline = time.monotonic() + START_WITHIN_SECONDS
        while not self._open:
            family = socket.AF_UNIX if self.socket_path else socket.AF_INET
            with socket.socket(family) as connection:
                try:
                    connection.connect(self.socket_path or ("127.0.0.1", self.port))
                    self._open = True
                    return
                except OSError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise LoadError(f"{self.url} is not served{self.complaint()}") from error
            time.sleep(LOOK_EVERY_SECONDS)

    def complaint(self) -> str:
        """Returns the last lines of the server's stderr."""
        lines = self._stderr.read_text(errors="replace").strip().splitlines()[-4:]
        return ": " + " / ".join(lines) if lines else ""

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not (self._piped and self._ended()) and self._process.poll() is None:
            os.killpg(self.pid, signal.SIGINT)
            if not self._ended():
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ended(self) -> bool:
        try:
            self._process.wait(self._end_within)
        except subprocess.TimeoutExpired:
            return False
        return True
