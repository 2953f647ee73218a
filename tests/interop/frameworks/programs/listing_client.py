"""The official Python SDK's client, of either generation, lists the tools of a server over stdio and calls some.

Usage: listing_client.py FILE CALLS COMMAND [ARG...], where CALLS is JSON, a list of [name, arguments]. It makes FILE
when it has the list, unless that is empty, waits for the notification that the list has changed, and lists again.
Prints the names of both lists, the log messages and the texts of the calls.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

LIMIT = 240.0  # seconds for everything


async def main(file: str, calls: str, command: str, *args: str) -> None:
    report: dict[str, Any] = {"logs": [], "lists": [], "texts": []}
    changed = anyio.Event()

    async def log(params: Any) -> None:
        report["logs"].append(params.data)

    async def notified(message: Any) -> None:
        method = getattr(getattr(message, "root", message), "method", None)
        if method == "notifications/tools/list_changed":
            changed.set()

    async def wait_in(subscription: Any) -> None:
        async for _ in subscription:
            changed.set()

    async def list_tools() -> None:
        report["lists"].append([each.name for each in (await session.list_tools()).tools])

    transport = stdio_client(StdioServerParameters(command=command, args=list(args)))
    with anyio.fail_after(LIMIT):
        async with AsyncExitStack() as stack:
            if hasattr(mcp, "Client"):
                # It is stateless: changes come by a subscription, and log messages if a level is asked for.
                session: Any = mcp.Client(transport, mode="auto", log_level="info", logging_callback=log)
                await stack.enter_async_context(session)
                group = await stack.enter_async_context(anyio.create_task_group())
                subscription = await stack.enter_async_context(session.listen(tools_list_changed=True))
                group.start_soon(wait_in, subscription)
                stack.callback(group.cancel_scope.cancel)
            else:
                streams = await stack.enter_async_context(transport)
                session = mcp.ClientSession(*streams, logging_callback=log, message_handler=notified)
                await stack.enter_async_context(session)
                await session.initialize()
            await list_tools()
            if file:
                Path(file).touch()
                await changed.wait()
                await list_tools()
            for name, arguments in json.loads(calls):
                result = await session.call_tool(name, arguments)
                report["texts"].append([getattr(each, "text", "") for each in result.content])
    print(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main, *sys.argv[1:])
