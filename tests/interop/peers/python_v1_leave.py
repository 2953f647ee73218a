"""The official Python SDK's first generation leaves its session while a call is in flight, and says what that raised.

Usage: python_v1_leave.py URL TIMES TOOL ARGUMENTS

Prints one line for each time: ``left``, or the exceptions. The call runs beside the session, and its session is left
under it, as an application does that is told to close.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def leave(url: str, tool: str, arguments: dict[str, Any]) -> None:
    in_flight = anyio.Event()
    async with AsyncExitStack() as stack:
        read, write, _ = await stack.enter_async_context(streamable_http_client(url))
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()

        async def call() -> None:
            in_flight.set()
            try:
                await session.call_tool(tool, arguments)
            except Exception:
                pass

        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            await in_flight.wait()
            await anyio.sleep(0.1)  # until the request is there; nothing of this SDK tells when
            calls.cancel_scope.cancel()


def exceptions_in(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [name for each in error.exceptions for name in exceptions_in(each)]
    return [type(error).__name__]


async def main(url: str, times: str, tool: str, arguments: str) -> None:
    for _ in range(int(times)):
        try:
            await leave(url, tool, json.loads(arguments))
            print("left")
        except Exception as error:
            print(*exceptions_in(error))


anyio.run(main, *sys.argv[1:])
