"""A server whose functions ask, and the words its clients need; for the tests of rounds."""

from __future__ import annotations

from typing import Any

from mcp_actors import Context, Server
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import ElicitFormParams, ListRootsParams
from tests.scripted_peers import modern

ALL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KEY = b"k" * 32


def make_server(key: bytes = KEY) -> Server:
    server = Server("asking", state_key=key)
    server.add_tool(twice)
    server.add_tool(both)
    server.add_tool(roots)
    server.add_tool(never_asks)
    server.add_tool(inline, inline=True)
    server.add_tool(draw)
    server.add_tool(visit)
    server.add_tool(shielded)
    server.add_prompt(letter)
    server.add_resource("x://{name}", document, name="document")

    @server.method("acme/ask")
    async def custom(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.list_roots()
        return {}

    return server


async def twice(greeting: str, ctx: Context) -> str:
    """Asks for a first and a last name."""
    first = await ctx.elicit("First name?", FORM, key="first")
    if first.action != "accept":
        return f"no name: {first.action}"
    last = await ctx.elicit(f"Last name of {first.content['name']}?", FORM, key="last")  # type: ignore[index]
    return f"{greeting} {first.content['name']} {last.content['name']}"  # type: ignore[index]


async def both(ctx: Context) -> str:
    """Asks two things at once."""
    answers = await ctx.ask({"name": ElicitFormParams("Name?", FORM), "where": ListRootsParams()})
    return f"{answers['name'].content['name']} in {[root.uri for root in answers['where'].roots]}"


async def roots(ctx: Context) -> str:
    """Asks without giving a key."""
    return " ".join(root.uri for root in await ctx.list_roots())


async def never_asks() -> str:
    """Asks nothing."""
    return "done"


def inline() -> str:
    """Asks nothing, on the spot."""
    return "done"


async def draw(ctx: Context) -> str:
    """Asks a model."""
    return (await ctx.sample("draw", max_tokens=5)).model


async def visit(ctx: Context) -> str:
    """Sends somebody somewhere."""
    return (await ctx.elicit_url("Go there", "https://example.org/x")).action


async def shielded(ctx: Context) -> str:
    """Catches what it can."""
    try:
        return " ".join(root.uri for root in await ctx.list_roots())
    except Exception:
        return "swallowed"


async def letter(ctx: Context) -> str:
    """A prompt that asks."""
    return (await ctx.list_roots())[0].uri


async def document(name: str, ctx: Context) -> str:
    """A resource that asks."""
    return name + (await ctx.list_roots())[0].uri


async def ask_tool(
    peer: ScriptedPeer, id: int | str, name: str, capabilities: Any = None, **params: Any
) -> Any:
    return await modern(
        peer,
        id,
        "tools/call",
        {"name": name, **params},
        capabilities=ALL if capabilities is None else capabilities,
    )


def accept(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


ROOTS = {"roots": [{"uri": "file:///a"}]}
HELLO = {"arguments": {"greeting": "Hello"}}
