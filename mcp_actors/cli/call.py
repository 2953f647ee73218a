"""``mcp-actors call``."""

from __future__ import annotations

import json
from typing import Any

import click

from mcp_actors import Client, types
from mcp_actors.cli.arguments import tool_arguments
from mcp_actors.cli.client_session import client_options, run_with_client
from mcp_actors.cli.elicitation import TerminalElicitation
from mcp_actors.cli.failures import EXIT_FAILED, reported, traceback_option
from mcp_actors.cli.output import blocks_text, echo_json, echo_text, plain
from mcp_actors.cli.progress import CallView

__all__ = ["command"]


@click.command("call", short_help="Call a tool.")
@client_options
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, help="Seconds without answer or progress."
)
@click.option("--cap", type=float, default=300.0, show_default=True, help="Seconds in all, progress or not.")
@traceback_option
def command(
    url: str,
    era: str,
    tool: str,
    arguments: tuple[str, ...],
    as_json: bool,
    timeout: float,
    cap: float,
    show_traceback: bool,
) -> None:
    """Call a tool and print its result.

    KEY=TEXT passes text, KEY:=JSON anything else: city=Berlin days:=3 exact:=true. "inf" switches a clock off.

    Progress and the server's log lines are shown on stderr. Ctrl-C cancels the call, at the server as well, and
    exits with 130. If the server asks something, it is asked here if there is a terminal and declined if not. A tool
    that reports an error prints it on stderr and exits with 1.

    \b
    mcp-actors call 'stdio:python weather.py' forecast city=Berlin days:=3
    """
    values = tool_arguments(arguments)
    view = CallView(tool)

    async def work(client: Client) -> types.CallToolResult:
        with view.shown():
            return await client.call_tool(tool, values, on_progress=view.progress)

    with reported(show_traceback):
        result = run_with_client(
            url, era, work, on_log=view.log, elicitation=TerminalElicitation(view), timeout=timeout, cap=cap
        )
    _show(result, as_json)
    if result.is_error:
        _hint(arguments, values, blocks_text(result.content))
        raise click.exceptions.Exit(EXIT_FAILED)


def _show(result: types.CallToolResult, as_json: bool) -> None:
    if as_json:
        echo_json(result)
    elif result.content:
        echo_text(blocks_text(result.content), err=bool(result.is_error))
    elif result.structured_content is not types.UNSET:
        echo_json(plain(result.structured_content))


def _hint(words: tuple[str, ...], values: dict[str, Any], complaint: str) -> None:
    """Text where a number was wanted is the mistake that everybody makes once."""
    for key, text in values.items():
        if f"{key}={text}" in words and key in complaint and _is_json(text):
            click.secho(f"hint: {key}={text} passes text, {key}:={text} passes JSON", err=True, dim=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
