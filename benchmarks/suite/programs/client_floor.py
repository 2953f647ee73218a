"""The floor of a client: bare httpx2 under Trio POSTs the same call and decodes the answer. See `scenarios.clients`."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx2
import msgspec
import trio

from benchmarks.suite.programs.calling import measure
from mcp_actors.cli.bench.plan import Calls, Era, Message, notification, opening

TIMEOUT_SECONDS = 30.0
ALWAYS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

decode = msgspec.json.Decoder().decode


class Poster:
    """One URL, the headers of an era; ids are the numbers that are added to."""

    def __init__(self, client: httpx2.AsyncClient, url: str, era: Era) -> None:
        self._client = client
        self._url = url
        self._era = era
        self._session: dict[str, str] = {}
        self._calls = Calls(era)

    async def post(self, message: Message) -> httpx2.Response:
        headers = ALWAYS | message.headers(self._era) | self._session
        response = await self._client.post(self._url, content=message.data, headers=headers)
        return response.raise_for_status()

    async def begin(self) -> None:
        if self._era == "legacy":
            response = await self.post(opening("legacy", 0))
            self._session = {"mcp-session-id": response.headers["mcp-session-id"]}
            await self.post(notification("notifications/initialized"))

    async def add(self, number: int) -> int:
        response = await self.post(self._calls[number])
        total: int = decode(response.content)["result"]["structuredContent"]["total"]
        return total


async def main(work: dict[str, Any]) -> None:
    most = max(work["windows"])
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most)
    async with httpx2.AsyncClient(limits=limits, timeout=TIMEOUT_SECONDS) as client:
        poster = Poster(client, work["url"], work["era"])
        await poster.begin()
        await measure(poster.add, most, work["warm_up"])
        print(json.dumps([await measure(poster.add, window, work["seconds"]) for window in work["windows"]]))


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
