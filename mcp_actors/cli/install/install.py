"""``mcp-actors install`` and ``mcp-actors uninstall``.

A server is started as the client would start it before that is written anywhere: most clients do not say why one did
not start.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click
import trio

from mcp_actors import Client
from mcp_actors.cli.failures import (
    CommandFailure,
    WrongUsage,
    reported,
    run_interruptible,
    sentence,
    traceback_option,
)
from mcp_actors.cli.install.change import Configuration, Manner, undo
from mcp_actors.cli.install.clients import (
    CLIENTS,
    change_options,
    is_ours,
    name_from,
    named,
    started_with,
    variables,
)
from mcp_actors.cli.install.config_text import ConfigText, value_of
from mcp_actors.cli.output import echo, safe
from mcp_actors.cli.start import uninterrupted
from mcp_actors.errors import McpError

__all__ = ["command", "say_what_lacks", "try_out", "with_our_entry"]


# -- The trial of a server -----------------------------------------------------------------------------

# Seconds for it to start and to name itself: clients wait as long, or less.
TRIAL_TIMEOUT = 30.0


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
    with uninterrupted(), tempfile.TemporaryDirectory() as folder:
        return run_interruptible(lambda: _name(words, env, folder), "interrupted; nothing was changed")


def say_what_lacks(config: str, env: Mapping[str, str]) -> None:
    """Says on stderr which servers of a gateway cannot be used with the variables that a client would give it.

    Args:
        config: The file of the gateway.
        env: Variables of its own.

    Raises:
        ConfigurationError: The file is not a gateway's.
    """
    environ = importlib.import_module("mcp_transports.stdio.environment").child_environment(env)
    for entry in importlib.import_module("mcp_actors.gateway.server_entries").read_server_entries(config):
        try:
            entry.target(environ=environ)
        except McpError as error:
            variable = getattr(error, "variable", None)
            gives = f"; --env {variable} hands it on" if variable in os.environ else ""
            text = f"as the client starts it, this server of the gateway cannot be used: {error}{gives}"
            echo(f"mcp-actors: {safe(text)}", err=True)


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
        failed = sentence(error, with_page=False)
        # Some failures contain the last lines already.
        # A client that finds out which era a server has may have started it twice.
        said = "" if lines and failed.endswith(lines[-1]) else "\n".join(["", *dict.fromkeys(lines)])
        raise CommandFailure(
            f"the server does not start as a client starts it, in another folder and with --env alone; nothing was"
            f" changed: {failed}{said}"
        ) from error


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

    A file that is damaged, or does not look like one of the client's, is left as it is, and so is an entry of that name
    that mcp-actors has not written.

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
                echo(f"undone in {configuration.path}; {CLIENTS[client].afterwards}")
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
        # Errors that can be known before the server is started are reported before.
        text = configuration.parsed(configuration.opened())
        configuration.entry(text, "")
        if name is not None:
            with_our_entry(configuration, text, named(name), entry)
        manner.require_answerable()
        title = try_out([entry["command"], *entry["args"]], given)
        final = name_from(title) if name is None else name
        if configuration.change(final, partial(with_our_entry, name=final, entry=entry), manner):
            known = "" if safe(title) == final else f" as {final}"
            echo(f"installed {safe(title)}{known} in {configuration.path}")
            echo(f"{CLIENTS[client].title}: {CLIENTS[client].afterwards}")


def with_our_entry(
    configuration: Configuration, config: ConfigText, name: str, entry: Mapping[str, Any]
) -> str:
    """Returns the text of a configuration with an entry; what a person has added to an older one of ours stays.

    Raises:
        CommandFailure: Another program wrote the entry of that name.
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


@click.command("uninstall", short_help="Take a server out of the configuration of a client.")
@click.argument("name")
@change_options
@traceback_option
def uninstall_command(
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
            echo(f"removed {safe(name)} from {configuration.path}; {CLIENTS[client].afterwards}")
