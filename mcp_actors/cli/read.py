"""``mcp-actors read``."""

from __future__ import annotations

import base64
import sys

import click

from mcp_actors import Client, types
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.output import echo_json, echo_text
from mcp_actors.cli.progress import CallView

__all__ = ["command"]


@click.command("read", short_help="Read a resource.")
@client_options
@click.argument("resource_uri")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@traceback_option
def command(connection: ConnectionOptions, resource_uri: str, as_json: bool, show_traceback: bool) -> None:
    """Read a resource: its text or its bytes, unchanged, on stdout.

    Bytes are not written to a terminal (exit code 2): send them to a file or a program.
    """

    async def work(client: Client) -> types.ReadResourceResult:
        return await client.read_resource(resource_uri)

    with reported(show_traceback):
        result = run_with_client(connection, work, CallView())
        if as_json:
            echo_json(result)
        else:
            for part in result.contents:
                _write(part)


def _write(part: types.TextResourceContents | types.BlobResourceContents) -> None:
    terminal = sys.stdout.isatty()
    if isinstance(part, types.TextResourceContents):
        if terminal:
            echo_text(part.text)
        else:
            click.echo(part.text.encode(), nl=False)
        return
    data = base64.b64decode(part.blob)
    if terminal:
        kind = part.mime_type or "binary"
        hint = "redirect stdout (> FILE), or use --json"
        raise WrongUsage(
            f"{part.uri} is {kind}, {len(data)} bytes, which do not belong on a terminal: {hint}"
        )
    click.echo(data, nl=False)
