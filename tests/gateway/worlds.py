"""A client, a gateway and a server, each pair over the binding and in the era that a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors import Client, Server
from mcp_actors.gateway import Gateway, Upstream

PREFIX = "x_"


@attrs.frozen(kw_only=True)
class World:
    """The eras on both sides of a gateway, and the bindings."""

    client: str
    server: str
    binding: str = "memory"
    """``"memory"``, or ``"http"`` for both sides."""

    @property
    def both(self) -> tuple[str, str]:
        return self.client, self.server

    def __str__(self) -> str:
        return f"{self.client}-{self.server}-{self.binding}"

    @asynccontextmanager
    async def connected(
        self, server: Server, *, settings: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        """Yields a client of a gateway in front of ``server``, made with ``options``."""
        async with AsyncExitStack() as stack:
            target: Any = server
            if self.binding == "http":
                target = await self.served(stack, server)
            upstream = Upstream(name="x", target=target, era=self.server, **(settings or {}))
            gateway: Any = Gateway([upstream])
            if self.binding == "http":
                gateway = await self.served(stack, gateway)
            yield await stack.enter_async_context(Client(gateway, era=self.client, **options))

    async def served(self, stack: AsyncExitStack, server: Server) -> str:
        nursery = await stack.enter_async_context(trio.open_nursery())
        places = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
        stack.callback(nursery.cancel_scope.cancel)
        return str(places[0])


ERAS = [(client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")]
IN_MEMORY = [World(client=client, server=server) for client, server in ERAS]
OVER_HTTP = [World(client=client, server=server, binding="http") for client, server in ERAS]
EVERYWHERE = IN_MEMORY + OVER_HTTP
