"""The server of a load, asked once through the ordinary client: era, name, revision, and the schema of the tool."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

import attrs
import click
import trio

from mcp_actors import Client
from mcp_actors.bench.calls import PlannedCall, tool_call
from mcp_actors.bench.targets import has_raw_field
from mcp_actors.cli.arguments import fitted, tool_arguments
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.headers import takes_headers
from mcp_actors.cli.progress import CallView
from mcp_actors.errors import McpError

__all__ = ["BenchTarget", "look_at"]

# The oldest binding over HTTP has its answers on a stream of their own.
_OF_TWO_STREAMS = "/sse"


@attrs.frozen
class BenchTarget:
    """The answers of a server about itself."""

    era: str
    version: str
    server: str
    calls: list[PlannedCall]
    through_client: bool
    login: bool


def look_at(
    connection: ConnectionOptions, tool: str | None, words: Sequence[str], calls: list[PlannedCall]
) -> BenchTarget:
    """Connects once, and leaves.

    Args:
        connection: The server.
        tool: The tool to be called, if one was named.
        words: Its arguments as they were written.
        calls: The calls of a file, otherwise.

    Raises:
        WrongUsage: The server has no such tool.
        CommandFailure: It cannot be reached, or asks for a login.
        McpError: It failed in another way.
    """
    values = tool_arguments(words)
    needed = (
        {tool} if tool else {str(each.params.get("name")) for each in calls if each.method == "tools/call"}
    )

    async def work(client: Client) -> BenchTarget:
        schemas: dict[str, Any] = {}
        if client.server_capabilities.tools is not None:
            async for each in client.tools():
                schemas[each.name] = each.input_schema
        missing = sorted(needed - schemas.keys())
        if missing:
            raise WrongUsage(_no_tool(missing[0], sorted(schemas)))
        planned = calls
        if tool:
            planned = [tool_call(tool, fitted(values, words, schemas.get(tool)))]
        named = f"{client.server_info.name} {client.server_info.version}".strip()
        return BenchTarget(client.era, client.version, named, planned, False, False)

    view = CallView()
    found = run_with_client(connection, work, view)
    login = _has_login(connection)
    # A sign of the oldest binding: its own client finds the place for the requests by itself.
    two_streams = connection.url.partition("?")[0].endswith(_OF_TWO_STREAMS)
    through_client = login or two_streams or not has_raw_field(connection.url)
    return attrs.evolve(found, through_client=through_client, login=login)


def _has_login(connection: ConnectionOptions) -> bool:
    if not takes_headers(connection.url) or "authorization" in map(str.lower, connection.headers):
        return False
    try:
        auth = trio.run(importlib.import_module("mcp_actors.cli.stored_login").stored_auth, connection.url)
    except McpError as error:
        raise click.ClickException(str(error)) from error
    return auth is not None


def _no_tool(tool: str, names: list[str]) -> str:
    close = difflib.get_close_matches(tool, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"the server has no tool {tool!r}{meant}\nits tools: {', '.join(names[:10]) or 'none'}"
