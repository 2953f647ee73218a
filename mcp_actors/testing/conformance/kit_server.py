"""The server that the kit serves over a binding for its checks from end to end, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors._actors.limits import Limits
from mcp_actors.client import Client
from mcp_actors.context import Context
from mcp_actors.server import Server
from mcp_actors.testing.conformance.report import expect
from mcp_actors.testing.conformance.rules import CALLS
from mcp_actors.testing.conformance.subject import TransportUnderTest
from mcp_actors.types import ElicitResult, TextContent

__all__ = ["CHANGING", "Witness", "connected_client", "echo", "make_server", "text_of"]

CHANGING = "kit://changing"
# Seconds of silence until the engine reports for a call: short, because the kit waits for it.
BEAT = 0.1
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@attrs.define
class Witness:
    """Records what happened inside the handlers."""

    waiting: int = 0
    cancelled: int = 0
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def notify(self) -> None:
        """Says that a number has changed."""
        self.changed.unpark_all()

    async def saw(self, *, waiting: int = 0, cancelled: int = 0) -> None:
        """Waits until so many calls have begun to wait, and so many were cancelled."""
        while self.waiting < waiting or self.cancelled < cancelled:
            await self.changed.park()


def make_server(witness: Witness) -> Server:
    """Returns a server whose tools repeat, count, wait and ask."""
    server = Server("kit", limits=Limits(beat=BEAT))

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(ctx: Context, upto: int) -> str:
        for number in range(1, upto + 1):
            await ctx.progress(number, upto)
        return str(upto)

    @server.tool
    async def wait(text: str = "") -> str:
        witness.waiting += 1
        witness.notify()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            witness.cancelled += 1
            witness.notify()
            raise

    @server.tool
    async def ask(ctx: Context, greeting: str) -> str:
        answer = await ctx.elicit("Who is there?", FORM)
        return f"{greeting} {(answer.content or {}).get('name')}"

    @server.resource(CHANGING)
    async def changing() -> str:
        return "as ever"

    return server


async def _answer(question: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "kit"})


@asynccontextmanager
async def connected_client(
    tested: TransportUnderTest, era: str
) -> AsyncIterator[tuple[Client, Server, Witness]]:
    """Serves the server of the kit over the binding, and connects a client to it."""
    witness = Witness()
    server = make_server(witness)
    async with tested.served(server.serve, place=lambda places: places[0]) as transport:
        async with Client(transport, era=era, elicitation=_answer) as client:
            yield client, server, witness


def text_of(result: Any) -> str:
    """Returns the text that a tool answered with."""
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def echo(client: Client, text: str) -> None:
    """Calls the tool that repeats its argument."""
    heard = text_of(await client.call_tool("echo", {"text": text}))
    expect(
        heard == text,
        CALLS,
        f"{text[:40]!r} ({len(text)} characters) came back as {heard[:40]!r} ({len(heard)})",
    )
