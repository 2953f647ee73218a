"""The logins that ``mcp-actors login`` has stored for the servers of a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import trio

from mcp_actors.errors import ConfigurationError
from mcp_actors.server_entries import ServerEntry

__all__ = ["stored_access"]


def stored_access(entries: Iterable[ServerEntry]) -> dict[str, Any]:
    """Returns the access to each server where somebody has logged in, by the names of the servers.

    Raises:
        TokenStoreFailed: The store cannot be read.
    """
    urls: dict[str, str] = {}
    for entry in entries:
        if entry.takes_auth:
            try:
                urls[entry.name] = entry.address() or ""
            except ConfigurationError:
                continue  # it is told when the server is connected to
    # Only a configuration with such a server needs what this imports.
    return trio.run(_load, urls) if urls else {}


async def _load(urls: dict[str, str]) -> dict[str, Any]:
    stored_auth = importlib.import_module("mcp_actors.cli.stored_login").stored_auth
    found = {name: await stored_auth(url) for name, url in urls.items()}
    return {name: auth for name, auth in found.items() if auth is not None}
