"""Load by the official Python SDK's second generation, which speaks both eras.

Usage: python_v2.py legacy|auto URL SESSIONS FOLDER
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from record import CLOCK, Load, Session


class ToolFailed(Exception):
    pass


class Connected:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Callable[[str], None]) -> str:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            on_progress(message or "")

        result = await self.client.call_tool(tool, arguments, progress_callback=progress)
        if result.is_error:
            raise ToolFailed(result.content[0].text)
        return str(result.content[0].text)

    async def task(self, token: str, seconds: float) -> str:
        raise NotImplementedError("this SDK has no tasks")


class PythonV2:
    def __init__(self, mode: str, url: str) -> None:
        self.mode = mode
        self.url = url

    @asynccontextmanager
    async def connect(self, load: Load, topic: str) -> AsyncIterator[Connected]:
        async def told(message: Any) -> None:
            if getattr(message, "method", None) == "notifications/resources/updated":
                load.hear(topic, str(message.params.uri))

        client = Client(
            streamable_http_client(self.url), mode=self.mode, read_timeout_seconds=CLOCK, message_handler=told
        )
        async with client:
            if client.protocol_version < "2026":
                await client.subscribe_resource(topic)
                load.ready[topic] = time.time()
                yield Connected(client)
                return
            async with anyio.create_task_group() as group:
                group.start_soon(self.listen, client, load, topic)
                yield Connected(client)
                group.cancel_scope.cancel()

    async def listen(self, client: Client, load: Load, topic: str) -> None:
        """Listens, and listens again when that ended, for as long as the client is there."""
        while True:
            try:
                async with client.listen(resource_subscriptions=[topic]) as subscription:
                    load.ready[topic] = time.time()
                    async for event in subscription:
                        load.hear(topic, str(event.uri))
            except Exception:
                pass
            load.ready.pop(topic, None)
            await anyio.sleep(0.5)

    def ended(self, error: Exception) -> bool:
        return "Session terminated" in str(error) or "Connection closed" in str(error)

    def move_on_after(self, seconds: float) -> AbstractContextManager[Any]:
        return anyio.move_on_after(seconds)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


async def main(mode: str, url: str, sessions: str, folder: str) -> None:
    load = Load(f"python-v2-{mode}", folder, tasks=False)
    async with anyio.create_task_group() as group:
        for number in range(int(sessions)):
            group.start_soon(Session(load, PythonV2(mode, url), number).run)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main, *sys.argv[1:])
