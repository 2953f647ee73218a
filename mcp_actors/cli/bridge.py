"""``mcp-actors bridge``."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import click
import trio

from mcp_actors import Client
from mcp_actors.cli.connection_options import ConnectionOptions, upstream_options
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.headers import takes_headers
from mcp_actors.cli.own_address import is_own_address
from mcp_actors.cli.sections import BRIDGE, CommandWithSections
from mcp_actors.cli.serve_options import ServeOptions, caller_options, require_fitting
from mcp_actors.cli.serving_at import serve_at
from mcp_actors.discovery import client_transport
from mcp_actors.errors import McpError
from mcp_actors.gateway import SessionPolicy, UpstreamTarget, bridge_to

__all__ = ["command"]


@click.command(
    "bridge", cls=CommandWithSections, sections=BRIDGE, short_help="Serve a server at another address."
)
@upstream_options
@click.argument("to")
@click.option(
    "--sessions",
    type=click.Choice(["auto", "shared", "own"]),
    default="auto",
    show_default=True,
    help="Whether clients share a connection to the server: auto shares it where the server keeps no sessions.",
)
@caller_options
@traceback_option
def command(
    connection: ConnectionOptions, to: str, sessions: SessionPolicy, show_traceback: bool, **given: Any
) -> None:
    """Serve a server at another address, over another binding.

    \b
    URL  the server: stdio:COMMAND ARG... as one word, or any scheme
    TO   where it is served: stdio: for one client, or a URL of any scheme

    \b
    mcp-actors bridge 'stdio:npx -y @modelcontextprotocol/server-memory' http://127.0.0.1:8000/mcp
    mcp-actors bridge https://example.org/mcp stdio:
    mcp-actors bridge ws://127.0.0.1:9000/ws http://127.0.0.1:8000/mcp

    A server that keeps sessions has a connection, and over stdio a process, for each session of a client. Ends as
    mcp-actors serve does, with the processes that it started.
    """
    options = ServeOptions(listen=(to,), **given)
    require_fitting(options)
    with reported(show_traceback):
        if is_own_address(connection.url, [to]):
            raise WrongUsage(f"the server and the bridge are both at {to}: it would ask itself for ever")
        settings = {"era": connection.era, "timeout": connection.timeout, "cap": connection.cap}
        bridge = bridge_to(_target(connection, settings), sessions=sessions, settings=settings)
        serve_at(bridge, options, f"a bridge to {connection.url.partition(':')[0]}:")


def _target(connection: ConnectionOptions, settings: dict[str, Any]) -> UpstreamTarget:
    """Returns what the bridge connects to, with the headers or the login of a person."""
    url, headers = connection.url, connection.headers
    options: dict[str, Any] = {"headers": headers} if headers else {}
    if takes_headers(url) and "authorization" not in map(str.lower, headers):
        # Only such a URL needs this module, and what it imports.
        auth = trio.run(importlib.import_module("mcp_actors.cli.stored_login").stored_auth, url)
        options |= {} if auth is None else {"auth": auth}
    make = partial(client_transport, url, **options)
    try:
        Client(make(), **settings)
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    return make if options else url
