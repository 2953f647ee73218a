"""``mcp-actors list``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import click

from mcp_actors import Client, types
from mcp_actors.cli.client_session import client_options, run_with_client
from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.output import echo_json, plain, safe

__all__ = ["command"]


@attrs.frozen
class _Found:
    server: types.Implementation | None
    era: str
    version: str
    instructions: str | None
    capabilities: types.ServerCapabilities
    tools: list[types.Tool]
    resources: list[types.Resource]
    resource_templates: list[types.ResourceTemplate]
    prompts: list[types.Prompt]


@click.command("list", short_help="Show what a server offers.")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on stdout.")
@traceback_option
def command(url: str, era: str, as_json: bool, show_traceback: bool) -> None:
    """Show what a server offers: who it is, its era and capabilities, tools, resources, templates and prompts."""
    with reported(show_traceback):
        found = run_with_client(url, era, _ask_everything)
        if as_json:
            echo_json({name: value for name, value in plain(found).items() if value is not None})
        else:
            for line in _lines(found):
                click.echo(line)


async def _ask_everything(client: Client) -> _Found:
    declared = client.server_capabilities
    return _Found(
        server=client.server_info,
        era=client.era,
        version=client.version,
        instructions=client.instructions,
        capabilities=declared,
        tools=await _all(client.tools()) if declared.tools is not None else [],
        resources=await _all(client.resources()) if declared.resources is not None else [],
        resource_templates=await _all(client.resource_templates()) if declared.resources is not None else [],
        prompts=await _all(client.prompts()) if declared.prompts is not None else [],
    )


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _lines(found: _Found) -> Iterator[str]:
    server = found.server
    name = f"{server.name} {server.version}" if server else "a server without a name"
    yield f"{click.style(safe(name), bold=True)}  {found.era} era, protocol {found.version}"
    yield f"capabilities: {', '.join(_capabilities(plain(found.capabilities))) or 'none'}"
    if found.instructions:
        yield from _text(found.instructions, indent="  ")
    yield from _section("tools", found.tools, _tool_head)
    yield from _section("resources", found.resources, lambda each: (each.uri, each.mime_type or ""))
    yield from _section(
        "resource templates", found.resource_templates, lambda each: (each.uri_template, each.mime_type or "")
    )
    yield from _section("prompts", found.prompts, _prompt_head)


def _section(title: str, items: list[Any], head: Any) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield click.style(f"{title} ({len(items)})", bold=True, underline=True)
    for item in items:
        name, rest = head(item)
        space = " " if rest and not rest.startswith("(") else ""
        yield f"  {click.style(safe(name), fg='green')}{space}{click.style(safe(rest), dim=True)}"
        yield from _text(item.description or item.title or "", indent="      ")


def _tool_head(tool: types.Tool) -> tuple[str, str]:
    schema: Any = tool.input_schema if isinstance(tool.input_schema, dict) else {}
    required = schema.get("required") or []
    arguments = [
        f"{name}{'' if name in required else '?'}: {_type(field)}"
        for name, field in (schema.get("properties") or {}).items()
    ]
    return tool.name, f"({', '.join(arguments)})"


def _prompt_head(prompt: types.Prompt) -> tuple[str, str]:
    arguments = [f"{each.name}{'' if each.required else '?'}" for each in prompt.arguments or ()]
    return prompt.name, f"({', '.join(arguments)})"


def _type(schema: Any) -> str:
    """A schema in a word: enough to know what to type."""
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "|".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return "|".join(dict.fromkeys(_type(each) for each in schema[key]))
    kind = schema.get("type", "object" if "$ref" in schema or "properties" in schema else "any")
    if isinstance(kind, list):
        return "|".join(str(each) for each in kind)
    if kind == "array":
        each = _type(schema.get("items", {}))
        return f"({each})[]" if "|" in each else f"{each}[]"
    return str(kind)


def _capabilities(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _capabilities(inner, f"{prefix}{name}.")
        elif inner is not False:
            yield safe(f"{prefix}{name}")


def _text(text: str, indent: str) -> Iterator[str]:
    """A description, wrapped where a terminal is; one line of file or pipe stays one line."""
    for line in safe(text).strip().splitlines():
        if sys.stdout.isatty():
            width = max(40, shutil.get_terminal_size().columns)
            yield from textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent) or [""]
        else:
            yield f"{indent}{line}" if line else ""
