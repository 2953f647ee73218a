"""Commands as one line of text, by the rules of the shell of the system: POSIX's, or those of Windows."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["join_words", "split_line", "split_windows_line"]


def join_words(words: Sequence[str]) -> str:
    """Returns a line that a person can paste into a shell.

    Args:
        words: The program and its arguments.
    """
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def split_line(line: str) -> list[str]:
    """Returns the words of a line. No shell is asked: there are no variables and no patterns.

    Args:
        line: The program and its arguments.

    Raises:
        ValueError: A quotation mark has no other one.
    """
    return split_windows_line(line) if sys.platform == "win32" else shlex.split(line)


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
