"""One connection to an upstream: a client, whom it serves, and what is known of its server."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import trio

from mcp_actors._eras.changes import EventKind
from mcp_actors._eras.era import Era
from mcp_actors.client import Client, Target
from mcp_actors.context import Context
from mcp_actors.errors import ConnectionLost, SessionExpired
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.types import ClientCapabilities

__all__ = ["UpstreamConnection"]


class UpstreamConnection:
    """A client of an upstream's server, for one caller or for all.

    Args:
        settings: The settings of the upstream.
        target: What the client connects to.
        declared: What the client declares: the capabilities of the caller it is for.
        lost: Is told that the connection was lost.
        changed: Is told what has changed on the server: a list, or a resource by its URI.
    """

    def __init__(
        self,
        settings: Upstream,
        target: Target,
        declared: ClientCapabilities,
        lost: Callable[[UpstreamConnection, ConnectionLost | SessionExpired], None],
        changed: Callable[[UpstreamConnection, EventKind, str | None], None],
    ) -> None:
        self.key: Hashable = None
        """Whose it is; see `mcp_actors.gateway.connections`."""
        self.declared = declared
        self.calls: dict[Context[Any], None] = {}
        """The calls that are forwarded over it now, in the order in which they came."""
        self.followed: set[str] = set()
        """The resources that are subscribed to over it."""
        self.has_answered = False
        """Whether its server has answered anything since the handshake."""
        self.idle_since = trio.current_time()
        """When the last call over it has ended."""
        self.client = Client(
            target,
            era=settings.era,
            timeout=settings.timeout,
            cap=settings.cap,
            auth=settings.auth,
            answer_input=False,
            on_lost=lambda why: lost(self, why),
            on_change=lambda kind, uri: changed(self, kind, uri),
        )

    def __repr__(self) -> str:
        return f"<UpstreamConnection {self.client!r} calls={len(self.calls)}>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be made over it."""
        return self.client._connectivity.is_connected

    @property
    def era(self) -> Era:
        """The revision that is spoken with the server."""
        return self.client._requests.negotiated.era

    @property
    def keeps_session(self) -> bool:
        """Whether its server may remember something from one request to the next."""
        return not self.era.declares_in_requests and (
            self.client._connectivity.session.link.channel.keeps_session
        )

    def begin(self, ctx: Context[Any]) -> None:
        """Takes note of a call that is forwarded over it."""
        self.calls[ctx] = None

    def end(self, ctx: Context[Any]) -> None:
        """Takes note of the end of a call."""
        del self.calls[ctx]
        self.idle_since = trio.current_time()
