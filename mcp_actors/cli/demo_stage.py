"""The server of the demo's tour, and where it is reached."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from mcp_actors import Client, Server
from mcp_actors.discovery import client_transport
from mcp_actors.examples import tour
from mcp_actors.examples.tour import Sighting
from mcp_actors.platform.command_lines import join_words

__all__ = ["DemoStage", "stage"]


@attrs.frozen
class DemoStage:
    """The server of the tour, and where it is reached."""

    server: Server
    sighting: Sighting
    urls: dict[str, str]
    """By the name of the binding."""
    child: Client
    """A client of such a server in a process of its own, over stdio."""

    @property
    def url(self) -> str:
        """The URL of Streamable HTTP."""
        return self.urls["HTTP"]


@asynccontextmanager
async def stage() -> AsyncIterator[DemoStage]:
    """Serves the server of the tour for the length of the block, and starts another one in a child process."""
    sighting = Sighting()
    server = tour.server_that_tells(sighting)
    listen = {
        "HTTP": "http://127.0.0.1:0/mcp",
        "WebSocket": "ws://127.0.0.1:0/ws",
        "TCP": "tcp://127.0.0.1:0",
    }
    command = join_words([sys.executable, "-P", "-m", "mcp_actors", "serve", tour.__name__])
    # What its functions raise on purpose is in its log, which is not for the terminal.
    over_stdio = Client(client_transport(f"stdio:{command}", stderr=None))
    with tempfile.TemporaryDirectory(prefix="mcp-actors-") as folder:
        if sys.platform != "win32":
            listen["Unix socket"] = f"unix:{os.path.join(folder, 'tour.sock')}"
        async with trio.open_nursery() as nursery:
            urls = await nursery.start(server.serve, *listen.values())
            async with over_stdio as child:
                yield DemoStage(server, sighting, dict(zip(listen, urls, strict=True)), child)
            nursery.cancel_scope.cancel()
