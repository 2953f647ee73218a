"""A server made with the official Python SDK that answers nothing before it is time: ``late_server.py NAME WHEN``.

WHEN is the seconds since the start of this process, or the path of a file that somebody has to make.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

LIMIT = 300.0  # seconds for which a file is waited for

began = time.monotonic()

from mcp.server.mcpserver import MCPServer  # noqa: E402 - the import takes a second, which counts

name, when = sys.argv[1:]
server = MCPServer(name)


@server.tool()
def greet() -> str:
    """Greets."""
    return f"hello from {name}"


if when.replace(".", "").isdigit():
    time.sleep(max(0, float(when) - (time.monotonic() - began)))
else:
    while not Path(when).exists():
        if time.monotonic() - began > LIMIT:
            raise SystemExit(f"{when} was not made within {LIMIT:g} s")
        time.sleep(0.05)
server.run()
