"""Calls a tool all the time by the official Python SDK, until its standard input ends; then it says what came of it.

Usage: calling.py URL CONNECTIONS v1|legacy|auto
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from mcp.client.streamable_http import streamable_http_client

PAUSE = 0.01  # seconds between two calls, so that connections are idle too when they are closed

Call = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def connected_v1(url: str) -> AsyncIterator[Call]:
    from mcp import ClientSession

    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        yield lambda: session.call_tool("pid")


@asynccontextmanager
async def connected_v2(url: str, mode: str) -> AsyncIterator[Call]:
    from mcp import Client

    async with Client(streamable_http_client(url), mode=mode) as client:
        yield lambda: client.call_tool("pid")


async def main(url: str, connections: str, mode: str) -> None:
    answered, failed, over = 0, [], anyio.Event()

    async def call_all_the_time() -> None:
        nonlocal answered
        try:
            async with connected_v1(url) if mode == "v1" else connected_v2(url, mode) as call:
                while not over.is_set():
                    result = await call()
                    assert result.content[0].text.isdigit(), result
                    answered += 1
                    if answered == int(connections):
                        print("calling", flush=True)
                    await anyio.sleep(PAUSE)
        except Exception as error:
            failed.append(repr(error)[:500])

    async with anyio.create_task_group() as group:
        for _ in range(int(connections)):
            group.start_soon(call_all_the_time)
        await anyio.to_thread.run_sync(sys.stdin.read)
        over.set()
    print(json.dumps({"answered": answered, "failed": failed}))


anyio.run(main, *sys.argv[1:])
