"""A board with cards, shown on a page of its own in hosts that have MCP Apps (SEP-1865)::

    mcp-actors serve mcp_actors.examples.board
    mcp-actors serve mcp_actors.examples.board --listen http://127.0.0.1:3001/mcp

Tools ``show_board`` and ``add_card`` are for models; their results are shown on ``board.html``, which also calls
``move_card`` and ``remove_card``. The server keeps the cards: of each user apart, where it knows its callers, and else
of each session. Hosts without the extension show the cards as text.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from mcp_actors import App, Context, Server, ToolError
from mcp_actors.types import ToolAnnotations

__all__ = ["Board", "Card", "server"]

MOST_CARDS = 100

Column = Literal["to do", "doing", "done"]
Cards = list[dict[str, Any]]


@dataclass
class Card:
    """One card."""

    id: str
    title: str
    column: Column


@dataclass
class Board:
    """All cards, in the order in which they came."""

    cards: list[Card]


@asynccontextmanager
async def one_for_all(server: Server[Cards]) -> AsyncIterator[Cards]:
    """The cards of callers of whom nothing is known: stateless clients over HTTP without tokens."""
    yield []


server: Server[Cards] = Server(
    "board", title="Board", instructions="A board with cards, in three columns.", lifespan=one_for_all
)


@server.tool(app=App("board.html", prefers_border=True), annotations=ToolAnnotations(read_only_hint=True))
async def show_board(ctx: Context[Cards]) -> Board:
    """Shows the board."""
    return await changed(ctx, lambda cards: cards)


@server.tool(app=App("board.html", prefers_border=True))
async def add_card(
    title: Annotated[str, Meta(min_length=1, max_length=120)], ctx: Context[Cards], column: Column = "to do"
) -> Board:
    """Adds a card to the board."""
    card = Card(secrets.token_hex(4), title, column)

    def add(cards: Cards) -> Cards:
        if len(cards) >= MOST_CARDS:
            raise ToolError(f"the board has {MOST_CARDS} cards: remove some first")
        return [*cards, asdict(card)]

    return await changed(ctx, add)


@server.tool(app=App(visibility=["app"]))
async def move_card(id: str, column: Column, ctx: Context[Cards]) -> Board:
    """Puts a card into another column."""
    return await changed(
        ctx, lambda cards: [{**each, "column": column} if each["id"] == id else each for each in cards]
    )


@server.tool(app=App(visibility=["app"]))
async def remove_card(id: str, ctx: Context[Cards]) -> Board:
    """Removes a card."""
    return await changed(ctx, lambda cards: [each for each in cards if each["id"] != id])


async def changed(ctx: Context[Cards], function: Callable[[Cards], Cards]) -> Board:
    """Puts what a function makes of the cards of the caller in their place."""
    if ctx.principal is None and ctx.session is None:
        cards = ctx.state[:] = function(ctx.state)
    else:
        cards = await ctx.user_state.update("cards", function, [])
    return Board([Card(**each) for each in cards])


if __name__ == "__main__":
    server.run()
