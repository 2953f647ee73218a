"""The command of a child as Windows wants it: one line of text, and a batch file through its interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["full_environment", "words_to_start"]

_BATCH = (".bat", ".cmd")
# Nothing quotes them in a batch file: a percent sign names a variable even between quotation marks.
_UNQUOTABLE = frozenset('"%\r\n\0')
# Without it a program cannot load what it needs for sockets and random numbers.
_NEEDED = "SYSTEMROOT"


def words_to_start(command: Sequence[str], env: Mapping[str, str] | None) -> str | list[str]:
    """Returns what `subprocess.Popen` is to be given, so that ``npx`` is found although it is a file ``npx.cmd``.

    A batch file is run by ``cmd.exe``, whose rules of quoting differ from those of all programs. Everything is put
    between quotation marks there, and what they cannot protect is refused: it could run another command.

    Args:
        command: The program and its arguments.
        env: The environment of the child, whose path is searched; ``None`` for that of this process.

    Raises:
        ValueError: An argument of a batch file cannot be handed over.
        OSError: The command is a batch file, and there is no interpreter of commands.
    """
    environment = os.environ if env is None else env
    found = shutil.which(command[0], path=_variable(environment, "PATH")) or command[0]
    if not found.lower().endswith(_BATCH):
        return [found, *command[1:]]
    if any(_UNQUOTABLE.intersection(each) for each in (found, *command[1:])):
        raise ValueError(
            "it is a batch file, and no argument of one can have a quotation mark, a percent sign or a new line:"
            " start the program itself, such as node.exe with the script"
        )
    interpreter = _variable(os.environ, "COMSPEC") or "cmd.exe"
    # /d: no command of the registry before it; /v:off: an exclamation mark is one; /s: the outer marks are taken off.
    words = " ".join(_quoted(each) for each in (found, *command[1:]))
    return f'{subprocess.list2cmdline([interpreter])} /d /e:on /v:off /s /c "{words}"'


def full_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with the one variable that no program can do without.

    Args:
        env: The environment.
    """
    root = _variable(os.environ, _NEEDED)
    if root is None or _variable(env, _NEEDED) is not None:
        return dict(env)
    return {**env, _NEEDED: root}


def _variable(environment: Mapping[str, str], name: str) -> str | None:
    """Looks for a variable: the names have no case."""
    return next((value for each, value in environment.items() if each.upper() == name), None)


def _quoted(word: str) -> str:
    # The program behind the batch file takes a backslash before a quotation mark for an escape.
    backslashes = len(word) - len(word.rstrip("\\"))
    return f'"{word}{backslashes * chr(92)}"'
