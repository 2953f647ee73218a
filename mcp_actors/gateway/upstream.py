"""The actor of one upstream: it makes connections to its server, and says which of them is whose.

=====================================  ==========================================================================
server, caller                         connection
=====================================  ==========================================================================
one without sessions, or ``"shared"``  one for all callers
one with sessions, or ``"own"``        one for each session of a client, until that ends; callers without a session
                                       share one for each principal
=====================================  ==========================================================================
"""

from __future__ import annotations

from typing import Any

import attrs
import trio

from mcp_actors.abc import ClientTransport
from mcp_actors.client import Client, Target
from mcp_actors.client_pool import ClientPool
from mcp_actors.context import Context
from mcp_actors.errors import McpError, UpstreamUnavailable
from mcp_actors.gateway.connection import Connection
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.logging import log
from mcp_actors.supervision import start
from mcp_actors.task_kinds import UPSTREAM_CONNECT

__all__ = ["UpstreamActor"]

# The key of the connection that all callers share.
SHARED = "shared"


@attrs.define(eq=False)
class _Attempt:
    """A connection that is being made, for all who wait for it."""

    done: trio.Event = attrs.field(factory=trio.Event)
    failure: str = ""


class UpstreamActor:
    """One upstream of a gateway, for the length of one `serve`.

    Args:
        settings: The settings of the server.
        nursery: Owns the tasks that connect.
        pool: Owns the clients.
    """

    def __init__(self, settings: Upstream, nursery: trio.Nursery, pool: ClientPool) -> None:
        self.settings = settings
        self._nursery = nursery
        self._pool = pool
        self._connections: dict[object, Connection] = {}
        self._attempts: dict[object, _Attempt] = {}
        # Whether one connection serves everybody; None as long as nobody knows.
        self._shares: bool | None = {"auto": None, "shared": True, "own": False}[settings.sessions]

    def __repr__(self) -> str:
        return f"<UpstreamActor {self.settings.name} connections={len(self._connections)}>"

    def at_hand(self, ctx: Context[Any]) -> Connection | None:
        """Returns the open connection for the caller, ``None`` if one has to be made."""
        connection = self._connections.get(self._key_of(ctx))
        return connection if connection is not None and connection.is_open else None

    async def connect(self, ctx: Context[Any]) -> Connection:
        """Returns a connection for the caller, which is made if there is none. Callers with one key wait together.

        Raises:
            UpstreamUnavailable: It could not be made.
        """
        while True:
            connection = self.at_hand(ctx)
            if connection is not None:
                return connection
            key = self._key_of(ctx)
            attempt = self._attempts.get(key)
            if attempt is None:
                attempt = self._attempts[key] = _Attempt()
                start(self._nursery, UPSTREAM_CONNECT, self._open, key, attempt, about=self.settings.name)
            await attempt.done.wait()
            if attempt.failure:
                raise UpstreamUnavailable(self.settings.name, attempt.failure)

    async def _open(self, key: object, attempt: _Attempt) -> None:
        try:
            former = self._connections.pop(key, None)
            if former is not None:
                await self._pool.close(former.client)
            client = await self._pool.open(self._new_client())
            if self._shares is None:
                self._shares = client.era == "modern"
            key = SHARED if self._shares else key
            self._connections[key] = Connection(key, client)
        except McpError as error:
            attempt.failure = str(error)
            log.warning("an upstream cannot be connected to", upstream=self.settings.name, error=str(error))
        finally:
            self._attempts = {each: made for each, made in self._attempts.items() if made is not attempt}
            attempt.done.set()

    def _new_client(self) -> Client:
        target = self.settings.target
        connected: Target = (
            target() if callable(target) and not isinstance(target, ClientTransport) else target
        )
        return Client(
            connected,
            era=self.settings.era,
            timeout=self.settings.timeout,
            cap=self.settings.cap,
            answer_input=False,
        )

    def _key_of(self, ctx: Context[Any]) -> object:
        if self._shares:
            return SHARED
        if (session := ctx.session) is not None:
            return session
        return None if ctx.principal is None else ctx.principal.subject
