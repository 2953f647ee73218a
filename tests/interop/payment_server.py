"""A server whose tools have effects once, take keys and need approvals, for clients that know nothing of it.

Usage: mcp-actors serve tests/interop/payment_server.py --listen URL
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from mcp_actors import Context, Server

server = Server("payments", state_key=b"k" * 32)
done: Counter[str] = Counter()
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def count(what: str) -> int:
    done[what] += 1
    return done[what]


@server.tool
async def buy(book: str, ctx: Context) -> str:
    """Charges once, asks twice."""
    charged = await ctx.once("charge", count, f"buy {book}")
    street = await ctx.elicit("Which street?", FORM)
    mailed = await ctx.once("mail", count, f"mail {book}")
    town = await ctx.elicit("Which town?", FORM)
    assert street.content is not None
    assert town.content is not None
    return f"{charged} {mailed} {street.content['name']} {town.content['name']}"


@server.tool(idempotent=timedelta(hours=1))
async def pay(cents: int, to: str) -> int:
    """Says the how manieth payment to somebody it is."""
    return count(f"pay {to}")


@server.tool(confirm="Delete {path}?", idempotent=timedelta(hours=1))
async def delete(path: str) -> str:
    return f"deleted {path} for the {count(f'delete {path}')}. time"
