"""``mcp-actors serve --admin URL``: the live view of the server, for ``mcp-actors top`` and browsers."""

from __future__ import annotations

import importlib
import os
from typing import Any

from mcp_actors.cli.failures import WrongUsage

__all__ = ["TOKEN_VARIABLE", "admin_transport"]

TOKEN_VARIABLE = "MCP_ACTORS_ADMIN_TOKEN"
"""The variable of the environment that has the token of a loopback address; without it, a random one is shown."""


def admin_transport(url: str) -> Any:
    """Returns a `mcp_transports.admin.AdminTransport`. The token leaves the environment, which tools hand on.

    Args:
        url: That of the command line.

    Raises:
        WrongUsage: The URL cannot be one of an admin endpoint, or the token is too short.
    """
    token = os.environ.pop(TOKEN_VARIABLE, None)
    binding = importlib.import_module("mcp_transports.admin")
    try:
        return binding.AdminTransport(url, token=token if not url.startswith("unix:") else None)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
