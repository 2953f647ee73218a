"""A server in memory whose clients are different principals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Client, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.supervision.principal import Principal
from mcp_transports.memory import MemoryTransport


class AsPrincipals(MemoryTransport):
    """A binding that authenticates each peer as the principal of the moment."""

    principal: Principal | None = None

    async def serve(
        self, handler: Any, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def as_principal(channel: FrameChannel, principal: Principal | None = None) -> None:
            await handler(channel, self.principal)

        await super().serve(as_principal, task_status=task_status)


class Served:
    """A server that is served; `client` opens a client of it as somebody."""

    def __init__(self, nursery: trio.Nursery, transport: AsPrincipals) -> None:
        self._nursery = nursery
        self._transport = transport
        self.nursery = nursery

    @asynccontextmanager
    async def client(
        self, name: str | None, *, scopes: Any = (), claims: Any = None, **options: Any
    ) -> AsyncIterator[Client]:
        self._transport.principal = (
            None if name is None else Principal(name, scopes=scopes, claims=claims or {})
        )
        async with Client(self._transport, **options) as client:
            yield client


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        transport = AsPrincipals()
        await nursery.start(server.serve, transport)
        yield Served(nursery, transport)
        nursery.cancel_scope.cancel()
