"""A FastAPI application with our server mounted, and a handler that calls another server.

``mounted.py uvicorn|hypercorn|hypercorn-trio|granian PORT``, and the URL of the other server in ``OTHER_SERVER``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from fastapi import FastAPI, Request
from granian import Granian

from mcp_actors.asyncio import Client
from tests.worlds.programs.tools import ENDINGS, server

mounted = server.asgi()
# Two of the servers wait without a bound for requests in flight, when they are told to end.
BOUND: dict[str, dict[str, Any]] = {
    "uvicorn": {"timeout_graceful_shutdown": 1},
    "granian": {"workers_kill_timeout": 1},
}
other: Any = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    global other
    with suppress(RuntimeError):  # it may run on Trio
        ends_the_loop(asyncio.get_running_loop())
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


async def left(request: Request) -> None:
    while not await request.is_disconnected():  # noqa: ASYNC110 - FastAPI has nothing to wait for
        await asyncio.sleep(0.02)


def arguments_of(request: Request) -> dict[str, int]:
    return {name: int(value) for name, value in request.query_params.items()}


@app.get("/forward/{tool}")
async def forward(tool: str, request: Request) -> str:
    """Calls a tool of the other server for as long as there is somebody to answer."""
    call = asyncio.create_task(other.call_tool(tool, arguments_of(request)))
    waits = asyncio.create_task(left(request))
    await asyncio.wait([call, waits], return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    call.cancel()
    return str((await call).content[0].text)


app.mount("/tools", mounted)


def ends_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    ENDINGS["loop closed"] = lambda: loop.call_soon_threadsafe(loop.stop)


async def serve_on_trio(config: hypercorn.config.Config) -> None:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        ENDINGS["loop closed"] = lambda: token.run_sync_soon(scope.cancel)
        await hypercorn.trio.serve(app, config)


def main() -> None:
    if KIND == "uvicorn":
        uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", loop="uvloop", **BOUND[KIND])
    elif KIND == "granian":
        Granian(
            "tests.worlds.programs.mounted:app",
            address="127.0.0.1",
            port=PORT,
            interface="asgi",
            **BOUND[KIND],
        ).serve()
    else:
        config = hypercorn.config.Config()
        config.bind = [f"127.0.0.1:{PORT}"]
        if KIND == "hypercorn":
            asyncio.run(hypercorn.asyncio.serve(app, config))
        else:
            trio.run(serve_on_trio, config)


OTHER = os.environ.get("OTHER_SERVER")
if __name__ == "__main__":
    KIND, PORT = sys.argv[1], int(sys.argv[2])
    try:
        main()
    except* KeyboardInterrupt:
        print("interrupted", flush=True)
