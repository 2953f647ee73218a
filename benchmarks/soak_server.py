"""The server of `benchmarks.soak_asyncio`: in the process of the soak, or one of its own over stdio."""

from __future__ import annotations

import trio

from mcp_actors import Context, Server

__all__ = ["hanging", "server"]

server = Server("soaked")
QUESTION = {"type": "object", "properties": {"name": {"type": "string"}}}
hanging: set[int] = set()
"""The calls that hang now. A call that was cancelled is not among them."""


@server.tool
async def echo(text: str) -> str:
    """Gives back what it gets."""
    return text


@server.tool
async def hang(number: int, ctx: Context) -> None:
    """Waits for good."""
    hanging.add(number)
    try:
        await ctx.progress(1)
        await trio.sleep_forever()
    finally:
        hanging.discard(number)


@server.tool
async def steps(count: int, ctx: Context) -> str:
    """Reports progress ``count`` times."""
    for number in range(1, count + 1):
        await ctx.progress(number, total=count)
    return "done"


@server.tool
async def ask(ctx: Context) -> str:
    """Asks the person at the client."""
    answer = await ctx.elicit("Who are you?", QUESTION)
    return str((answer.content or {}).get("name"))


if __name__ == "__main__":
    server.run()
