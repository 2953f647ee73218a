"""One connection to an upstream: a client, and what is known of its server."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.era import Era
from mcp_actors.client import Client
from mcp_actors.context import Context

__all__ = ["Connection"]


class Connection:
    """A client of an upstream's server, for one caller or for all.

    Args:
        key: Whom it is for: see `mcp_actors.gateway.upstream`.
        client: The client, which is open.
    """

    def __init__(self, key: object, client: Client) -> None:
        self.key = key
        self.client = client
        self.calls: dict[Context[Any], None] = {}
        """The calls that are forwarded over it now, in the order in which they came."""
        self.tools: list[dict[str, Any]] | None = None
        """The tools of its server as they came, ``None`` until somebody asks."""

    def __repr__(self) -> str:
        return f"<Connection {self.client!r} calls={len(self.calls)}>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be made over it."""
        return self.client._connectivity.is_connected

    @property
    def era(self) -> Era:
        """The revision that is spoken with the server."""
        return self.client._requests.negotiated.era
