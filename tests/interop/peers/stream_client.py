"""The official Python SDK's client, of either generation, calls a tool that yields, and lets it go on after each part.

Usage: stream_client.py legacy|auto COMMAND [ARG...]. The function waits after each part until the tool ``go_on`` is
called, which happens in answer to the report that brings the part: a part that came late would end nothing. Prints the
messages of the reports and the text of the result.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

LIMIT = 130.0  # seconds for everything


async def main(mode: str, command: str, *args: str) -> None:
    messages: list[str | None] = []
    sent, received = anyio.create_memory_object_stream[None](10)

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        messages.append(message)
        await sent.send(None)

    async def let_go_on() -> None:
        async for _ in received:
            await session.call_tool("go_on", {})

    transport = stdio_client(StdioServerParameters(command=command, args=list(args)))
    with anyio.fail_after(LIMIT):
        async with AsyncExitStack() as stack:
            if hasattr(mcp, "Client"):
                session: Any = await stack.enter_async_context(mcp.Client(transport, mode=mode))
            else:
                session = await stack.enter_async_context(
                    mcp.ClientSession(*await stack.enter_async_context(transport))
                )
                await session.initialize()
            async with anyio.create_task_group() as group:
                group.start_soon(let_go_on)
                result = await session.call_tool("story", {}, progress_callback=on_progress)
                group.cancel_scope.cancel()
    print(json.dumps({"messages": messages, "text": result.content[0].text}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main, *sys.argv[1:])
