"""What an effect under ``ctx.once`` adds to a call that asks one question.

::

    python -m benchmarks.once
    python -m benchmarks.once --windows 1000

All variants take turns in short windows in one process, which is client and server, in memory and in the stateless
revision, so that each call has two runs and its state is sealed, sent and opened. Each tool calls the same function,
with ``ctx.once`` and without. Processor time is measured, and the least window counts: whatever else the machine does
only adds to one.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from mcp_actors import Client, Context, Server
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams

CALLS = 10
"""Calls of a window."""
WARM = 200
FORM = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}


@dataclass
class Payment:
    id: str
    cents: int


async def charge(cents: int) -> str:
    return "payment-1"


async def charge_typed(cents: int) -> Payment:
    return Payment("payment-1", cents)


def make_server() -> Server:
    """Returns a server with a tool of each name, and one that ends in ``_once`` beside it."""
    server = Server("shop")

    def add(name: str, find: Callable[[], Callable[[int], Awaitable[Any]]]) -> None:
        async def plain(ctx: Context) -> str:
            await find()(1999)
            return (await ctx.elicit("Where?", FORM)).action

        async def once(ctx: Context) -> str:
            await ctx.once("charge", find(), 1999)
            return (await ctx.elicit("Where?", FORM)).action

        server.add_tool(plain, name=name)
        server.add_tool(once, name=f"{name}_once")

    def nested() -> Callable[[int], Awaitable[Any]]:
        async def inner(cents: int) -> str:
            return "payment-1"

        return inner

    add("text", lambda: charge)
    add("dataclass", lambda: charge_typed)
    add("nested", nested)
    return server


async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"street": "Elm Street 5"})


async def measure(windows: int) -> dict[str, list[float]]:
    """Returns the microseconds of processor time of a call of each tool, a value for each window."""
    names = [f"{name}{end}" for name in ("text", "dataclass", "nested") for end in ("", "_once")]
    found: dict[str, list[float]] = {name: [] for name in names}
    async with Client(make_server(), era="2026-07-28", elicitation=person) as client:
        for name in names:
            for _ in range(WARM):
                await client.call_tool(name)
        gc.collect()
        gc.disable()
        for _ in range(windows):
            for name, values in found.items():
                # What the tool before, or the collector, has driven out of the caches is in no figure.
                await client.call_tool(name)
                begin = time.process_time()
                for _ in range(CALLS):
                    await client.call_tool(name)
                values.append((time.process_time() - begin) / CALLS * 1e6)
        gc.enable()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--windows", type=int, default=400, help="windows of each tool")
    found = trio.run(measure, parser.parse_args().windows)
    print(
        f"{'what it returns':16} {'plain':>8} {'once':>8} {'adds':>8}   median of differences, in microseconds"
    )
    for name in ("text", "dataclass", "nested"):
        plain, once = found[name], found[f"{name}_once"]
        between = statistics.median(after - before for before, after in zip(plain, once, strict=True))
        print(f"{name:16} {min(plain):8.1f} {min(once):8.1f} {min(once) - min(plain):8.1f}   {between:.1f}")


if __name__ == "__main__":
    main()
