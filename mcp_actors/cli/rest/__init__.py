"""``mcp-actors rest``: a bridge to a server with a REST API beside it, which `application` answers.

`document` makes its OpenAPI document, and `page.html` is its page.
"""

from __future__ import annotations

from typing import Any

import click

from mcp_actors.cli.connection_options import (
    ConfigurableCommand,
    ConnectionOptions,
    Section,
    upstream_options,
)
from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.gateway import serve_bridge
from mcp_actors.cli.serve_options import ServeOptions, options_of, sections_of

__all__ = ["command"]

_SECTIONS = (
    Section(
        "The server",
        ["--header", "--bearer-env", "--era", "--timeout", "--cap"],
        "A login of mcp-actors login URL is used by itself. What callers present is never passed on.",
    ),
    *sections_of("rest"),
)


@click.command(
    "rest", cls=ConfigurableCommand, sections=_SECTIONS, short_help="Serve any server as a REST API."
)
@upstream_options
@click.argument("to", default="http://127.0.0.1:8000/mcp")
@options_of("rest")
@traceback_option
def command(connection: ConnectionOptions, to: str, show_traceback: bool, **given: Any) -> None:
    """Serve any server as a REST API.

    \b
    URL  the server: stdio:COMMAND ARG... as one word, or any scheme
    TO   where MCP is served; the REST API has the other paths there.
         By default http://127.0.0.1:8000/mcp

    \b
    mcp-actors rest 'stdio:npx -y @modelcontextprotocol/server-memory'
    mcp-actors rest https://example.org/mcp http://127.0.0.1:9000/mcp --api-keys keys
    curl http://127.0.0.1:8000/tools/read_graph -d '{}'

    POST /tools/NAME and POST /NAME call a tool with the JSON object of its arguments; Accept: text/event-stream has
    progress sent. GET / is a page to try it, GET /openapi.json describes it, and GET /resources and /prompts read.
    All callers share a connection to the server. For a server of your own or for many, see the option --rest of
    mcp-actors serve and mcp-actors gateway. Ends as mcp-actors serve does.
    """
    with reported(show_traceback):
        serve_bridge(connection, ServeOptions(listen=(to,), rest=True, **given), "shared")
