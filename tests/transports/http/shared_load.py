"""A server of which several processes share a load: what one asks, another may be told the answer to."""

from __future__ import annotations

import os

from mcp_actors import Context, Server

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

server = Server("shared load", state_key=b"known to all processes of it 1234")


@server.tool
async def introduce(ctx: Context) -> str:
    """Asks twice; each answer may reach another process."""
    first = await ctx.elicit("First name?", FORM, key="first")
    last = await ctx.elicit("Last name?", FORM, key="last")
    assert first.content is not None
    assert last.content is not None
    return f"{first.content['name']} {last.content['name']} at {os.getpid()}"


@server.tool
async def whoami() -> int:
    return os.getpid()
