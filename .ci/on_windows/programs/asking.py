"""A client of `served.py` at a URL, on a loop or none: prints as JSON what it got.

Usage: asking.py trio|asyncio|sync URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import trio

import mcp_actors
import mcp_actors.asyncio
import mcp_actors.sync

# Calls at once.
CALLS = 10
PATIENCE = 120
PATIENT: dict[str, Any] = {"timeout": PATIENCE, "probe_timeout": PATIENCE}


async def on_trio(url: str) -> dict[str, Any]:
    answers: dict[int, Any] = {}
    with trio.fail_after(PATIENCE):
        async with mcp_actors.Client(url, **PATIENT) as client:

            async def call(number: int) -> None:
                answers[number] = (await client.call_tool("forecast", {"city": "a", "days": number})).data

            async with trio.open_nursery() as nursery:
                for number in range(1, CALLS + 1):
                    nursery.start_soon(call, number)
            with trio.move_on_after(0.3) as scope:
                await client.call_tool("wait_for_ever")
            page = await client.read_resource("weather://Köln/now")
            return said(
                client.era, [answers[each] for each in sorted(answers)], scope.cancelled_caught, page.text
            )


async def on_asyncio(url: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE), mcp_actors.asyncio.Client(url, **PATIENT) as client:
        calls = [
            asyncio.create_task(client.call_tool("forecast", {"city": "a", "days": number}))
            for number in range(1, CALLS + 1)
        ]
        answers = [(await call).data for call in calls]
        cancelled = False
        try:
            async with asyncio.timeout(0.3):
                await client.call_tool("wait_for_ever")
        except TimeoutError:
            cancelled = True
        page = await client.read_resource("weather://Köln/now")
        return said(client.era, answers, cancelled, page.text)


def without_a_loop(url: str) -> dict[str, Any]:
    with mcp_actors.sync.Client(url, **PATIENT) as client:
        answers = [
            client.call_tool("forecast", {"city": "a", "days": number}).data for number in range(1, CALLS + 1)
        ]
        cancelled = False
        try:
            client.call_tool("wait_for_ever", timeout=0.3)
        except mcp_actors.errors.CallTimeout:
            cancelled = True
        return said(client.era, answers, cancelled, client.read_resource("weather://Köln/now").text)


def said(era: str, answers: list[Any], cancelled: bool, page: str) -> dict[str, Any]:
    return {"platform": sys.platform, "era": era, "answers": answers, "cancelled": cancelled, "page": page}


def main(kind: str, url: str) -> dict[str, Any]:
    if kind == "trio":
        return trio.run(on_trio, url)
    return asyncio.run(on_asyncio(url)) if kind == "asyncio" else without_a_loop(url)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
