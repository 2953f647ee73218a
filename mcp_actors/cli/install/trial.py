"""Starts a server as a client would, before that is written anywhere: most clients do not say why one did not start."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

import click
import trio

from mcp_actors import Client
from mcp_actors.cli.failures import CommandFailure, sentence
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.output import safe
from mcp_actors.errors import McpError

__all__ = ["say_what_lacks", "try_out"]

# Seconds for it to start and to say who it is: clients wait as long, or less.
TRIAL_TIMEOUT = 30.0
# What clients hand on of their environment; the rest of ours may hold secrets, and would not be there either.
_HANDED_ON = (
    ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
    if sys.platform != "win32"
    else (
        "APPDATA",
        "HOMEDRIVE",
        "HOMEPATH",
        "LOCALAPPDATA",
        "PATH",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "USERNAME",
        "USERPROFILE",
    )
)


def try_out(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Starts a server over stdio in an empty folder, with the variables that a client would give it, and ends it.

    Args:
        words: What starts it.
        env: Variables of its own.

    Returns:
        The name that the server calls itself.

    Raises:
        CommandFailure: It does not start, or does not answer within 30 seconds; the message has what it wrote.
    """
    given = _environment(env)
    with tempfile.TemporaryDirectory() as folder:
        return run_interruptible(lambda: _name(words, given, folder), "interrupted; nothing was changed")


def say_what_lacks(config: str, env: Mapping[str, str]) -> None:
    """Says on stderr which servers of a gateway cannot be used with the variables that a client would give it.

    Args:
        config: The file of the gateway.
        env: Variables of its own.

    Raises:
        ConfigurationError: The file is none of a gateway.
    """
    environ = _environment(env)
    for entry in importlib.import_module("mcp_actors.server_entries").read_server_entries(config):
        try:
            entry.target(environ=environ)
        except McpError as error:
            variable = getattr(error, "variable", None)
            gives = f"; --env {variable} hands it on" if variable in os.environ else ""
            text = f"as the client starts it, this server of the gateway cannot be used: {error}{gives}"
            click.echo(f"mcp-actors: {safe(text)}", err=True)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in _HANDED_ON if name in os.environ} | dict(env)


async def _name(words: Sequence[str], env: Mapping[str, str], folder: str) -> str:
    make = importlib.import_module("mcp_transports.stdio").StdioClientTransport
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        del lines[:-20]

    try:
        with trio.fail_after(TRIAL_TIMEOUT):
            async with Client(make(words, env=env, cwd=folder, stderr=keep)) as client:
                return str(client.server_info.name)
    except trio.TooSlowError:
        raise CommandFailure(
            f"the server did not answer within {TRIAL_TIMEOUT:g} s when it was started as a client starts it;"
            " nothing was changed"
        ) from None
    except McpError as error:
        failed = sentence(error)
        # Some failures have the last lines themselves.
        # A client that finds out which era a server has may have started it twice.
        said = "" if lines and failed.endswith(lines[-1]) else "\n".join(["", *dict.fromkeys(lines)])
        raise CommandFailure(
            f"the server does not start as a client starts it, in another folder and with --env alone; nothing was"
            f" changed: {failed}{said}"
        ) from error
