"""Mistakes that registration can know of: each is refused with the program's own line and the way out."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.types import Icon, ToolAnnotations


def values(limit: int) -> Iterator[int]:
    yield from range(limit)


async def later_values(limit: int) -> AsyncIterator[int]:
    for each in range(limit):
        yield each


class CallableValues:
    def __call__(self, limit: int) -> Iterator[int]:
        yield from range(limit)


def with_ctx(city, ctx):  # type: ignore[no-untyped-def]
    return city


def completes(value: str, ctx=None):  # type: ignore[no-untyped-def]
    return []


class Shelf:
    def books(self, author: str) -> str:
        return author


async def needs_await(ctx: SyncContext) -> None:
    ctx.progress(1)


def plain() -> str:
    return ""


async def of_one(ctx: Context) -> None:
    return None


async def greets(name: str) -> str:
    return name


Register = Callable[[Server], Any]

MISTAKES: list[tuple[str, Register, str]] = [
    ("tool of a string", lambda s: s.tool("search"), r"write @server.tool\(name='search'\)"),  # type: ignore[call-overload]
    ("prompt of a string", lambda s: s.prompt("ask"), r"write @server.prompt\(name='ask'\)"),  # type: ignore[call-overload]
    ("resource without a URI", lambda s: s.resource(plain), r'write @server.resource\("data://NAME"\)'),  # type: ignore[arg-type]
    ("add_resource the other way round", lambda s: s.add_resource(plain, "x://y"), "a resource has a URI"),  # type: ignore[arg-type]
    ("resource without a scheme", lambda s: s.resource("config"), r'"data://config"'),
    ("method without a name", lambda s: s.method(of_one), r'write @server.method\("my/method"\)'),  # type: ignore[type-var]
    ("method that is not async", lambda s: s.method("x/y")(plain), r"write async def f\(params, ctx\)"),
    ("method with a text of scopes", lambda s: s.method("x/y", scopes="a b"), "write a list of scopes"),
    ("method with a wrong scope", lambda s: s.method("x/y", scopes=["a b"]), "write a list of scopes"),
    ("method of one parameter", lambda s: s.method("x/y")(of_one), "does not take two arguments"),
    ("middleware that is not async", lambda s: s.middleware(plain), r"async def f\(ctx, call_next\)"),  # type: ignore[arg-type]
    ("generator", lambda s: s.tool(values), "collect them in a list"),
    ("async generator", lambda s: s.tool(later_values), "collect them in a list"),
    ("generator in an object", lambda s: s.add_tool(CallableValues(), name="x"), "collect them in a list"),
    ("generator as a prompt", lambda s: s.add_prompt(values, name="x"), "annotated with str|collect them"),
    ("context without annotation", lambda s: s.tool(with_ctx), "write ctx: Context"),
    ("context of a prompt", lambda s: s.prompt(with_ctx), "write ctx: Context"),
    (
        "context of a completion",
        lambda s: s.completion(prompt="x", argument="y")(completes),
        "write ctx: Context",
    ),
    ("context of a sync function", lambda s: s.tool(needs_await), "write ctx: Context"),
    ("method of a class", lambda s: s.add_tool(Shelf.books), r"server.add_tool\(thing.method\)"),
    ("no function", lambda s: s.add_tool(None), "None is not a function"),  # type: ignore[arg-type]
    ("unknown option", lambda s: s.add_tool(greets, desc="x"), "the options are name, title, description"),  # type: ignore[call-arg]
    ("wrong option", lambda s: s.add_tool(greets, title=5), "write a string"),  # type: ignore[arg-type]
    ("wrong annotations", lambda s: s.add_tool(greets, annotations={}), r"write ToolAnnotations"),  # type: ignore[arg-type]
    ("wrong icons", lambda s: s.add_tool(greets, icons=["x"]), "write a list of Icon"),  # type: ignore[list-item]
    ("meta that is no JSON", lambda s: s.add_tool(greets, meta={"a": object()}), "JSON cannot hold it"),
    ("time limit of nothing", lambda s: s.add_tool(greets, timeout=0), "greater than 0"),
    ("time limit inline", lambda s: s.add_tool(plain, inline=True, timeout=1), "remove inline=True"),
    ("name taken", lambda s: (s.add_tool(greets), s.add_tool(greets)), "there is already a tool 'greets'"),
    ("nothing to remove", lambda s: s.remove_tool("x"), "there is no tool 'x'"),
    ("pages of nothing", lambda s: Server("x", page_size=0), "page_size=0: write"),
    ("negative time to live", lambda s: Server("x", ttl_ms=-1), "ttl_ms=-1: write"),
    ("unknown cache scope", lambda s: Server("x", cache_scope="mine"), '"private" or "public"'),  # type: ignore[arg-type]
    ("one version", lambda s: Server("x", versions="2025-06-18"), r"versions=\['2025-06-18'\]"),
    ("server without a name", lambda s: Server(plain), r'write Server\("NAME"\)'),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("mistake", "register", "way_out"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_refused_at_its_own_line(mistake: str, register: Register, way_out: str) -> None:
    server = Server("x")
    with pytest.raises(Exception, match=way_out) as refused:
        register(server)
    line = inspect.getsourcelines(register)[1]
    file, _, found = str(refused.value).partition(": ")[0].rpartition(", line ")
    assert file == str(Path(__file__)), refused.value
    assert line <= int(found) <= line + 4


async def test_what_is_right_is_taken() -> None:
    server = Server("x", page_size=1, ttl_ms=0, cache_scope="public")
    shelf = Shelf()
    server.add_tool(shelf.books, title=None, icons=[Icon("https://x/y.png")], meta={"a": [1]})
    server.add_tool(greets, annotations=ToolAnnotations(read_only_hint=True), timeout=1.5)
    server.add_resource("{scheme}://all", lambda scheme: scheme, name="all")
    server.add_resource("urn:isbn:{number}", lambda number: number, name="book")
    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["books", "greets"]
        assert (await client.read_resource("urn:isbn:7")).contents[0].text == "7"  # type: ignore[union-attr]
