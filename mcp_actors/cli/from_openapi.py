"""``mcp-actors from-openapi``: serves an API that an OpenAPI document describes, or shows what became of it."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mcp_actors import Context, Server
from mcp_actors.cli.connection_options import (
    ConfigurableCommand,
    SecretOption,
    Section,
    TextWithBlanks,
    given_headers,
)
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.output import echo, echo_json, safe
from mcp_actors.cli.serve import serve_here
from mcp_actors.cli.serve_options import (
    ServeOptions,
    equip,
    offer,
    options_of,
    require_fitting,
    sections_of,
    set_log,
)
from mcp_actors.cli.start import loading
from mcp_actors.errors import ApiDocumentError

__all__ = ["command"]

_SECTIONS = (
    Section("The API", ["--base-url", "--route", "--header", "--reference"]),
    Section("Looking at it", ["--check", "--json"]),
    *sections_of("from-openapi"),
)


@click.command(
    "from-openapi",
    cls=ConfigurableCommand,
    sections=_SECTIONS,
    beside="document",
    short_help="Serve an API that an OpenAPI document describes.",
)
@click.argument("document")
@click.option(
    "--base-url", metavar="URL", help="Where the API is. Default: the first server of the document."
)
@click.option(
    "--route",
    metavar="PATTERN=KIND",
    type=TextWithBlanks(),
    multiple=True,
    help="What operations become: tool, resource or nothing; may be repeated, the first that matches counts.",
)
@click.option(
    "--header",
    cls=SecretOption,
    type=TextWithBlanks(),
    metavar="NAME:VALUE",
    multiple=True,
    help="A header of every request to the API, such as Authorization; may be repeated.",
)
@click.option(
    "--reference",
    metavar="PLACE",
    multiple=True,
    help="Another folder or URL from which documents may be read.",
)
@click.option("--check", is_flag=True, help="Show what became of each operation, and end.")
@click.option("--json", "as_json", is_flag=True, help="With --check: as JSON.")
@options_of("from-openapi")
@traceback_option
def command(
    document: str,
    base_url: str | None,
    route: Sequence[str],
    header: Sequence[str],
    reference: Sequence[str],
    check: bool,
    as_json: bool,
    show_traceback: bool,
    **given: Any,
) -> None:
    """Serve an API that an OpenAPI document describes: each operation becomes a tool.

    \b
    DOCUMENT  a path or a URL; OpenAPI 3.0 or 3.1, as JSON or YAML
    PATTERN   METHOD PATH or tag:NAME, with * for any characters

    \b
    mcp-actors from-openapi petstore.yaml --check
    mcp-actors from-openapi petstore.yaml --base-url http://127.0.0.1:8080/api/v3
    mcp-actors from-openapi https://example.org/openapi.json --route 'DELETE *=nothing' --header "X-Key:$KEY"

    Ends as mcp-actors serve does. With --check the exit code is 0 if there is a tool or a resource, and else 2.
    """
    options = ServeOptions(**given)
    require_fitting(options)
    set_log(options)
    headers = given_headers(header)
    routes = dict(map(_route, route))
    with reported(show_traceback):
        with loading():
            module = importlib.import_module("mcp_actors.openapi.api")
            try:
                api = module.read_api(document, routes=routes or None, references=reference)
                if check:
                    _show(api, as_json)
                    _say_where(api, base_url)
                    return
                server = Server.from_openapi(
                    api, base_url=base_url, headers=_every_time(headers) if headers else None
                )
            except ImportError as error:
                raise WrongUsage(str(error)) from error
            except ValueError as error:
                raise WrongUsage(str(error)) from error
        equip(server, options)
        serve_here(server, options, None, offer(server))


def _route(text: str) -> tuple[str, str]:
    pattern, found, kind = text.rpartition("=")
    if not found or not pattern.strip():
        raise WrongUsage("--route: write PATTERN=KIND")
    return pattern.strip(), kind.strip()


def _say_where(api: Any, base_url: str | None) -> None:
    """Says why nothing can be called yet, if nobody has said where the API is."""
    try:
        importlib.import_module("mcp_actors.openapi.api").Bases(api.document, base_url, {})
    except (ApiDocumentError, ValueError) as error:
        echo(f"mcp-actors: {safe(str(error))}", err=True)


def _every_time(headers: Mapping[str, str]) -> Any:
    def same(ctx: Context) -> Mapping[str, str]:
        return headers

    return same


def _show(api: Any, as_json: bool) -> None:
    """Prints a line for each operation: what it became, under which name, and how much of it a model reads."""
    module = importlib.import_module("mcp_actors.openapi.api")
    rows = [
        {
            "method": each.operation.method,
            "path": each.operation.path,
            "served_as": each.served_as,
            "name": each.operation.name,
            "characters": module.characters_of(each.operation),
            "reason": each.reason,
        }
        for each in api.outcomes
    ]
    counts = Counter(each["served_as"] for each in rows)
    if as_json:
        echo_json({"title": api.title, "operations": rows})
    else:
        width = max((len(each["name"]) for each in rows), default=0)
        for each in rows:
            said = each["reason"] or f"{each['characters']} characters"
            echo(
                f"{each['served_as']:<8}  {each['name']:<{width}}  {each['method']} {each['path']}  ({said})"
            )
        read = sum(each["characters"] for each in rows if each["served_as"] == "tool")
        echo(
            f"{api.title}: {counts['tool']} tools, {counts['resource']} resources, {counts['nothing']} left out; "
            f"a model reads {read} characters of tools"
        )
    if not counts["tool"] and not counts["resource"]:
        raise WrongUsage("no operation becomes a tool or a resource")
