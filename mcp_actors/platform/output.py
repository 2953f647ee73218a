"""The encoding of what a program prints."""

from __future__ import annotations

import io
import sys

__all__ = ["write_utf8"]


def write_utf8() -> None:
    """Has standard output and standard error take any character when they are pipes or files.

    For programs on Windows, which would encode them by the code page of the machine and fail at what is not in it. A
    console takes every character already.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")
