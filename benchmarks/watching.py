"""What one change of a list costs when many clients watch it: processor time, messages and bytes.

::

    python -m benchmarks.watching --clients 1000 --tools 100

All clients and the server are in this process, connected in memory, and each client has a connection of its own. A tool
is added and removed in turn; the figures are the medians of the changes, for both sides together. Each change is one
notification for each client, its request and the answer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from mcp_actors import Client, Server
from mcp_actors.extensions import ETags


def totals(clients: Sequence[Client]) -> tuple[int, int]:
    """Returns the messages in both directions, and the bytes that clients were sent."""
    links = [link for link in (each.tree().link for each in clients) if link is not None]
    return sum(each.frames_in + each.frames_out for each in links), sum(each.bytes_in for each in links)


async def look(watches: Sequence[AsyncIterator[Any]]) -> None:
    """Has every client look at the list until it is the newest one."""
    async with trio.open_nursery() as nursery:
        for each in watches:
            nursery.start_soon(anext, each)


async def measure(clients: int, tools: int, era: str, rounds: int) -> dict[str, float]:
    """Returns the medians for one change."""
    server = Server("watched", page_size=max(tools + 1, 100), extensions=[ETags()])
    for number in range(tools):
        server.add_tool(lambda: None, name=f"tool{number}", description="It does something. " * 5)
    found: list[tuple[float, ...]] = []
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Client(server, era=era)) for _ in range(clients)]
        watches = [await stack.enter_async_context(each.watch_tools()) for each in opened]
        await look(watches)
        for number in range(rounds):
            messages, sent = totals(opened)
            began, used = time.perf_counter(), time.process_time()
            if number % 2:
                server.remove_tool("more")
            else:
                server.add_tool(lambda: None, name="more")
            await look(watches)
            after = totals(opened)
            found.append(
                (
                    time.process_time() - used,
                    time.perf_counter() - began,
                    (after[0] - messages) / clients,
                    (after[1] - sent) / clients,
                )
            )
    names = ("processor", "elapsed", "messages", "bytes")
    return dict(zip(names, map(statistics.median, zip(*found, strict=True)), strict=True))


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(words)
    print(
        "| revision | clients | tools | processor | until all have it | messages a client | bytes a client |"
    )
    print("|---|---|---|---|---|---|---|")
    for era in ("modern", "legacy"):
        of = trio.run(measure, given.clients, given.tools, era, given.rounds)
        print(
            f"| {era} | {given.clients:,} | {given.tools:,} | {of['processor']:.2f} s | {of['elapsed']:.2f} s "
            f"| {of['messages']:.1f} | {of['bytes']:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
