"""The stdio binding: newline frames over the standard streams of a process (MCP 2026-07-28, Transports, stdio).

``stdio:`` serves the descriptors that this process was given; ``stdio:COMMAND ARG…`` starts a child process and
connects to it. The command is split as a POSIX shell would, and on Windows as its programs do, where a backslash is
part of a path. No shell is run: no variables, no globs.
"""

from __future__ import annotations

from typing import Any

from mcp_actors.errors import ConnectFailed
from mcp_actors.platform.command_lines import split_line
from mcp_transports.stdio.client import StdioClientTransport
from mcp_transports.stdio.server import StdioServerTransport

__all__ = ["StdioClientTransport", "StdioServerTransport", "from_url"]


def from_url(url: str, **options: Any) -> StdioServerTransport | StdioClientTransport:
    """Returns the server's side for ``stdio:``, the client's for ``stdio:COMMAND ARG…``.

    ``options`` are those of its constructor, which also says what it raises.

    Raises:
        ConnectFailed: the quotes in the command do not match.
    """
    try:
        command = split_line(url.partition(":")[2])
    except ValueError as error:
        raise ConnectFailed(f"the command of the stdio: URL cannot be split into words: {error}") from None
    if not command:
        return StdioServerTransport(**options)
    return StdioClientTransport(command, **options)
