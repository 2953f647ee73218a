"""The words with which a client starts a server, the variables that it gets, and the name of its entry."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from mcp_actors.cli.failures import WrongUsage

__all__ = ["name_from", "named", "started_with", "variables"]

# What every client takes as a name, those that make names of tools of it included.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def started_with(target: str, args: Sequence[str]) -> list[str]:
    """Returns the words that start a server wherever a client starts them: nothing in them is relative.

    Args:
        target: As for ``mcp-actors serve``, or the ``.json`` file of a gateway.
        args: Those for the function that makes the server. One that names a file or folder is made absolute.

    Raises:
        WrongUsage: There is no such file, it takes no arguments, or this interpreter cannot say where it is.
    """
    if not sys.executable:
        raise WrongUsage("this Python cannot say where it is, so that no client could start it")
    # With -P nothing of the folder that a client starts it in is imported: it may be a project of anybody's.
    start = [sys.executable, "-P", "-m", "mcp_actors"]
    if target.endswith(".json"):
        if args:
            raise WrongUsage("a gateway takes no ARGS: what its servers are given is in its file")
        if not os.path.isfile(target):
            raise WrongUsage(f"there is no file {target}")
        return [*start, "gateway", os.path.abspath(target)]
    command = [*start, "serve", _absolute(target)]
    return [*command, "--", *(_if_there(arg) for arg in args)] if args else command


def _absolute(target: str) -> str:
    if "://" in target or target.startswith("stdio:"):
        raise WrongUsage(f"{target} is a URL: TARGET is a .py file, a module or the .json file of a gateway")
    place, colon, attribute = ("", "", "") if os.path.exists(target) else target.rpartition(":")
    if not place:
        place, colon, attribute = target, "", ""
    if not place.endswith(".py") and os.sep not in place:
        return target  # a module
    if not os.path.isfile(place):
        raise WrongUsage(f"there is no file {place}")
    return f"{os.path.abspath(place)}{colon}{attribute}"


def _if_there(arg: str) -> str:
    return os.path.abspath(arg) if arg and os.path.exists(arg) else arg


def variables(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of ``--env``: ``NAME=VALUE``, or ``NAME`` for the value that it has here.

    Raises:
        WrongUsage: A word is neither, or a variable is given twice or not set here. No value is shown.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise WrongUsage("--env takes NAME=VALUE, or NAME for the value that it has here")
        if name in found:
            raise WrongUsage(f"the variable {name} is given twice")
        if not equals and name not in environ:
            raise WrongUsage(f"the variable {name} is not set here: write --env {name}=VALUE")
        found[name] = value if equals else environ[name]
        if "\0" in found[name]:
            raise WrongUsage(f"the variable {name} has a NUL character, which no program can be given")
    return found


def named(name: str) -> str:
    """Returns a name that was given, if every client takes it.

    Raises:
        WrongUsage: Not every client does.
    """
    if not _NAME.fullmatch(name):
        raise WrongUsage(
            f"{name!r} is no name for an entry: letters, digits, - and _, 64 at most, the first one a letter or digit"
        )
    return name


def name_from(server: str) -> str:
    """Returns a name for the entry of a server that calls itself ``server``.

    Raises:
        WrongUsage: Nothing is left of it that every client takes.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", server).strip("-_")[:64]
    if not name:
        raise WrongUsage(f"no name can be made of {server[:64]!r}, the server's own: give one with --name")
    return name
