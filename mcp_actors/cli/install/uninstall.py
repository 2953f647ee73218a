"""``mcp-actors uninstall``."""

from __future__ import annotations

import click

from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.install.change import Configuration, Manner
from mcp_actors.cli.install.clients import CLIENTS, is_ours
from mcp_actors.cli.install.config_text import ConfigText, value_of
from mcp_actors.cli.install.options import change_options
from mcp_actors.cli.output import safe

__all__ = ["command"]


@click.command("uninstall", short_help="Take a server out of the configuration of a client.")
@click.argument("name")
@change_options
@traceback_option
def command(
    name: str, client: str, config: str | None, dry_run: bool, yes: bool, show_traceback: bool
) -> None:
    """Take an entry that `mcp-actors install` has written out of the configuration of a client.

    The change is shown and asked about, a copy of the file is kept, and `mcp-actors install --undo` undoes it.

    \b
    mcp-actors uninstall weather --client claude-desktop
    """

    def edit(configuration: Configuration, text: ConfigText) -> str:
        found = configuration.entry(text, name)
        if found is None:
            raise configuration.left_alone(f"it has no entry {safe(name)}")
        if not is_ours(value_of(found)):
            raise configuration.left_alone(f"its entry {safe(name)} is none that mcp-actors has written")
        return configuration.without_entry(text, name)

    with reported(show_traceback):
        configuration = Configuration(client, config)
        if configuration.change(name, edit, Manner(yes, dry_run)):
            click.echo(f"removed {safe(name)} from {configuration.path}; {CLIENTS[client].afterwards}")
