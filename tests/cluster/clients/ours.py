"""Load by our client.

Usage: ours.py legacy|modern URL SESSIONS FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import trio
from record import CLOCK, Load, Session, described

from mcp_actors import Client
from mcp_actors.errors import ConnectionLost, McpError, SessionExpired


class Connected:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Callable[[str], None]) -> str:
        result = await self.client.call_tool(
            tool, arguments, on_progress=lambda progress: on_progress(progress.message or "")
        )
        return str(result.content[0].text)

    async def task(self, token: str, seconds: float) -> str:
        result = await self.client.call_tool("work", {"token": token, "seconds": seconds})
        return str(result.content[0].text)


class Ours:
    def __init__(self, era: str, url: str) -> None:
        self.era = era
        self.url = url

    @asynccontextmanager
    async def connect(self, load: Load, topic: str) -> AsyncIterator[Connected]:
        async with Client(self.url, era=self.era, timeout=CLOCK) as client, trio.open_nursery() as nursery:
            nursery.start_soon(self.listen, client, load, topic)
            yield Connected(client)
            nursery.cancel_scope.cancel()

    async def listen(self, client: Client, load: Load, topic: str) -> None:
        """Listens, and listens again when that ended, for as long as the client is there."""
        while True:
            try:
                async with client.listen(uris=(topic,)) as listener:
                    load.ready[topic] = time.time()
                    async for change in listener:
                        load.hear(topic, str(change.uri))
            except McpError as error:
                print(f"{time.time():.3f} {topic}: {described(error)}", file=sys.stderr)
            load.ready.pop(topic, None)
            await trio.sleep(0.5)

    def ended(self, error: Exception) -> bool:
        return isinstance(error, SessionExpired | ConnectionLost)

    def move_on_after(self, seconds: float) -> AbstractContextManager[Any]:
        return trio.move_on_after(seconds)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


async def main(era: str, url: str, sessions: str, folder: str) -> None:
    load = Load(f"ours-{era}", folder, tasks=True)
    async with trio.open_nursery() as nursery:
        for number in range(int(sessions)):
            nursery.start_soon(Session(load, Ours(era, url), number).run)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
