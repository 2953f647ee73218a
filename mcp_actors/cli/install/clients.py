"""The clients that are known, as a table: where each has its file, in which form, and what an entry looks like.

Sources, each as of November 2026: the documentation of Claude Desktop (modelcontextprotocol.io, quickstart for users),
Claude Code (MCP, scopes), Cursor (MCP), Visual Studio Code (MCP configuration reference), Windsurf (Cascade, MCP), Zed
(Model Context Protocol; its folders: crates/paths), Gemini CLI (MCP servers), Cline (configuration), LM Studio (MCP).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from mcp_actors.cli.failures import WrongUsage

__all__ = [
    "CLIENTS",
    "ClientProgram",
    "change_options",
    "is_ours",
    "name_from",
    "named",
    "place_of",
    "started_with",
    "variables",
]


_STARTS = (["-m", "mcp_actors", "serve"], ["-m", "mcp_actors", "gateway"])


@attrs.frozen
class ClientProgram:
    """A program that starts servers which its configuration names."""

    title: str
    folder: str
    """Where its file is: in ``home``, in ``settings`` (that of the system for settings of programs), or in ``dotted``
    (as ``settings``, but ``~/.config`` on macOS too)."""
    path: tuple[str, ...]
    """The file, from there."""
    windows_path: tuple[str, ...] | None = None
    """The same on Windows, where it has another name there."""
    section: str = "mcpServers"
    """The member of the file that holds the entries."""
    comments: bool = False
    """Whether it reads comments, and a comma after the last member; false where that is not documented."""
    typed: bool = False
    """Whether an entry says ``"type": "stdio"``."""
    variable: tuple[str, ...] | None = None
    """An environment variable that names another place, and the path of the file from there."""
    afterwards: str = ""
    """What a person has to do for the change to take effect."""

    def entry(self, words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        """Returns an entry in the form of this client.

        Args:
            words: The program to start, with its arguments.
            env: The variables that it is given beside those that the client hands on.
        """
        entry: dict[str, Any] = {"type": "stdio"} if self.typed else {}
        entry |= {"command": words[0], "args": list(words[1:])}
        return entry | {"env": dict(env)} if env else entry


_RESTART = "quit it and start it again"
_RELOAD = "it reads the file again by itself"

CLIENTS: Mapping[str, ClientProgram] = {
    "claude-desktop": ClientProgram(
        "Claude Desktop", "settings", ("Claude", "claude_desktop_config.json"), afterwards=_RESTART
    ),
    "claude-code": ClientProgram(
        "Claude Code",
        "home",
        (".claude.json",),
        typed=True,
        variable=("CLAUDE_CONFIG_DIR", ".claude.json"),
        afterwards="end its sessions before, because one that runs may write the file again; start it anew",
    ),
    "cursor": ClientProgram("Cursor", "home", (".cursor", "mcp.json"), typed=True, afterwards=_RELOAD),
    "vscode": ClientProgram(
        "Visual Studio Code",
        "settings",
        ("Code", "User", "mcp.json"),
        section="servers",
        comments=True,
        typed=True,
        afterwards="start the server there: MCP: List Servers",
    ),
    "vscode-insiders": ClientProgram(
        "Visual Studio Code Insiders",
        "settings",
        ("Code - Insiders", "User", "mcp.json"),
        section="servers",
        comments=True,
        typed=True,
        afterwards="start the server there: MCP: List Servers",
    ),
    "windsurf": ClientProgram(
        "Windsurf",
        "home",
        (".codeium", "windsurf", "mcp_config.json"),
        afterwards="refresh the list of servers in Cascade",
    ),
    "zed": ClientProgram(
        "Zed",
        "dotted",
        ("zed", "settings.json"),
        windows_path=("Zed", "settings.json"),
        section="context_servers",
        comments=True,
        afterwards=_RELOAD,
    ),
    "gemini-cli": ClientProgram(
        "Gemini CLI", "home", (".gemini", "settings.json"), comments=True, afterwards=_RESTART
    ),
    "cline": ClientProgram(
        "Cline",
        "home",
        (".cline", "data", "settings", "cline_mcp_settings.json"),
        variable=("CLINE_MCP_SETTINGS_PATH",),
        afterwards=_RELOAD,
    ),
    "lm-studio": ClientProgram("LM Studio", "home", (".lmstudio", "mcp.json"), afterwards=_RELOAD),
}


def place_of(
    client: ClientProgram,
    *,
    system: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
) -> Path:
    """Returns where the file of a client is, for this user.

    Args:
        client: A row of `CLIENTS`.
        system: As `sys.platform`.
        environ: The environment variables.
        home: The folder of the user; by default that of the current user.

    Raises:
        RuntimeError: The system cannot say where the folder of the user is.
    """
    if client.variable is not None and os.path.isabs(environ.get(client.variable[0], "")):
        return Path(environ[client.variable[0]], *client.variable[1:])
    folder = Path.home() if home is None else home
    path = client.path
    if client.folder != "home":
        folder = _settings(system, environ, folder, mac=client.folder == "settings")
        if system == "win32" and client.windows_path is not None:
            path = client.windows_path
    return folder.joinpath(*path)


def _settings(system: str, environ: Mapping[str, str], home: Path, *, mac: bool) -> Path:
    if system == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    if system == "darwin":
        return home / "Library" / "Application Support" if mac else home / ".config"
    # The XDG Base Directory Specification has relative paths ignored.
    named = environ.get("XDG_CONFIG_HOME", "")
    return Path(named) if os.path.isabs(named) else home / ".config"


def is_ours(entry: object) -> bool:
    """Returns whether ``mcp-actors install`` has written an entry: it is recognised by what it starts."""
    args = entry.get("args") if isinstance(entry, dict) else None
    return isinstance(args, list) and any(args[at : at + 3] in _STARTS for at in range(len(args)))


# -- The options of the commands that change the file of a client --------------------------------------

_F = TypeVar("_F", bound=Callable[..., Any])


def change_options(function: _F) -> _F:
    """Adds ``--client``, ``--config``, ``--dry-run`` and ``--yes``."""
    for option in (
        click.option("--yes", "-y", is_flag=True, help="Write without asking."),
        click.option("--dry-run", is_flag=True, help="Show the change only."),
        click.option(
            "--config",
            metavar="FILE",
            help="Another file of that client: one of a project, or of a profile.",
        ),
        click.option(
            "--client",
            required=True,
            type=click.Choice(list(CLIENTS)),
            help="The program whose configuration it is.",
        ),
    ):
        function = option(function)
    return function


# -- An entry: how the client starts the server, the variables that it gets, and its name --------------

# What every client accepts as a name, even those that make names of tools from it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def started_with(target: str, args: Sequence[str]) -> list[str]:
    """Returns the words that start a server wherever a client starts them: nothing in them is relative.

    Args:
        target: As for ``mcp-actors serve``, or the ``.json`` file of a gateway.
        args: Those for the function that makes the server. One that names a file or folder is made absolute.

    Raises:
        WrongUsage: The file does not exist, it takes no arguments, or this interpreter cannot say where it is.
    """
    if not sys.executable:
        raise WrongUsage("this Python cannot say where it is, so that no client could start it")
    # With -P nothing is imported from the folder that a client starts it in, which may be any project.
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
