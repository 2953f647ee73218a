"""A FastAPI application with our server mounted, and a handler that calls another server.

``mounted.py uvicorn|hypercorn|hypercorn-trio|granian PORT [URL]``; the URL is that of the other server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from fastapi import FastAPI
from granian import Granian

from mcp_actors.asyncio import Client
from tests.worlds.programs.tools import server

mounted = server.asgi()
other: Any = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    global other
    async with mounted.lifespan(app):
        if OTHER is None:
            yield
            return
        async with Client(OTHER) as other:
            yield


app = FastAPI(lifespan=lifespan)


@app.get("/plain")
async def plain() -> str:
    return "plain"


@app.get("/forward/{tool}")
async def forward(tool: str) -> str:
    """Calls a tool of the other server; FastAPI cancels nothing by itself, so the handler has a bound."""
    async with asyncio.timeout(1):
        return str((await other.call_tool(tool)).content[0].text)


app.mount("/tools", mounted)


def main() -> None:
    if KIND == "uvicorn":
        uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", loop="uvloop")
    elif KIND == "granian":
        Granian("tests.worlds.programs.mounted:app", address="127.0.0.1", port=PORT, interface="asgi").serve()
    else:
        config = hypercorn.config.Config()
        config.bind = [f"127.0.0.1:{PORT}"]
        if KIND == "hypercorn":
            asyncio.run(hypercorn.asyncio.serve(app, config))
        else:
            trio.run(hypercorn.trio.serve, app, config)


OTHER = os.environ.get("OTHER_SERVER")
if __name__ == "__main__":
    KIND, PORT = sys.argv[1], int(sys.argv[2])
    main()
