"""One connection to an upstream: a client, whom it serves, and what is known of its server."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors._eras.changes import EventKind
from mcp_actors._eras.era import Era
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.abc import Telemetry
from mcp_actors.client import Client, Target
from mcp_actors.context import Context
from mcp_actors.errors import ConnectionLost, McpError, SessionExpired
from mcp_actors.gateway.questions.callbacks import UpstreamCallbacks
from mcp_actors.gateway.questions.held_calls import HeldCall
from mcp_actors.gateway.upstream.settings import Upstream
from mcp_actors.logging import log
from mcp_actors.printable import printable
from mcp_actors.tasks import TASKS
from mcp_actors.types import ClientCapabilities, LoggingLevel

__all__ = ["ServerTraits", "UpstreamConnection"]


@attrs.frozen
class ServerTraits:
    """The traits of a server that each call asks for."""

    names_requests: bool = False
    """Whether the binding says with which request a notification came, as HTTP does."""
    has_tasks: bool = False
    """Whether calls of tools may become tasks, in either dialect."""


class UpstreamConnection:
    """A client of an upstream's server, for one caller or for all.

    Args:
        settings: The settings of the upstream.
        target: What the client connects to.
        declared: What the client declares: the capabilities of the caller it is for.
        telemetry: Receives the requests over it.
        lost: Is told that the connection was lost.
        changed: Is told what has changed on the server: a list, or a resource by its URI.
    """

    def __init__(
        self,
        settings: Upstream,
        target: Target,
        declared: ClientCapabilities,
        telemetry: Telemetry | None,
        lost: Callable[[UpstreamConnection, ConnectionLost | SessionExpired], None],
        changed: Callable[[UpstreamConnection, EventKind, str | None], None],
    ) -> None:
        self.key: Hashable = None
        """Whose it is; see `mcp_actors.gateway.upstream.connections`."""
        self.caller: str | None = None
        """The caller that it was made for, as limits count callers; ``None`` if it was made before anybody called."""
        self.declared = declared
        self.is_of_one = False
        """Whether it serves one session of a client, or one call at a time."""
        self.traits = ServerTraits()
        """The traits of its server, once it is open."""
        self.calls: dict[Context[Any], HeldCall | None] = {}
        """The calls that are forwarded over it now, in the order in which they came; with those that may be held."""
        self.followed: set[str] = set()
        """The resources that are subscribed to over it."""
        self.log_level: LoggingLevel | None = None
        """The log level that its server was given."""
        self.has_answered = False
        """Whether its server has answered anything since the handshake."""
        self.has_sent_roots = False
        """Whether its server was told the roots of a client."""
        self.idle_since = trio.current_time()
        """When the last call over it has ended."""
        self.client = Client(
            target,
            era=settings.era,
            timeout=settings.timeout,
            cap=settings.cap,
            auth=settings.auth,
            answer_input=False,
            telemetry=telemetry,
            on_lost=lambda why: lost(self, why),
            on_change=partial(changed, self),
            **UpstreamCallbacks(self).options(declared),
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

    @property
    def knows_whose_logs(self) -> bool:
        """Whether it is known for whom a log message is."""
        return self.is_of_one or self.traits.names_requests

    def found_traits(self) -> ServerTraits:
        """Returns the traits of its server, now that it is open."""
        if self.era.declares_in_requests:
            has_tasks = TASKS in (self.client._requests.negotiated.capabilities.extensions or {})
        else:
            has_tasks = self.client._may_augment()
        return ServerTraits(self.client._connectivity.session.link.channel.mirrors, has_tasks)

    def level_to_set(self, ctx: Context[Any]) -> LoggingLevel | None:
        """Returns the log level that a session of the server has to be given before a call, ``None`` if none."""
        wanted: Any = ctx.peer.log_level
        if wanted is None or wanted == self.log_level or not self.is_of_one:
            return None
        if ctx.era.declares_in_requests and is_wanted(wanted, self.log_level):
            # Other calls of the same session may want more, and each gets no more than it wants.
            return None
        negotiated = self.client._requests.negotiated
        level: LoggingLevel = wanted
        return None if negotiated.capabilities.logging is None else level

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Gives the session of the server a log level; what it refuses costs no call."""
        self.log_level = level
        try:
            await self.client.set_log_level(level)
        except McpError as error:
            log.debug("an upstream was not given a log level", level=level, error=printable(str(error), 200))

    def begin(self, ctx: Context[Any], held: HeldCall | None = None) -> None:
        """Takes note of a call that is forwarded over it."""
        self.calls[ctx] = held

    def end(self, ctx: Context[Any]) -> None:
        """Takes note of the end of a call."""
        del self.calls[ctx]
        self.idle_since = trio.current_time()
