"""Command lines, the encoding of output, signals, typed input and the numbers of a process, by operating system."""

from __future__ import annotations

import errno
import importlib
import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import trio

if sys.platform != "win32":
    import resource

__all__ = [
    "STOP_SIGNALS",
    "join_words",
    "process_numbers",
    "split_line",
    "split_windows_line",
    "wait_for_input",
    "write_utf8",
]


# -- commands as one line of text, by the rules of the system's shell ----------------------------------------------


def join_words(words: Sequence[str]) -> str:
    """Returns a line that a person can paste into a shell.

    Args:
        words: The program and its arguments.
    """
    line: str = subprocess.list2cmdline(words) if sys.platform == "win32" else _shell_words().join(words)
    return line


def split_line(line: str) -> list[str]:
    """Returns the words of a line. No shell is asked: there are no variables and no patterns.

    Args:
        line: The program and its arguments.

    Raises:
        ValueError: A quotation mark has no other one.
    """
    words: list[str] = split_windows_line(line) if sys.platform == "win32" else _shell_words().split(line)
    return words


def _shell_words() -> Any:
    # Imported where it is used: a server that is started has no command line of its own.
    return importlib.import_module("shlex")


def split_windows_line(line: str) -> list[str]:
    r"""Returns the words of a line by the rules of the C runtime of Windows, where ``\`` is part of a path.

    Only before a quotation mark a backslash means something: two are one, and an odd one makes the mark a character.
    Two marks within a pair are a mark.

    Args:
        line: The program and its arguments.

    Raises:
        ValueError: A quotation mark has no other one.
    """
    words: list[str] = []
    word: str | None = None
    quoted = False
    at = 0
    while at < len(line):
        backslashes = len(line) - at - len(line[at:].lstrip("\\"))
        at += backslashes
        char = line[at : at + 1]
        if char == '"':
            word = f"{word or ''}{backslashes // 2 * chr(92)}"
            if backslashes % 2:
                word += '"'
            elif quoted and line[at + 1 : at + 2] == '"':
                word += '"'
                at += 1
            else:
                quoted = not quoted
        elif char and (quoted or char not in " \t\r\n"):
            word = f"{word or ''}{backslashes * chr(92)}{char}"
        else:
            if backslashes:
                word = f"{word or ''}{backslashes * chr(92)}"
            if word is not None:
                words.append(word)
            word = None
        at += 1
    if quoted:
        raise ValueError("No closing quotation")
    return [*words, word] if word is not None else words


# -- the encoding of what a program prints -------------------------------------------------------------------------


def write_utf8() -> None:
    """Has standard output and standard error take any character when they are pipes or files.

    For programs on Windows, which would encode them by the code page of the machine and fail at what is not in it. A
    console takes every character already.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


# -- the signals that end a process --------------------------------------------------------------------------------

if sys.platform == "win32":
    # SIGBREAK is Ctrl-Break, the closing of the console's window, and the end of the session. A parent process can send
    # it to a child in a process group of its own. SIGTERM comes from this process alone.
    STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
else:
    STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)


# Seconds between two looks at a terminal that cannot be waited for: no person notices that.
_LOOK_AGAIN = 0.05


async def wait_for_input(descriptor: int) -> None:
    """Waits until a terminal has something to read, or its end.

    macOS's kqueue refuses ``/dev/tty`` with EINVAL, while `select` takes it. Then it is looked at from time to time.

    Args:
        descriptor: The terminal's.

    Raises:
        OSError: The system cannot say whether the descriptor has something to read.
    """
    try:
        await trio.lowlevel.wait_readable(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        while True:
            if select.select((descriptor,), (), (), 0)[0]:
                return
            await trio.sleep(_LOOK_AGAIN)


# -- the numbers of this process -----------------------------------------------------------------------------------


def process_numbers() -> dict[str, float]:
    """Returns what the system says of this process, by the standard names of Prometheus; it may block for a moment.

    What it does not say is left out: on other systems than Linux, the memory, the descriptors and the start.
    """
    numbers: dict[str, float] = {"process_cpu_seconds_total": time.process_time()}
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            numbers["process_max_fds"] = soft
    if sys.platform == "linux":
        try:
            numbers |= _numbers_of_linux()
        except (OSError, ValueError, IndexError, StopIteration):
            return numbers  # there is no /proc here
    return numbers


def _numbers_of_linux() -> dict[str, float]:
    assert sys.platform == "linux"
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", "rb") as memory, open("/proc/self/stat", "rb") as state:
        virtual, resident = map(int, memory.read().split()[:2])
        # The name of the program, in brackets, may have blanks and brackets in it. See proc(5).
        ticks = int(state.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as system:
        booted = next(int(line.split()[1]) for line in system if line.startswith(b"btime "))
    return {
        # The descriptor with which the folder is read is among them.
        "process_open_fds": len(os.listdir("/proc/self/fd")) - 1,
        "process_resident_memory_bytes": resident * page,
        "process_virtual_memory_bytes": virtual * page,
        "process_start_time_seconds": booted + ticks / os.sysconf("SC_CLK_TCK"),
    }
