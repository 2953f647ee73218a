"""The stdio binding: newline frames over the standard streams of a process (MCP 2026-07-28, Transports, stdio).

``stdio:`` serves the descriptors that this process was given; ``stdio:COMMAND ARG…`` starts a child process and
connects to it. The command is split as a POSIX shell would, and on Windows as its programs do, where a backslash is
part of a path. No shell is run: no variables, no globs.
"""

# A server has no use for what starts child processes, nor a client for what takes over the standard streams. So a
# side is loaded when it is first asked for: `__getattr__` does it, and `__init__.pyi` tells type checkers of both.

from __future__ import annotations

import importlib
from typing import Any

from mcp_actors.errors import ConnectFailed
from mcp_actors.supervision.platform import split_line

__all__ = ["StdioClientTransport", "StdioServerTransport", "from_url"]

_LATE = {
    "StdioClientTransport": "mcp_transports.stdio.client",
    "StdioServerTransport": "mcp_transports.stdio.server",
}


def from_url(url: str, **options: Any) -> Any:
    """Returns the server's side for ``stdio:``, the client's for ``stdio:COMMAND ARG…``.

    ``options`` are those of its constructor, which also says what it raises.

    Raises:
        ConnectFailed: the quotes in the command do not match.
    """
    line = url.partition(":")[2]
    try:
        command = split_line(line) if line else []
    except ValueError as error:
        raise ConnectFailed(f"the command of the stdio: URL cannot be split into words: {error}") from None
    if not command:
        return __getattr__("StdioServerTransport")(**options)
    return __getattr__("StdioClientTransport")(command, **options)


def __getattr__(name: str) -> Any:
    """Loads a name of the table above when it is first asked for.

    Raises:
        AttributeError: There is no such name.
    """
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
