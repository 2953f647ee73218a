"""Command lines, the encoding of output, signals and typed input, which differ between operating systems."""

from __future__ import annotations

import errno
import importlib
import io
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import trio

__all__ = [
    "STOP_SIGNALS",
    "join_words",
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
