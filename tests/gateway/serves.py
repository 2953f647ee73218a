"""A server that says how it was started."""

from __future__ import annotations

import os
import sys

from mcp_actors import Server

server = Server("started")


@server.tool
def started(names: list[str]) -> dict[str, str | None]:
    """How it was started: the variables, the arguments and the folder."""
    return {
        **{name: os.environ.get(name) for name in names},
        "args": "|".join(sys.argv[1:]),
        "cwd": os.getcwd(),
    }


if __name__ == "__main__":
    server.run()
