"""``mcp-actors install``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.install.change import Configuration, Manner, undo
from mcp_actors.cli.install.clients import CLIENTS, is_ours
from mcp_actors.cli.install.config_text import ConfigText
from mcp_actors.cli.install.entry import name_from, named, started_with, variables
from mcp_actors.cli.install.options import change_options
from mcp_actors.cli.install.trial import try_out
from mcp_actors.cli.output import safe

__all__ = ["command"]


@click.command("install", short_help="Put a server into the configuration of a client.")
@click.argument("target", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@change_options
@click.option("--name", metavar="NAME", help="The name of the entry. Default: made of the server's own name.")
@click.option(
    "--env",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="A variable that the server is given; may be repeated. Without a value: the one that it has here.",
)
@click.option("--undo", "is_undo", is_flag=True, help="Undo the last change of that file instead.")
@traceback_option
def command(
    target: str | None,
    args: tuple[str, ...],
    client: str,
    config: str | None,
    name: str | None,
    env: tuple[str, ...],
    is_undo: bool,
    dry_run: bool,
    yes: bool,
    show_traceback: bool,
) -> None:
    """Put a server into the configuration of a client, so that the client starts it.

    TARGET and ARGS are those of `mcp-actors serve`. The server is started once, as the client would start it: in
    another folder, and with few variables beside those of --env. Then the change is shown and asked about. Nothing but
    the entry is changed, a copy of the file is kept, and --undo undoes the last change.

    A file that is damaged, or is none that such a client has, is left as it is, and so is an entry of that name that
    mcp-actors has not written.

    \b
    mcp-actors install weather.py --client claude-desktop
    mcp-actors install mcp_actors.examples.sqlite --client vscode --name shop -- shop.db
    mcp-actors install weather.py --client cursor --config .cursor/mcp.json --env WEATHER_KEY
    mcp-actors install --undo --client claude-desktop
    """
    manner = Manner(yes, dry_run)
    with reported(show_traceback):
        if is_undo:
            if target is not None or name is not None or env:
                raise WrongUsage(
                    "--undo undoes the last change of a file: it takes no TARGET, --name or --env"
                )
            configuration = Configuration(client, config)
            if undo(configuration, manner):
                click.echo(f"undone in {configuration.path}; {CLIENTS[client].afterwards}")
            return
        if target is None:
            raise WrongUsage("TARGET is missing: a Python file or a module that has a server")
        configuration = Configuration(client, config)
        configuration.parsed(configuration.opened())  # before anything is started
        given = variables(env)
        words = started_with(target, args)
        chosen = None if name is None else named(name)
        told = try_out(words, given)
        final = chosen if chosen is not None else name_from(told)

        def edit(configuration: Configuration, text: ConfigText) -> str:
            return _edited(configuration, text, final, words, given)

        if configuration.change(final, edit, manner):
            click.echo(f"installed {safe(told)} as {final} in {configuration.path}")
            click.echo(f"{CLIENTS[client].title}: {CLIENTS[client].afterwards}")


def _edited(
    configuration: Configuration, config: ConfigText, name: str, words: Sequence[str], env: Mapping[str, str]
) -> str:
    """Returns the text with the entry; what a person has added to an older one of ours stays."""
    fresh = configuration.client.entry(words, env)
    found = configuration.entry(config, name)
    if found is not None:
        old: Any = json.loads(found)
        if not is_ours(old):
            raise configuration.left_alone(
                f"it has an entry {name} that mcp-actors has not written: choose another --name, or remove it there"
            )
        old_env = old.get("env")
        merged = {**(old_env if isinstance(old_env, dict) else {}), **env}
        fresh = {**old, **fresh, **({"env": merged} if merged else {})}
        if fresh == old:
            return config.text
    return configuration.with_entry(config, name, fresh)
