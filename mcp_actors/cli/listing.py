"""``mcp-actors list``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import attrs
import click

from mcp_actors import Client, types
from mcp_actors.cli.arguments import argument_lines, signature
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options, lock_option
from mcp_actors.cli.failures import (
    CommandFailure,
    NotAsApproved,
    asks_for_login,
    kind_of,
    not_as_approved,
    reported,
    sentence,
    traceback_option,
)
from mcp_actors.cli.output import echo, echo_json, plain, safe, styled
from mcp_actors.cli.progress import CallView
from mcp_actors.client import Drift
from mcp_actors.errors import McpError

__all__ = ["command"]

_SKILLS = "io.modelcontextprotocol/skills"


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
    skills: list[types.Skill] | None
    """None if they were not asked for."""
    drift: list[Drift] | None
    """How it differs from what was approved; None without a lock, or if it does not."""
    failures: dict[str, str] | None
    """What could not be listed, and why; None if there is nothing."""


@click.command("list", short_help="Show what a server offers.")
@client_options
@click.option("--skills", is_flag=True, help="Its skills, too, with the number and the size of their files.")
@lock_option
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on stdout.")
@traceback_option
def command(
    connection: ConnectionOptions, skills: bool, lock: str | None, as_json: bool, show_traceback: bool
) -> None:
    """Show what a server offers: who it is, its era and capabilities, tools, resources, templates and prompts.

    If one of these cannot be listed, the rest is shown, and the exit code is that of the first failure. With --lock
    what is not as approved is not listed; the difference is shown on stderr, and the exit code is 4.
    """
    with reported(show_traceback):
        kinds: list[type[CommandFailure]] = []
        work = partial(_ask_everything, kinds=kinds, skills=skills, is_locked=lock is not None)
        found = run_with_client(connection, work, CallView(), lock=lock)
        if as_json:
            echo_json({name: value for name, value in plain(found).items() if value is not None})
        else:
            for line in _lines(found):
                echo(line)
        if found.drift and as_json:
            raise click.exceptions.Exit(NotAsApproved.exit_code)  # the object has the differences
        if found.drift:
            raise not_as_approved(found.drift)
        if kinds:
            if as_json:
                raise click.exceptions.Exit(kinds[0].exit_code)  # the object has the failures
            failed = (f"{what} could not be listed: {why}" for what, why in (found.failures or {}).items())
            raise kinds[0]("\n".join(failed))


async def _ask_everything(
    client: Client, kinds: list[type[CommandFailure]], skills: bool, is_locked: bool
) -> _Found:
    """Asks for everything, and notes in ``kinds`` what kind of failure each part is that cannot be had."""
    declared = client.server_capabilities
    failures: dict[str, str] = {}

    async def all_of(what: str, capability: object, items: Callable[[], AsyncIterator[Any]]) -> list[Any]:
        found: list[Any] = []
        if capability is not None:
            try:
                async for item in items():
                    found.append(item)  # noqa: PERF401 - what came before a failure is shown
            except McpError as error:
                if asks_for_login(error):
                    raise
                failures[what] = sentence(error, with_page=False)
                kinds.append(kind_of(error))
        return found

    drift = await client.check_lock() if is_locked else None
    return _Found(
        server=client.server_info if client.server_info.name else None,
        era=client.era,
        version=client.version,
        instructions=client.instructions,
        capabilities=declared,
        tools=await all_of("tools", declared.tools, partial(client.tools, for_apps=True)),
        resources=await all_of("resources", declared.resources, client.resources),
        resource_templates=await all_of("resource templates", declared.resources, client.resource_templates),
        prompts=await all_of("prompts", declared.prompts, client.prompts),
        skills=await all_of("skills", (declared.extensions or {}).get(_SKILLS), client.skills)
        if skills
        else None,
        drift=drift or None,
        failures=failures or None,
    )


def _lines(found: _Found) -> Iterator[str]:
    server = found.server
    name = f"{server.name} {server.version}" if server else "a server without a name"
    yield f"{styled(safe(name), bold=True)}  {found.era} era, protocol {found.version}"
    yield f"capabilities: {', '.join(_capabilities(plain(found.capabilities))) or 'none'}"
    if found.instructions:
        yield from _text(found.instructions.strip(), indent="  ")
    yield from _section("tools", found.tools, _tool_head)
    yield from _section("resources", found.resources, lambda each: (each.uri, each.mime_type or ""))
    yield from _section(
        "resource templates", found.resource_templates, lambda each: (each.uri_template, each.mime_type or "")
    )
    yield from _section("prompts", found.prompts, _prompt_head)
    yield from _section("skills", found.skills or [], _skill_head)


def _section(title: str, items: list[Any], head: Any) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield styled(f"{title} ({len(items)})", bold=True, underline=True)
    for item in items:
        name, rest = head(item)
        space = " " if rest and not rest.startswith("(") else ""
        yield f"  {styled(safe(name), fg='green')}{space}{styled(safe(rest), dim=True)}"
        yield from _text((item.description or getattr(item, "title", None) or "").strip(), indent="      ")
        for line in _argument_lines(item):
            yield from _text(line, indent="        ")


def _tool_head(tool: types.Tool) -> tuple[str, str]:
    page = "" if tool.app_uri is None else f"  on {tool.app_uri}"
    alone = "" if "model" in tool.visibility else "  for pages alone"
    return tool.name, f"({signature(tool.input_schema)}){page}{alone}"


def _argument_lines(item: Any) -> Iterator[str]:
    if isinstance(item, types.Tool):
        yield from argument_lines(item.input_schema)
    elif isinstance(item, types.Prompt):
        for each in item.arguments or ():
            if each.description:
                yield f"{each.name}{'' if each.required else '?'} - {each.description}"


def _prompt_head(prompt: types.Prompt) -> tuple[str, str]:
    arguments = [f"{each.name}{'' if each.required else '?'}" for each in prompt.arguments or ()]
    return prompt.name, f"({', '.join(arguments)})"


def _skill_head(skill: types.Skill) -> tuple[str, str]:
    if isinstance(skill.resources, str):
        return skill.uri, "dynamic"
    number = len(skill.resources)
    return skill.uri, f"{number} file{'' if number == 1 else 's'}, {skill.size:,} bytes"


def _capabilities(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _capabilities(inner, f"{prefix}{name}.")
        elif inner is not False:
            yield safe(f"{prefix}{name}")


def _text(text: str, indent: str) -> Iterator[str]:
    """A description, wrapped where a terminal is; one line of file or pipe stays one line."""
    for line in safe(text).rstrip().splitlines():
        if sys.stdout.isatty():
            width = max(40, shutil.get_terminal_size().columns)
            yield from textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent) or [""]
        else:
            yield f"{indent}{line}" if line else ""
