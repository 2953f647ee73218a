"""Files of environment variables, ``NAME=VALUE`` in each line, as ``envFile`` names them."""

from __future__ import annotations

import os
import re
import stat

__all__ = ["MAX_ENV_FILE_BYTES", "UnusableFile", "read_env_file", "read_file"]

# Bytes: far more than the environment of a process has room for.
MAX_ENV_FILE_BYTES = 1024 * 1024

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:"(?P<double>(?:[^"\\]|\\.)*+)"|'(?P<single>[^']*+)')\s*(?:#.*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class UnusableFile(Exception):
    """The file cannot be read. The message says why, and shows nothing of it."""


def read_file(path: str | os.PathLike[str], most: int) -> str:
    """Returns the text of a file.

    Args:
        path: The file.
        most: The bytes that it may have.

    Raises:
        UnusableFile: There is none, it cannot be read, is longer, or is no UTF-8.
    """
    try:
        # A pipe would be waited for.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnusableFile("it is no file")
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UnusableFile(f"it cannot be read ({error.strerror})") from error
    except ValueError:
        raise UnusableFile("it is no name of a file") from None
    if len(data) > most:
        raise UnusableFile(f"it has more than {most} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"it is not UTF-8 (byte {error.start})") from None


def read_env_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the variables of a file. Lines may begin with ``export``, and have comments; values may be in quotes.

    Raises:
        UnusableFile: It cannot be read, or has another line.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(read_file(path, MAX_ENV_FILE_BYTES).splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        value = None if found is None or "\0" in stripped else _value(found[2])
        if found is None or value is None:
            raise UnusableFile(f"line {number} is no NAME=VALUE")
        variables[found[1]] = value
    return variables


def _value(text: str) -> str | None:
    """Returns the value that a text stands for, ``None`` if a quotation mark has no other one."""
    if not text.startswith(('"', "'")):
        return _COMMENT.split(text, maxsplit=1)[0].rstrip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return None
    if quoted["single"] is not None:
        return quoted["single"]
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted["double"])
