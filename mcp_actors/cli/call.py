"""``mcp-actors call``, ``read`` and ``prompt``."""

from __future__ import annotations

import base64
import difflib
import sys
from typing import Any

import click

from mcp_actors import Client, types
from mcp_actors.cli.arguments import fitted, may_need_schema, text_arguments, tool_arguments
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options, lock_option
from mcp_actors.cli.failures import EXIT_TOOL, ErrorAnswer, WrongUsage, reported, traceback_option
from mcp_actors.cli.output import block_text, echo, echo_bytes, echo_json, echo_text, styled
from mcp_actors.cli.progress import CallView, TerminalElicitation
from mcp_actors.cli.tasks import kept_running, show_result
from mcp_actors.errors import DefinitionChanged, McpError, RpcError

__all__ = ["command"]


@click.command("call", short_help="Call a tool.")
@client_options
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@lock_option
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@click.option("--task", "as_task", is_flag=True, help="Start it as a task, which goes on after Ctrl-C.")
@traceback_option
def command(
    connection: ConnectionOptions,
    tool: str,
    arguments: tuple[str, ...],
    lock: str | None,
    as_json: bool,
    as_task: bool,
    show_traceback: bool,
) -> None:
    """Call a tool and print its result.

    KEY=TEXT passes what the tool wants there, as the tool itself says: text, and a number, true, false, null, a list or
    an object where it wants that. KEY:=JSON passes JSON whatever the tool says. "inf" switches a clock off.

    Progress, the server's log lines and what it writes to its stderr are shown on stderr. Ctrl-C cancels the call, at
    the server as well, and exits with 130. If the server asks something, it is asked here if there is a terminal and
    declined if not. A tool that reports an error prints it on stderr and exits with 8.

    With --lock a tool that is not as approved is not called: the difference is shown, and the exit code is 4.

    With --task the id of the task is printed on stderr at once. Ctrl-C then leaves the task running and prints how to
    get its result later (mcp-actors tasks), and --cap bounds its start only. A tool without tasks is just called.

    \b
    mcp-actors call 'stdio:python weather.py' forecast city=Berlin days=3
    """
    values = tool_arguments(arguments)
    view = CallView(tool)
    task_ids: list[str] = []

    async def started(client: Client, given: dict[str, Any]) -> types.CallToolResult:
        handle = await client.start_tool(tool, given)
        if handle.id is not None:
            task_ids.append(handle.id)
            view.said(f"task {handle.id}")
        return await handle.result(on_progress=view.progress)

    async def work(client: Client) -> types.CallToolResult:
        with view.shown():
            given = values
            if may_need_schema(arguments):
                listed = await _listed(client, tool)
                given = fitted(values, arguments, listed.get(tool))
            try:
                if as_task:
                    result = await started(client, given)
                else:
                    result = await client.call_tool(tool, given, on_progress=view.progress)
            except DefinitionChanged:
                raise
            except RpcError:
                await _require_listed(client, tool)
                raise
            if result.is_error:
                await _require_listed(client, tool)
            return result

    with reported(show_traceback), kept_running(connection, lambda: task_ids[0] if task_ids else None):
        result = run_with_client(
            connection,
            work,
            view,
            on_log=view.log,
            elicitation=TerminalElicitation(view),
            restart=as_task,
            lock=lock,
        )
    show_result(result, as_json)
    if result.is_error:
        raise click.exceptions.Exit(EXIT_TOOL)


async def _listed(client: Client, tool: str) -> dict[str, Any]:
    """The input schemas of the server's tools by name, up to that of ``tool``; none if they cannot be listed."""
    schemas: dict[str, Any] = {}
    try:
        async for each in client.tools():
            schemas[each.name] = each.input_schema
            if each.name == tool:
                break
    except McpError:
        # The call itself tells what is wrong with the server.
        return {}
    return schemas


async def _require_listed(client: Client, tool: str) -> None:
    """Raises `ErrorAnswer` if the server has tools, and this is not one of them."""
    names = sorted(await _listed(client, tool))
    if names and tool not in names:
        close = difflib.get_close_matches(tool, names, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        shown = ", ".join(names[:10]) + (", … (mcp-actors list shows all)" if len(names) > 10 else "")
        raise ErrorAnswer(f"the server has no tool {tool!r}{meant}\nits tools: {shown}")


# -- ``mcp-actors read`` ---------------------------------------------------------------------------------


@click.command("read", short_help="Read a resource.")
@client_options
@click.argument("resource_uri")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@traceback_option
def read_command(
    connection: ConnectionOptions, resource_uri: str, as_json: bool, show_traceback: bool
) -> None:
    """Read a resource: its text or its bytes, unchanged, on stdout.

    Bytes are not written to a terminal (exit code 2): send them to a file or a program.
    """

    async def work(client: Client) -> types.ReadResourceResult:
        return await client.read_resource(resource_uri)

    with reported(show_traceback):
        result = run_with_client(connection, work, CallView())
        if as_json:
            echo_json(result)
        else:
            for part in result.contents:
                _write(part)


def _write(part: types.TextResourceContents | types.BlobResourceContents) -> None:
    terminal = sys.stdout.isatty()
    if isinstance(part, types.TextResourceContents):
        if terminal:
            echo_text(part.text)
        else:
            echo_bytes(part.text.encode())
        return
    data = base64.b64decode(part.blob)
    if terminal:
        kind = part.mime_type or "binary"
        hint = "redirect stdout (> FILE), or use --json"
        raise WrongUsage(
            f"{part.uri} is {kind}, {len(data)} bytes, which do not belong on a terminal: {hint}"
        )
    echo_bytes(data)


# -- ``mcp-actors prompt`` -------------------------------------------------------------------------------


@click.command("prompt", short_help="Get a prompt.")
@client_options
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT]...")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@traceback_option
def prompt_command(
    connection: ConnectionOptions, name: str, arguments: tuple[str, ...], as_json: bool, show_traceback: bool
) -> None:
    """Get a prompt with its arguments filled in: its messages, each behind its role."""
    values = text_arguments(arguments)

    async def work(client: Client) -> types.GetPromptResult:
        return await client.get_prompt(name, values)

    with reported(show_traceback):
        result = run_with_client(connection, work, CallView())
    if as_json:
        echo_json(result)
        return
    if result.description:
        echo(styled(f"# {' '.join(result.description.split())}", dim=True), err=True)
    for message in result.messages:
        echo_text(f"{message.role}: {block_text(message.content)}")
