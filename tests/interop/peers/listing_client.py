"""The official Python SDK's client, of either generation, lists the tools of a server over stdio and calls some.

Usage: listing_client.py FILE CALLS COMMAND [ARG...], where CALLS is JSON, a list of [name, arguments]. It makes FILE
when it has a list, and lists again after each notification that the list has changed, until what it calls is there.
Prints the names of all lists, the log messages and the texts of the calls.
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


class Changes:
    def __init__(self) -> None:
        self._next = anyio.Event()

    def tell(self) -> None:
        self._next.set()

    async def wait(self) -> None:
        await self._next.wait()
        self._next = anyio.Event()


async def main(file: str, calls: str, command: str, *args: str) -> None:
    report: dict[str, Any] = {"logs": [], "lists": [], "texts": []}
    wanted = {name for name, _ in json.loads(calls)}
    changes = Changes()

    async def log(params: Any) -> None:
        report["logs"].append(params.data)

    async def notified(message: Any) -> None:
        method = getattr(getattr(message, "root", message), "method", None)
        if method == "notifications/tools/list_changed":
            changes.tell()

    async def wait_in(subscription: Any) -> None:
        async for _ in subscription:
            changes.tell()

    async def list_tools() -> None:
        report["lists"].append([each.name for each in (await session.list_tools()).tools])

    transport = stdio_client(StdioServerParameters(command=command, args=list(args)))
    with anyio.fail_after(LIMIT):
        async with AsyncExitStack() as stack:
            if hasattr(mcp, "Client"):
                session: Any = mcp.Client(
                    transport,
                    mode="auto",
                    log_level="info",
                    logging_callback=log,
                    message_handler=notified,
                )
                await stack.enter_async_context(session)
                # A server that answers late is taken for one of a revision with sessions.
                if session.protocol_version >= "2026":
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
            Path(file).touch()  # noqa: ASYNC240 - nothing else runs here
            while not wanted <= set(report["lists"][-1]):
                await changes.wait()
                await list_tools()
            for name, arguments in json.loads(calls):
                result = await session.call_tool(name, arguments)
                report["texts"].append([getattr(each, "text", "") for each in result.content])
    print(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main, *sys.argv[1:])
