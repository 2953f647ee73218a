"""A program of Windows on a terminal of its own, at which a person types."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

__all__ = ["CTRL_C", "Terminal", "terminal"]

CTRL_C = b"\x03"
# Wide enough for a URL.
_ROWS, _COLUMNS = 40, 1000
# Wine's console asks where the cursor is, and waits for the answer.
_WHERE, _AT_THE_TOP = b"\x1b[6n", b"\x1b[1;1R"
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07")


class Terminal:
    """What a program has drawn, and where keys are typed."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, patience: float) -> None:
        self.process = process
        self._master = master
        self._patience = patience
        self._drawn = b""

    @property
    def text(self) -> str:
        """All that was drawn, without colours, movements and breaks of lines."""
        return " ".join(_SEQUENCE.sub("", self._drawn.decode(errors="replace")).split())

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, done: Callable[[], bool]) -> None:
        """Waits until something is there, while what the program draws is read."""
        end = time.monotonic() + self._patience
        while not done():
            assert time.monotonic() < end, self.text
            self._read()
            assert done() or self.process.poll() is None, (
                f"it ended with {self.process.returncode}: {self.text}"
            )

    def wait(self) -> int:
        """Waits for the end of the program, and returns its exit code."""
        end = time.monotonic() + self._patience
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):  # the end of the program closes the terminal
                piece = os.read(self._master, 65536)
                self._drawn += piece
                if _WHERE in piece:
                    self.type(_AT_THE_TOP)


@contextlib.contextmanager
def terminal(command: list[str], env: dict[str, str], patience: float) -> Iterator[Terminal]:
    """Runs a program on a terminal for the length of a block, whose end it does not survive."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    # The terminal becomes that of a session of its own, so that its Ctrl-C arrives.
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**env, "TERM": "xterm"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master, patience)
    finally:
        process.kill()
        process.wait()
        os.close(master)
