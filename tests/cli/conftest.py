from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

if sys.platform != "win32":  # which has no terminals of this kind, and starts each program anew
    import pty

    from tests.cli.forking import ForkedProcess, ForkingServer

ROOT = Path(__file__).parents[2]
SERVED = Path(__file__).with_name("served.py")
LIMIT = 120  # seconds: nothing here takes a tenth of it

Ran = subprocess.CompletedProcess[str]
Started = Callable[..., AbstractContextManager[subprocess.Popen[str]]]
Mcp = Callable[..., Ran]
CTRL_C = b"\x03"
# SIGINT may be ignored by whoever runs the tests, as in the background of a shell, and a program inherits that. On a
# terminal of its own it has its default action.
AS_SESSION_LEADER = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def checkout_environment() -> dict[str, str]:
    """That of the tests, with the checkout importable and without colours forced on or off."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    path = [str(ROOT), str(ROOT / "transports"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path), "TERM": "xterm-256color", "COLUMNS": "120"}


@pytest.fixture
def environment() -> dict[str, str]:
    return checkout_environment()


@pytest.fixture(scope="session")
def forking_server() -> Iterator[ForkingServer | None]:
    if sys.platform == "win32":
        yield None
        return
    server = ForkingServer(checkout_environment())
    yield server
    server.close()


@pytest.fixture
def mcp(
    forking_server: ForkingServer | None, environment: dict[str, str], tmp_path: Path
) -> Callable[..., Ran]:
    """Runs ``mcp-actors`` with words, without a terminal, in an empty directory."""

    def run(*words: str, text: str = "") -> Ran:
        if forking_server is None:
            command = [sys.executable, "-m", "mcp_actors", *words]
            given = {
                "input": text,
                "encoding": "utf-8",
                "timeout": LIMIT,
                "cwd": tmp_path,
                "env": environment,
            }
            return subprocess.run(command, capture_output=True, check=False, **given)
        return forking_server.run(list(words), text, tmp_path, environment, LIMIT)

    return run


@pytest.fixture
def started(environment: dict[str, str]) -> Started:
    """Starts ``mcp-actors`` with words for the length of a block, whose end it does not survive, nor ``limit``."""

    @contextmanager
    def start(*words: str, limit: float = LIMIT, **options: Any) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "mcp_actors", *words]
        with subprocess.Popen(command, text=True, env=environment, **options) as process:
            watchdog = threading.Timer(limit, process.kill)  # whoever waits for a line of it waits no longer
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                process.kill()

    return start


def announced(said: IO[str]) -> str:
    """The next line that says where something is served. On a busy machine a line of the log may be before it."""
    for line in said:
        if line.startswith("serving "):
            return line
    raise AssertionError("it ended before it served")


@pytest.fixture(scope="session")
def socket_url() -> Iterator[str]:
    """The URL of one process with the server of ``served.py``, for tests that are about what is said and shown."""
    with tempfile.TemporaryDirectory() as folder:
        at = f"unix://{folder}/served"
        command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVED), "--listen", at]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=checkout_environment()
        ) as process:
            assert process.stderr is not None
            assert at in announced(process.stderr)
            yield at
            process.kill()


@pytest.fixture
def url() -> str:
    """A URL that starts the server of ``served.py``."""
    return "stdio:" + shlex.join([sys.executable, "-m", "mcp_actors", "serve", str(SERVED)])


class Terminal:
    """A program on a terminal of its own; `until` waits for what it draws, within `LIMIT` seconds."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, master: int) -> None:
        self.process = process
        self.master = master
        self.screen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not done():
            assert time.monotonic() < end, self.text
            if not self._read(0.05) and self.process.poll() is not None and not done():
                raise AssertionError(f"it exited with {self.process.returncode}: {self.text}")

    def wait(self) -> int:
        end = time.monotonic() + LIMIT
        while self.process.poll() is None or self._read(0):
            assert time.monotonic() < end, self.text
            self._read(0.05)
        return self.process.returncode

    @property
    def text(self) -> str:
        """All that was drawn, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.screen.decode(errors="replace")).replace(
            "\r\n", "\n"
        )

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux: the other side is closed
            data = b""
        self.screen += data
        return bool(data)


@pytest.fixture
def terminal(
    forking_server: ForkingServer, environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Terminal]]:
    """Starts ``mcp-actors`` with words, or a program, on a terminal of its own."""
    opened: list[Terminal] = []

    def start(*words: str, program: Sequence[str] = (), **more: str) -> Terminal:
        master, slave = pty.openpty()
        process: subprocess.Popen[bytes] | ForkedProcess
        if program:
            process = subprocess.Popen(
                # Ctrl-C becomes SIGINT only on the controlling terminal of a session.
                [sys.executable, "-c", AS_SESSION_LEADER, sys.executable, *program, *words],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                cwd=tmp_path,
                env=environment | more,
            )
        else:
            process = forking_server.start(
                words, (slave, slave, slave), tmp_path, environment | more, on_terminal=True
            )
        os.close(slave)
        opened.append(Terminal(process, master))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait(LIMIT)
        os.close(each.master)
