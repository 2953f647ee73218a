"""Load by the official Python SDK's first generation, which speaks the legacy era and its tasks.

Usage: python_v1.py URL SESSIONS FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ResourceUpdatedNotification, ServerNotification
from record import CLOCK, Load, Session


class Connected:
    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Callable[[str], None]) -> str:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            on_progress(message or "")

        result = await self.session.call_tool(tool, arguments, progress_callback=progress)
        return text_of(result)

    async def task(self, token: str, seconds: float) -> str:
        tasks = self.session.experimental
        created = await tasks.call_tool_as_task("work", {"token": token, "seconds": seconds})
        async for _ in tasks.poll_task(created.task.taskId):
            pass
        return text_of(await tasks.get_task_result(created.task.taskId, CallToolResult))


def text_of(result: CallToolResult) -> str:
    if result.isError:
        raise ToolFailed(result.content[0].text)
    return str(result.content[0].text)


class ToolFailed(Exception):
    pass


class PythonV1:
    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def connect(self, load: Load, topic: str) -> AsyncIterator[Connected]:
        async def told(message: Any) -> None:
            if isinstance(message, ServerNotification) and isinstance(
                message.root, ResourceUpdatedNotification
            ):
                load.hear(topic, str(message.root.params.uri))

        async with streamable_http_client(self.url) as (read, write, _):
            clock = timedelta(seconds=CLOCK)
            async with ClientSession(
                read, write, message_handler=told, read_timeout_seconds=clock
            ) as session:
                await session.initialize()
                await session.subscribe_resource(topic)
                load.ready[topic] = time.time()
                yield Connected(session)

    def ended(self, error: Exception) -> bool:
        return "Session terminated" in str(error) or "Connection closed" in str(error)

    def move_on_after(self, seconds: float) -> AbstractContextManager[Any]:
        return anyio.move_on_after(seconds)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


async def main(url: str, sessions: str, folder: str) -> None:
    load = Load("python-v1-legacy", folder, tasks=True)
    async with anyio.create_task_group() as group:
        for number in range(int(sessions)):
            group.start_soon(Session(load, PythonV1(url), number).run)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
