"""Our everything server as an ASGI application of uvicorn, with WebSockets at ``/ws``."""

from __future__ import annotations

import socket

import uvicorn

from mcp_actors.examples.everything import server


class Announced(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"serving http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)


app = server.asgi(websocket="/ws")
with socket.create_server(("127.0.0.1", 0)) as listener:
    Announced(uvicorn.Config(app, log_level="warning", lifespan="on")).run([listener])
