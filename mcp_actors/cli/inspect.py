"""``mcp-actors inspect``."""

from __future__ import annotations

import importlib
from typing import Any

import click

from mcp_actors.abc import ClientTransport
from mcp_actors.cli.connection_options import ConnectionOptions, inspection_options
from mcp_actors.cli.failures import (
    EXIT_UNCHECKED,
    EXIT_VIOLATES,
    CommandFailure,
    LoginNeeded,
    WrongUsage,
    asks_for_login,
    reported,
    traceback_option,
)
from mcp_actors.cli.headers import takes_headers
from mcp_actors.cli.inspect_text import report_lines
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.output import echo_json
from mcp_actors.cli.progress import CallView
from mcp_actors.discovery import client_transport
from mcp_actors.errors import McpError
from mcp_actors.inspection import Bounds, ServerReport, inspect_server

__all__ = ["command"]

MAX_IN_FLIGHT = 256


class _Unchecked(CommandFailure):
    """Nothing was found, and not everything was looked at."""

    exit_code = EXIT_UNCHECKED


@click.command("inspect", short_help="Say what a server is, what it violates, and how fast it answers.")
@inspection_options
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object on stdout.")
@click.option("--call", is_flag=True, help="Call tools too: those that say that they only read.")
@click.option(
    "--in-flight",
    type=click.IntRange(0, MAX_IN_FLIGHT),
    default=16,
    show_default=True,
    help="Requests at once when the speed is measured; 0 measures nothing.",
)
@traceback_option
def command(
    connection: ConnectionOptions, as_json: bool, call: bool, in_flight: int, show_traceback: bool
) -> None:
    """Say what a server is, which rules of the protocol it violates, and how fast it answers.

    Each rule has its place in the specification: an error is a MUST, a warning a SHOULD. Nothing is changed at the
    server, and tools are called only with --call. What was not reached within --cap is reported as not checked.

    The exit code is 4 if the server violates a MUST, and 5 if it was found to violate none, but some rules could not be
    checked.
    """
    with reported(show_traceback):
        report = run_interruptible(
            lambda: _inspect(connection, call, in_flight), "the inspection was interrupted"
        )
        if as_json:
            echo_json(report.to_json())
        else:
            for line in report_lines(report):
                click.echo(line)
    if report.violates:
        raise click.exceptions.Exit(EXIT_VIOLATES)
    if not report.eras:
        if report.authorization is not None:
            raise LoginNeeded(f"the server asks for authorization; run: mcp-actors login {connection.url}")
        raise CommandFailure(
            f"there is no MCP server, or it speaks nothing that is known here; {report.stopped}"
        )
    if report.unchecked:
        hint = "; --cap sets the seconds" if report.seconds >= connection.cap else ""
        raise _Unchecked(
            f"{len(report.unchecked)} of {len(report.outcomes)} rules could not be checked, and the server may violate "
            f"them: {report.stopped or report.unchecked[0].reason}{hint}"
        )


async def _inspect(connection: ConnectionOptions, call: bool, in_flight: int) -> ServerReport:
    view = CallView()
    options: dict[str, Any] = {"headers": connection.headers} if connection.headers else {}
    if connection.url.partition(":")[0].lower() == "stdio":
        options = {"stderr": None}
    elif takes_headers(connection.url) and "authorization" not in map(str.lower, connection.headers):
        # Only such a URL needs this module, and what it imports.
        auth = await importlib.import_module("mcp_actors.cli.stored_login").stored_auth(connection.url)
        options |= {} if auth is None else {"auth": auth}
    try:
        transport = client_transport(connection.url, **options)
        has_credentials = "auth" in options or bool(connection.headers)
        bare: ClientTransport | None = client_transport(connection.url) if has_credentials else None
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    try:
        return await inspect_server(
            transport,
            url=connection.url,
            bare=bare,
            call=call,
            in_flight=in_flight,
            bounds=Bounds(answer_time=min(connection.timeout, 10.0), total_time=connection.cap),
            progress=view.waits_for,
        )
    except McpError as error:
        if asks_for_login(error):
            raise LoginNeeded(
                f"the server asks for authorization; run: mcp-actors login {connection.url}"
            ) from error
        raise
    finally:
        view.waits_for("")
