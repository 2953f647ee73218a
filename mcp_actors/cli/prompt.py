"""``mcp-actors prompt``."""

from __future__ import annotations

import click

from mcp_actors import Client, types
from mcp_actors.cli.arguments import text_arguments
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.output import block_text, echo_json, echo_text
from mcp_actors.cli.progress import CallView

__all__ = ["command"]


@click.command("prompt", short_help="Get a prompt.")
@client_options
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT]...")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@traceback_option
def command(
    connection: ConnectionOptions, name: str, arguments: tuple[str, ...], as_json: bool, show_traceback: bool
) -> None:
    """Get a prompt with its arguments filled in: its messages, each behind its role."""
    values = text_arguments(arguments)

    async def work(client: Client) -> types.GetPromptResult:
        return await client.get_prompt(name, values)

    with reported(show_traceback):
        result = run_with_client(connection, work, CallView())
    if as_json:
        echo_json(result)
        return
    if result.description:
        click.secho(f"# {' '.join(result.description.split())}", err=True, dim=True)
    for message in result.messages:
        echo_text(f"{message.role}: {block_text(message.content)}")
