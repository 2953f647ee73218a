"""``mcp-actors gateway``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import click

from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.output import safe
from mcp_actors.cli.own_address import is_own_address
from mcp_actors.cli.sections import GATEWAY, CommandWithSections
from mcp_actors.cli.serve_options import ServeOptions, address_options, require_fitting
from mcp_actors.cli.serving_at import serve_at
from mcp_actors.cli.upstream_access import stored_access
from mcp_actors.gateway import configured_gateway
from mcp_actors.server_entries import ServerEntries, read_server_entries

__all__ = ["command"]

# The files of the gateways that this process was started by, for those that it starts.
_WITHIN = "MCP_ACTORS_WITHIN"


@click.command("gateway", cls=CommandWithSections, sections=GATEWAY, short_help="Serve many servers as one.")
@click.argument("config")
@address_options
@click.option(
    "--name", metavar="NAME", help="The name of the gateway; by default that of CONFIG, or gateway."
)
@click.option("--check", is_flag=True, help="Connect to each server once, show what is there, and end.")
@traceback_option
def command(config: str, name: str | None, check: bool, show_traceback: bool, **given: Any) -> None:
    """Serve the servers of a configuration as one.

    \b
    CONFIG  the file of Claude Desktop, Claude Code, Cursor, Windsurf (mcpServers)
            or Visual Studio Code (servers); its object "gateway" may have
            listen, name and instructions

    \b
    mcp-actors gateway ~/.cursor/mcp.json --check
    mcp-actors gateway ~/.cursor/mcp.json --listen http://127.0.0.1:8000/mcp

    A server that is away costs only its own tools. Ends as mcp-actors serve does, with the processes that it started.

    The exit code of --check is 1 if a server cannot be used, and 3 if a person has to log in for each that cannot.
    """
    options = ServeOptions(**given)
    with reported(show_traceback):
        entries = _entries(config)
        options = attrs.evolve(options, listen=options.listen or entries.gateway.listen)
        _refuse_itself(entries, options.listen)
        require_fitting(options)
        _say_what_is_unused(entries)
        access = stored_access(entries)
        if check:
            # Nobody who serves needs it.
            importlib.import_module("mcp_actors.cli.gateway_check").check(entries, access)
            return
        settings = {} if name is None else {"name": name}
        gateway = configured_gateway(entries, access=access, **settings)
        names = [entry.name for entry in entries]
        serve_at(gateway, options, f"{gateway.info.name}: {len(names)} servers: {safe(', '.join(names))}")


def _entries(config: str) -> ServerEntries:
    if not os.path.exists(os.path.expanduser(config)):
        meant = f"; for one server: mcp-actors bridge {config} TO" if "://" in config else ""
        raise WrongUsage(f"there is no file {config}{meant}")
    path = os.path.realpath(os.path.expanduser(config))
    outer = os.environ.get(_WITHIN, "").split(os.pathsep)
    if path in outer:
        raise WrongUsage(
            f"a server of {config} is a gateway that serves {config}: it would start itself for ever. Take its entry"
            f" out of the file, or give the gateway a file of its own"
        )
    entries = read_server_entries(os.path.abspath(os.path.expanduser(config)))
    os.environ[_WITHIN] = os.pathsep.join([*filter(None, outer), path])
    if not any(True for _ in entries):
        raise WrongUsage(f"{config} has no server that is not disabled")
    return entries


def _refuse_itself(entries: ServerEntries, listen: Sequence[str]) -> None:
    for entry in entries:
        if entry.url is not None and is_own_address(entry.url, listen):
            raise WrongUsage(
                f"the server {entry.name} is at {entry.url}, where this gateway serves: it would ask itself for"
                f" ever. Take the entry out, or serve at another URL"
            )


def _say_what_is_unused(entries: ServerEntries) -> None:
    unused: list[tuple[str, Sequence[str]]] = [(entry.name, entry.unknown) for entry in entries]
    for name, members in [("gateway", entries.gateway.unknown), *unused]:
        if members:
            text = f"mcp-actors: {name}: these members have no effect here: {', '.join(members)}"
            click.echo(safe(text), file=sys.stderr)
