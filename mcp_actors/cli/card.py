"""``mcp-actors card``: server cards, and the ``server.json`` of the registry, printed and checked."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

import click

from mcp_actors import Client
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import (
    EXIT_VIOLATES,
    CommandFailure,
    WrongUsage,
    reported,
    traceback_option,
)
from mcp_actors.cli.output import echo, safe
from mcp_actors.cli.progress import CallView
from mcp_actors.types.cards import card_of, is_card_name, problems_of, registry_document

__all__ = ["command"]

# Bytes of a file that is checked.
MAX_BYTES = 1024 * 1024


class _Malformed(CommandFailure):
    """A card is not what a card has to be: exit code 4."""

    exit_code = EXIT_VIOLATES


def _checked(ctx: click.Context, _option: click.Parameter, file: str | None) -> None:
    """Checks a file and ends the command, which needs no server then."""
    if file is None or ctx.resilient_parsing:
        return
    try:
        with open(file, "rb") as source:
            text = source.read(MAX_BYTES)
        document = json.loads(text)
    except OSError as error:
        raise WrongUsage(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"{file} is not JSON: {error}") from error
    problems = problems_of(document)
    if problems:
        number = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise _Malformed("\n".join([f"{file} has {number}", *problems]))
    echo(f"{safe(file)}: nothing is wrong with it")
    ctx.exit()


@click.command("card", short_help="Print the card of a server, or check one.")
@click.option(
    "--check",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_checked,
    help="Check a card, or a server.json, and nothing else; exit with 4 if it is malformed.",
)
@client_options
@click.option("--name", metavar="NAME", help="Its name in reverse-DNS form, such as com.example/weather.")
@click.option("--description", metavar="TEXT", help="What it does, in up to 100 characters.")
@click.option(
    "--registry", is_flag=True, help="Print the server.json of the MCP registry in place of the card."
)
@click.option("--output", "-o", metavar="FILE", help="Write it to a file. Default: standard output.")
@traceback_option
def command(
    connection: ConnectionOptions,
    name: str | None,
    description: str | None,
    registry: bool,
    output: str | None,
    show_traceback: bool,
) -> None:
    """Print the card of a server: what it says of itself, and where it is (SEP-2127, a draft).

    \b
    mcp-actors card https://example.org/mcp --name org.example/weather -o server-card.json
    mcp-actors card 'stdio:python weather.py' --name org.example/weather --registry -o server.json
    mcp-actors card --check server.json

    With --registry it is the server.json of the MCP registry; the packages of a server that people start themselves are
    for its author to add.
    """
    with reported(show_traceback):
        if name is not None and not is_card_name(name):
            raise WrongUsage(f"--name is a namespace, a slash and a name: com.example/weather, not {name!r}")

        view = CallView()

        async def work(client: Client) -> dict[str, Any]:
            # Not where a person looked for it, which may have been its domain.
            return _card(client, view.url, name, description)

        card = run_with_client(connection, work, view)
        text = json.dumps(registry_document(card) if registry else card, indent=2, ensure_ascii=False)
        if output is None:
            echo(safe(text))
            return
        try:
            with open(output, "w", encoding="utf-8", newline="\n") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise CommandFailure(f"{output} cannot be written: {error.strerror}") from error


def _card(client: Client, url: str, name: str | None, description: str | None) -> dict[str, Any]:
    info = client.server_info
    parts = urlsplit(url)
    if name is None:
        short = re.sub(r"[^a-zA-Z0-9._-]+", "-", info.name).strip("-") or "server"
        host = parts.hostname if parts.scheme in ("http", "https") else None
        name = info.name if is_card_name(info.name) else f"{_reversed(host or 'localhost')}/{short}"
    spoken = client.discovered.supported_versions if client.discovered is not None else [client.version]
    is_remote = parts.scheme in ("http", "https")
    # A user and a query, which often is an API key, would be secrets in a public document.
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return card_of(name, info, [(place, spoken)] if is_remote else [], description)


def _reversed(host: str) -> str:
    if ":" in host or re.fullmatch(r"[\d.]+", host):
        return "localhost"
    return ".".join(reversed(host.split(".")))
