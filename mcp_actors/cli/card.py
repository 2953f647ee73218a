"""``mcp-actors card``: server cards printed and checked; and the server of a domain, found by its catalogue."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

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
from mcp_actors.types.cards import (
    CARD_TYPE,
    CATALOG_PATH,
    CATALOG_TYPE,
    card_of,
    cards_in,
    is_card_name,
    problems_of,
    registry_document,
    remote_url,
)

__all__ = ["command", "found_at"]

# Bytes of a file that is checked, and of a document that a domain sends.
MAX_BYTES = 1024 * 1024
# Cards of one domain that are asked for.
MOST_CARDS = 20


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

        async def work(client: Client) -> dict[str, Any]:
            return _card(client, connection.url, name, description)

        card = run_with_client(connection, work, CallView())
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
    # User information of a URL would be a secret in a public document.
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return card_of(name, info, [(place, spoken)] if is_remote else [], description)


def _reversed(host: str) -> str:
    if ":" in host or re.fullmatch(r"[\d.]+", host):
        return "localhost"
    return ".".join(reversed(host.split(".")))


# -- the server of a domain ------------------------------------------------------------------------------


async def found_at(url: str, say: Callable[[str], object], *, has_headers: bool) -> str:
    """Returns the URL of the server that the catalogue of a domain names; ``url`` itself, if it has no catalogue.

    What comes from the network is not trusted: URLs of it are ``https``, and lead to addresses of the same kind as the
    one that a person gave.

    Args:
        url: The URL of the domain, without a path.
        say: Tells a person where the server is.
        has_headers: Whether a person gave headers, which go to the domain itself and to no other.

    Raises:
        WrongUsage: It names several servers, none that can be used, or one elsewhere, and there are headers.
    """
    effects = importlib.import_module("mcp_actors.auth.effects")
    policy = importlib.import_module("mcp_actors.auth.urls").UrlPolicy()
    try:
        fetcher = importlib.import_module("mcp_transports.auth.fetcher").Fetcher(policy, url)
    except ImportError:
        return url

    async def fetch(place: str, accepted: str) -> Any:
        asked = effects.Fetch(
            "GET", place, [("accept", f"{accepted}, application/json")], redirects=3, max_bytes=MAX_BYTES
        )
        answer = await fetcher.fetch(asked)
        if not isinstance(answer, effects.Fetched) or answer.status != 200:
            return None
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            return None

    catalog_url = urljoin(url, CATALOG_PATH)
    catalog = await fetch(catalog_url, CATALOG_TYPE)
    if catalog is None:
        return url
    try:
        named = cards_in(catalog)
    except ValueError:
        return url
    found: dict[str, str] = {}
    for each in named[:MOST_CARDS]:
        card = each if isinstance(each, dict) else await fetch(urljoin(catalog_url, each), CARD_TYPE)
        place = remote_url(card) if isinstance(card, dict) else None
        if place is not None and _may_be_used(place, url):
            found.setdefault(place, str(card.get("title") or card.get("name") or ""))
    if len(found) != 1:
        lines = [f"{place}  {title}" for place, title in found.items()]
        what = "several servers: give the URL of one" if found else "no server that can be used: give its URL"
        raise WrongUsage("\n".join([f"the catalogue of {url} names {what}", *lines]))
    (place,) = found
    if has_headers and _origin(place) != _origin(url):
        raise WrongUsage(
            f"the catalogue of {url} names {place}, elsewhere: give that URL if it shall get the headers"
        )
    say(f"the catalogue of {safe(url)} names {safe(place)}")
    return place


def _may_be_used(place: str, url: str) -> bool:
    """Whether a URL of a card may be connected to: as safe as the one that a person gave, or the same origin."""
    return urlsplit(place).scheme == "https" or _origin(place) == _origin(url)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()
