"""The clients that are known, as a table: where each has its file, in which form, and what an entry looks like.

Sources, each as of November 2026: the documentation of Claude Desktop (modelcontextprotocol.io, quickstart for users),
Claude Code (MCP, scopes), Cursor (MCP), Visual Studio Code (MCP configuration reference), Windsurf (Cascade, MCP), Zed
(Model Context Protocol; its folders: crates/paths), Gemini CLI (MCP servers), Cline (configuration), LM Studio (MCP).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

__all__ = ["CLIENTS", "ClientProgram", "is_ours", "place_of"]

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
    """Whether it reads comments, and a comma behind the last member. Where that is not documented: no."""
    typed: bool = False
    """Whether an entry says ``"type": "stdio"``."""
    variable: tuple[str, ...] | None = None
    """An environment variable that names another place, and the path of the file from there."""
    afterwards: str = ""
    """What a person has to do, so that it is noticed."""

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
        home: The folder of the user; by default that of whoever runs this.

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
