"""The server that every pair is tried with; a stdio server when it is run as a program.

Whatever it does is asked for by a call, so that it can be driven from another process.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from mcp_actors import Context, Limits, Server, SyncContext, ToolError
from mcp_actors.types import AudioContent, ContentBlock, ResourceLink, TextContent

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
CHANGING = "pairs://changing"
# Seconds of silence until the engine reports for a call.
BEAT = 0.05


@dataclass
class Point:
    x: int
    y: float


@dataclass
class Seen:
    """Counts what happened inside the handlers of one server."""

    waiting: int = 0
    cancelled: int = 0
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    woken: trio.Event = field(default_factory=trio.Event)
    notes: list[str] = field(default_factory=list)


@dataclass
class Texts:
    texts: list[str] = field(default_factory=list)


@asynccontextmanager
async def _seen(server: Server) -> AsyncIterator[Seen]:
    yield Seen()


def make_server(versions: Sequence[str]) -> Server:
    server = Server(
        "pairs",
        version="1.2",
        instructions="Be kind.",
        page_size=5,
        versions=versions,
        lifespan=_seen,
        limits=Limits(beat=BEAT),
    )
    _add_tools(server)
    _add_questions(server)
    _add_changes(server)
    _add_what_is_kept(server)
    _add_the_rest(server)
    return server


def _add_tools(server: Server) -> None:
    @server.tool
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    @server.tool(title="A point")
    async def point(x: int, y: float) -> Point:
        return Point(x, y)

    @server.tool
    async def count(upto: int, *, ctx: Context) -> str:
        for number in range(1, upto + 1):
            await ctx.progress(number, upto, f"step {number}")
        return str(upto)

    @server.tool
    async def say(level: str, text: str, *, ctx: Context) -> str:
        await ctx.log(level, {"text": text}, "pairs")  # type: ignore[arg-type]
        return text

    @server.tool
    async def wait(ctx: Context) -> str:
        """Never ends."""
        ctx.state.waiting += 1
        ctx.state.changed.unpark_all()
        try:
            await trio.sleep_forever()
        finally:
            ctx.state.cancelled += 1
            ctx.state.changed.unpark_all()
        return ""

    @server.tool
    async def seen(waiting: int, cancelled: int, *, ctx: Context) -> str:
        """Waits until so many calls of `wait` have begun and ended."""
        while ctx.state.waiting < waiting or ctx.state.cancelled < cancelled:
            await ctx.state.changed.park()
        return f"{ctx.state.waiting} {ctx.state.cancelled}"

    @server.tool
    async def fail(kind: str) -> str:
        if kind == "told":
            raise ToolError("no such city")
        raise ZeroDivisionError("division by zero")

    @server.tool
    def blocks() -> list[ContentBlock]:
        return [
            TextContent(text="text"),
            AudioContent(data="AAAA", mime_type="audio/wav"),
            ResourceLink(uri="pairs://changing", name="changing"),
        ]

    @server.tool
    async def meta(ctx: Context) -> str:
        return str(ctx.meta.get("example.org/pair"))

    @server.tool
    async def client(ctx: Context) -> str:
        info = ctx.peer.info
        return f"{info and info.name} {ctx.peer.version}"


def _add_questions(server: Server) -> None:
    @server.tool
    async def ask_form(ctx: Context) -> str:
        answer = await ctx.elicit("Who is there?", FORM)
        return f"{answer.action} {(answer.content or {}).get('name')}"

    @server.tool
    async def ask_url(ctx: Context) -> str:
        return (await ctx.elicit_url("Please sign.", "https://example.org/sign")).action

    @server.tool
    async def ask_model(ctx: Context) -> str:
        answer = await ctx.sample("Hello?", max_tokens=5)
        assert isinstance(answer.content, TextContent)
        return f"{answer.model}: {answer.content.text}"

    @server.tool
    async def ask_roots(ctx: Context) -> str:
        return " ".join(root.uri for root in await ctx.list_roots())

    @server.tool
    async def ask_twice(ctx: Context) -> str:
        first = await ctx.elicit("Who is there?", FORM)
        roots = await ctx.list_roots()
        return f"{(first.content or {}).get('name')} {len(roots)}"


def _add_changes(server: Server) -> None:
    @server.tool
    async def touch() -> str:
        """Updates the resource that changes."""
        server.resource_updated(CHANGING)
        return "touched"

    @server.tool
    async def grow(kind: str) -> str:
        """Adds a tool, a prompt or a resource, and takes it away again."""

        async def appearing() -> str:
            return "here"

        if kind == "tools":
            server.add_tool(appearing)
            server.remove_tool("appearing")
        elif kind == "prompts":
            server.add_prompt(appearing)
            server.remove_prompt("appearing")
        else:
            server.add_resource("pairs://appearing", appearing)
            server.remove_resource("pairs://appearing")
        return kind


def _add_what_is_kept(server: Server) -> None:
    @server.tool
    async def rest(ctx: Context) -> str:
        """Says nothing until it is woken, so that the engine speaks for it."""
        await ctx.state.woken.wait()
        ctx.state.woken = trio.Event()
        return "rested"

    @server.tool
    async def wake(ctx: Context) -> str:
        ctx.state.woken.set()
        return "woken"

    @server.notification("notifications/pairs/note")
    async def note(text: str, *, ctx: Context) -> None:
        ctx.state.notes.append(text)
        ctx.state.changed.unpark_all()

    @server.tool
    async def noted(text: str, *, ctx: Context) -> str:
        """Waits for a note, and tells the client of it by a notification of our own."""
        while text not in ctx.state.notes:
            await ctx.state.changed.park()
        await ctx.notify("notifications/pairs/noted", {"text": text})
        return text

    @server.tool
    async def remember(text: str, *, ctx: Context) -> str:
        """Remembers texts for the length of a session."""
        if ctx.session is None:
            return "nobody remembers"
        kept = ctx.session.get(Texts)
        kept.texts.append(text)
        return " ".join(kept.texts)

    @server.tool
    def arrived(ctx: SyncContext) -> str:
        """From a worker thread: reports, and says what the client accepted over HTTP."""
        ctx.progress(1)
        return "not over HTTP" if ctx.request is None else ctx.request.headers["host"]


def _add_the_rest(server: Server) -> None:
    @server.resource(CHANGING, mime_type="text/plain")
    async def changing() -> str:
        return "as ever"

    @server.resource("pairs://bytes")
    def raw() -> bytes:
        return bytes(range(256))

    @server.resource("pairs://city/{name}/{part}")
    async def city(name: str, part: str) -> str:
        return f"{part} of {name}"

    for number in range(12):
        server.add_resource(f"pairs://page/{number}", changing, name=f"page {number}")

    @server.prompt
    async def greet(name: str) -> str:
        """Greets."""
        return f"Hello {name}"

    @server.completion(prompt="greet", argument="name")
    async def names(value: str) -> list[str]:
        return [name for name in ("Ada", "Alan", "Grace") if name.startswith(value)]

    @server.method("example.org/double")
    async def double(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"doubled": params["number"] * 2}


if __name__ == "__main__":
    make_server(sys.argv[1:]).run()
