"""``mcp-actors install``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.install.change import Configuration, Manner, undo
from mcp_actors.cli.install.clients import CLIENTS, is_ours
from mcp_actors.cli.install.config_text import ConfigText, value_of
from mcp_actors.cli.install.entry import name_from, named, started_with, variables
from mcp_actors.cli.install.options import change_options
from mcp_actors.cli.install.trial import say_what_lacks, try_out
from mcp_actors.cli.output import safe

__all__ = ["command", "with_our_entry"]


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

    TARGET and ARGS are those of `mcp-actors serve`, or TARGET is the .json file of a gateway. The server is started
    once, as the client would start it: in another folder, and with few variables beside those of --env. Then the change
    is shown and asked about. Nothing but the entry is changed, a copy of the file is kept, and --undo undoes the last
    change.

    A file that is damaged, or is none that such a client has, is left as it is, and so is an entry of that name that
    mcp-actors has not written.

    \b
    mcp-actors install weather.py --client claude-desktop
    mcp-actors install mcp_actors.examples.sqlite --client vscode --name shop -- shop.db
    mcp-actors install weather.py --client cursor --config .cursor/mcp.json --env WEATHER_KEY
    mcp-actors install servers.json --client claude-desktop
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
            raise WrongUsage(
                "TARGET is missing: a Python file or a module that has a server, or the .json file of a gateway"
            )
        configuration = Configuration(client, config)
        if os.path.realpath(target) == os.path.realpath(configuration.path):
            raise WrongUsage(
                f"a gateway that serves {target} must not be one of its servers: copy them into another file"
            )
        entry = configuration.client.entry(started_with(target, args), given := variables(env))
        if target.endswith(".json"):
            say_what_lacks(target, given)
        # Whatever can be known before the server is started is said before.
        text = configuration.parsed(configuration.opened())
        configuration.entry(text, "")
        if name is not None:
            with_our_entry(configuration, text, named(name), entry)
        manner.require_answerable()
        told = try_out([entry["command"], *entry["args"]], given)
        final = name_from(told) if name is None else name
        if configuration.change(final, partial(with_our_entry, name=final, entry=entry), manner):
            known = "" if safe(told) == final else f" as {final}"
            click.echo(f"installed {safe(told)}{known} in {configuration.path}")
            click.echo(f"{CLIENTS[client].title}: {CLIENTS[client].afterwards}")


def with_our_entry(
    configuration: Configuration, config: ConfigText, name: str, entry: Mapping[str, Any]
) -> str:
    """Returns the text of a configuration with an entry; what a person has added to an older one of ours stays.

    Raises:
        CommandFailure: An entry of that name is there, and is none of ours.
    """
    fresh = dict(entry)
    found = configuration.entry(config, name)
    if found is not None:
        old: Any = value_of(found)
        if not is_ours(old):
            raise configuration.left_alone(
                f"it has an entry {name} that mcp-actors has not written: choose another --name, or remove it there"
            )
        theirs = old.get("env")
        env = {**(theirs if isinstance(theirs, dict) else {}), **fresh.get("env", {})}
        fresh = {**old, **fresh, **({"env": env} if env else {})}
        if fresh == old:
            return config.text
    return configuration.with_entry(config, name, fresh)
