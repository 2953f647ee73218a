"""Reads keys from a terminal, one by one and without an echo."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import trio

__all__ = ["keys", "one_by_one", "split"]

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1bOC": "right", b"\x1bOD": "left", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[3~": "delete",
}  # fmt: skip
_SINGLE = {0x1B: "escape", 0x0D: "enter", 0x0A: "enter", 0x7F: "backspace", 0x08: "backspace", 0x09: "tab"}
_READ_BYTES = 1024


def split(data: bytes) -> Iterator[str]:
    """Yields the names of the keys of which ``data`` came: a character, or a word such as ``"page up"``.

    Unknown sequences are left out.
    """
    while data:
        if data.startswith((b"\x1b[", b"\x1bO")):
            end = next((n for n in range(2, len(data)) if 0x40 <= data[n] <= 0x7E), len(data) - 1) + 1
            sequence, data = data[:end], data[end:]
            if sequence in _SEQUENCES:
                yield _SEQUENCES[sequence]
        elif data[0] in _SINGLE:
            yield _SINGLE[data[0]]
            data = data[1:]
        else:
            size = next((n for n in range(1, len(data)) if data[n] & 0xC0 != 0x80), len(data))
            text, data = data[:size].decode("utf-8", "ignore"), data[size:]
            if text.isprintable():
                yield from text


@contextmanager
def one_by_one() -> Iterator[int | None]:
    """Has the terminal of standard input hand over each key at once, for the length of a ``with`` block.

    Yields its descriptor, ``None`` where keys cannot be had: standard input is no terminal, or the system is Windows.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield None
        return
    termios: Any = importlib.import_module("termios")
    tty: Any = importlib.import_module("tty")
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Ctrl-C stays a signal.
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def keys(descriptor: int) -> AsyncGenerator[str, None]:
    """Yields the keys that are pressed, until the terminal is gone."""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            return
        if not data:
            return
        for key in split(data):
            yield key
