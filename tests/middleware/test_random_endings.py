"""No place of a `ConcurrencyLimit` is lost, and no caller is kept, however calls and sessions end."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import trio

from mcp_actors import Client, RpcError, Server
from mcp_actors.errors import Overloaded
from mcp_actors.middleware import ConcurrencyLimit

SCHEDULES = int(os.environ.get("MCP_MIDDLEWARE_SCHEDULES", "3"))
ENDINGS = ("returns", "raises", "refuses", "swallows", "cleans up")


class Ended:
    """A server whose calls end in all ways, and the most of them that ran at once."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self.running = self.most = 0
        self.server = Server("s")
        self.server.middleware(limit)
        self.server.add_tool(self.run, description="Ends as it is told.")

    async def run(self, seconds: float, ending: str) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(seconds)
            if ending == "raises":
                raise RuntimeError("as it was told")
            if ending == "refuses":
                raise RpcError(5, "as it was told")
            if ending == "swallows":
                with trio.move_on_after(seconds, shield=True):
                    await trio.sleep_forever()
        finally:
            if ending == "cleans up":
                with trio.move_on_after(0.2, shield=True):
                    await trio.sleep_forever()
            self.running -= 1
        return "done"


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_places_come_back_under_every_ending(seed: int, autojump_clock: Any) -> None:
    chance = random.Random(seed)
    limit = ConcurrencyLimit(3, per_caller=2, waiting=3, max_wait=0.7)
    ended = Ended(limit)

    async def call(client: Client) -> None:
        arguments = {"seconds": chance.random(), "ending": chance.choice(ENDINGS)}
        with trio.move_on_after(chance.random() * 1.5):
            try:
                await client.call_tool("run", arguments)
            except (RpcError, Overloaded):
                pass

    async def session() -> None:
        await trio.sleep(chance.random())
        with trio.move_on_after(chance.random() * 6):
            async with Client(ended.server, era=chance.choice(("legacy", "modern"))) as client:
                async with trio.open_nursery() as calls:
                    for _ in range(20):
                        calls.start_soon(call, client)
                        await trio.sleep(chance.random() * 0.1)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(session)
    await trio.sleep(60)
    now = limit.statistics()
    assert (now.running, now.waiting, now.callers) == (0, 0, 0)
    assert now.refused > 0
    assert ended.most <= limit.places
