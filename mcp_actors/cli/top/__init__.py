"""``mcp-actors top``: what runs in a server, live. `panes` makes rows of a snapshot, `screen` draws them."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click
import msgspec

from mcp_actors.cli.failures import WrongUsage, reported, run_interruptible, traceback_option
from mcp_actors.cli.output import echo, echo_json

__all__ = ["command"]

_TOKEN = "MCP_ACTORS_ADMIN_TOKEN"
# Terminals on which nothing can be drawn over.
_SIMPLE = ("dumb", "unknown")


@click.command("top", short_help="Show what runs in a server, live.")
@click.argument("where")
@click.option("--once", is_flag=True, help="Print one snapshot and end, as it does without a terminal.")
@click.option("--json", "as_json", is_flag=True, help="One snapshot as JSON on stdout.")
@traceback_option
def command(where: str, once: bool, as_json: bool, show_traceback: bool) -> None:
    """Show whether a server is healthy, and what runs in it: calls by tool, sessions, tasks and nodes.

    \b
    WHERE   unix:PATH or http://127.0.0.1:PORT#TOKEN, where
            `mcp-actors serve --admin` serves it. The token may be in the
            environment instead: MCP_ACTORS_ADMIN_TOKEN

    \b
    q            quit                     s, r    sort by the next column, turn round
    tab, 1 to 8  another pane             /       show only rows with a text; Esc: all
    up, down     choose a row             space   keep this snapshot, go on
    x            cancel the chosen call or task, or end the chosen session; asks before
    ?            all keys, and what the columns mean

    Without a terminal, or on a dumb one, it prints one snapshot. Exit code 1 if WHERE has no live view.
    """
    with reported(show_traceback):
        live = importlib.import_module("mcp_actors.cli.top.screen")
        try:
            client = live.client_of(where, os.environ.get(_TOKEN))
        except ValueError as error:
            raise WrongUsage(str(error)) from error
        if as_json:
            snapshot: Any = run_interruptible(client.snapshot, "stopped")
            # Encoded by msgspec, which has null for the infinite numbers that JSON lacks.
            echo_json(msgspec.json.decode(msgspec.json.encode(snapshot)))
        elif once or not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in _SIMPLE:
            echo(run_interruptible(lambda: live.one_picture(client), "stopped"))
        else:
            run_interruptible(lambda: live.watch(client), "stopped")
