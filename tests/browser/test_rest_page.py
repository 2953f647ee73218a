"""The page of a REST API in a real browser: calls, progress, cancellation, keys, and what a hostile server sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Context, Server
from mcp_actors.cli.credentials import ApiKeys, new_key
from mcp_actors.cli.rest.application import RestApplication
from mcp_actors.types import CallToolResult, ImageContent, TextContent
from mcp_transports.http.server import HttpServerTransport

from .chromium import LIMIT
from .tab import Tab

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
# A picture of one point.
POINT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def shop(ends: list[str]) -> Server:
    server = Server("shop", instructions="Sells books, and says of each how many there are. " * 4)

    @server.tool
    async def count(ctx: Context, shelves: int = 2, title: str = "any") -> dict[str, int]:
        """Count the books on some shelves."""
        for each in range(shelves):
            await ctx.progress(each + 1, shelves, f"shelf {each + 1}")
        return {"books": 7 * shelves}

    @server.tool
    async def wait(ctx: Context) -> None:
        """Wait for a book that never comes."""
        await ctx.progress(1, 4, "looking")
        try:
            await trio.sleep_forever()
        finally:
            ends.append("cancelled")

    @server.tool
    def cover() -> ImageContent:
        """Show a cover."""
        return ImageContent(POINT, "image/png")

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ValueError("out of paper")

    @server.resource("note://one")
    def note() -> str:
        return "hello"

    @server.prompt
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Greet {name}"

    return server


@asynccontextmanager
async def opened(
    browser: str, server: Server, keys: Any = None
) -> AsyncIterator[tuple[Tab, trio.CancelScope]]:
    """Yields a tab with the page, and the scope in which it is served."""
    rest_api = RestApplication(keys)
    http = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/": rest_api}, authenticate=keys)
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            url, _ = await nursery.start(server.serve, http, rest_api)
            await tab.visit(url.removesuffix("mcp"))
            await tab.until("!document.querySelector('#load').disabled")
            yield tab, nursery.cancel_scope
            nursery.cancel_scope.cancel()


CARD = """[...document.querySelectorAll('main > details')]
    .find((each) => each.querySelector('b').textContent === {name})"""


async def open_card(tab: Tab, name: str) -> str:
    """Opens what is shown of an operation, and returns a script that finds it."""
    card = CARD.format(name=json.dumps(name))
    await tab.evaluate(f"{card}.open = true")
    return card


async def call(tab: Tab, name: str, until: str = "done") -> dict[str, Any]:
    """Calls a tool, and returns what is shown once it is in some state."""
    card = await open_card(tab, name)
    await tab.evaluate(f"{card}.querySelector('button.first').click()")
    await tab.until(f"{card}.querySelector('[role=status]').textContent.includes({json.dumps(until)})")
    script = f"""(({{ textContent, className, children }}) => JSON.stringify(
        {{ text: textContent, kind: className, inside: [...children].map((each) => each.tagName) }}))(
        {card}.querySelector('pre'))"""
    shown: dict[str, Any] = json.loads(await tab.evaluate(script))
    return shown


async def test_tools_are_called_with_the_arguments_that_are_written(browser: str) -> None:
    async with opened(browser, shop([])) as (tab, _):
        assert await tab.evaluate("document.title") == "shop"
        names = json.loads(
            await tab.evaluate(
                "JSON.stringify([...document.querySelectorAll('summary b')].map((each) => each.textContent))"
            )
        )
        assert names == ["count", "wait", "cover", "fail", "List the resources, or read one", "greet"]
        assert json.loads((await call(tab, "count"))["text"]) == {"books": 14}
        card = CARD.format(name='"count"')
        await tab.evaluate(f"{card}.querySelector('textarea').value = '{{\"shelves\": 3}}'")
        assert json.loads((await call(tab, "count"))["text"]) == {"books": 21}
        await tab.evaluate(f"{card}.querySelector('textarea').value = '{{\"shelves\": \"x\"}}'")
        shown = await call(tab, "count")
        assert (shown["kind"], shown["text"][:4]) == ("bad", "422:")
        shown = await call(tab, "fail")
        assert (shown["kind"], shown["text"][:4]) == ("bad", "500:")
        assert (await call(tab, "cover"))["inside"] == ["IMG"]
        await tab.until("document.querySelector('pre img').naturalWidth === 1")


async def test_resources_and_prompts_are_read(browser: str) -> None:
    async with opened(browser, shop([])) as (tab, _):
        for name, given, expected in (
            ("List the resources, or read one", "", "note://one"),
            ("List the resources, or read one", "note://one", "hello"),
            ("greet", "Ann", "Greet Ann"),
        ):
            card = await open_card(tab, name)
            await tab.evaluate(f"{card}.querySelector('input').value = {json.dumps(given)}")
            await tab.evaluate(f"{card}.querySelector('button').click()")
            await tab.until(f"{card}.querySelector('pre').textContent.includes({json.dumps(expected)})")


async def test_a_call_shows_its_progress_and_is_cancelled(browser: str) -> None:
    ends: list[str] = []
    async with opened(browser, shop(ends)) as (tab, _):
        await call(tab, "wait", until="looking 1 of 4")
        card = CARD.format(name='"wait"')
        await tab.evaluate(f"{card}.querySelectorAll('button')[1].click()")
        await tab.until(f"{card}.querySelector('[role=status]').textContent === 'cancelled'")
        while not ends:
            await trio.lowlevel.checkpoint()


async def test_a_server_that_leaves_during_a_call_is_said(browser: str) -> None:
    async with opened(browser, shop([])) as (tab, serving):
        await call(tab, "wait", until="looking 1 of 4")
        serving.cancel()
        card = CARD.format(name='"wait"')
        with trio.CancelScope(shield=True):
            await tab.until(f"!{card}.querySelector('button').disabled")
            said = await tab.evaluate(f"{card}.querySelector('[role=status]').textContent")
        assert "the connection ended before the answer" in said or "was not reached" in said


async def test_what_a_hostile_server_sends_is_text(browser: str) -> None:
    server = Server(HOSTILE, instructions=HOSTILE)
    schema = {
        "type": "object",
        "title": HOSTILE,
        "properties": {
            HOSTILE: {"type": "string", "default": HOSTILE, "description": HOSTILE},
            "__proto__": {"enum": [HOSTILE]},
            "again": {"$ref": "#"},
        },
        "required": [HOSTILE, "__proto__"],
    }
    svg = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0id2luZG93Lm93bmVkPTEiLz4="

    async def sent(arguments: dict[str, Any]) -> CallToolResult:
        page = f"data:text/html,{HOSTILE}"
        return CallToolResult(
            [
                TextContent(HOSTILE),
                TextContent(page),
                ImageContent(svg, "image/svg+xml"),
                TextContent("javascript:x"),
            ]
        )

    async def failing(arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult([TextContent(HOSTILE)], is_error=True)

    server.add_tool(sent, name=HOSTILE, description=HOSTILE, input_schema=schema)
    server.add_tool(failing, name="failing", description=HOSTILE, input_schema=schema)

    @server.prompt(name=HOSTILE, description=HOSTILE)
    def prompt(name: str) -> str:
        return HOSTILE

    async with opened(browser, server) as (tab, _):
        assert await tab.evaluate("document.querySelector('#title').textContent") == HOSTILE
        assert await tab.evaluate("document.querySelector('#about').textContent") == HOSTILE
        shown = await call(tab, HOSTILE)
        assert (HOSTILE.replace('"', '\\"') in shown["text"], shown["inside"]) == (True, ["IMG"])
        shown = await call(tab, "failing")
        assert (shown["kind"], shown["text"], shown["inside"]) == ("bad", f"500: {HOSTILE}", [])
        assert await tab.evaluate("document.querySelectorAll('script, iframe, a').length") == 2
        assert await tab.evaluate("typeof window.owned") == "undefined"
        # The page cannot be given markup, even by mistake, and asks only its own server.
        attempt = "try { document.body.innerHTML = '<b>x</b>' } catch (error) { error.name }"
        assert await tab.evaluate(attempt) == "TypeError"
        asked = """performance.getEntriesByType('resource')
            .every(({ name }) => name.startsWith("data:") || name.startsWith(origin))"""
        assert await tab.evaluate(asked)


async def test_a_key_opens_it(browser: str, tmp_path: Path) -> None:
    key, line = new_key("ann", [])
    (tmp_path / "keys").write_text(line)
    async with opened(browser, shop([]), ApiKeys(str(tmp_path / "keys"))) as (tab, _):
        assert "401: An API key is needed" in await tab.evaluate(
            "document.querySelector('#said').textContent"
        )
        assert await tab.evaluate("document.querySelectorAll('main details').length") == 0
        await tab.write("#key", key)
        await tab.evaluate("document.querySelector('#load').click()")
        await tab.until("document.title === 'shop' && document.querySelectorAll('main details').length > 4")
        assert json.loads((await call(tab, "count"))["text"]) == {"books": 14}


LAYOUT = """JSON.stringify({
    room: document.documentElement.clientWidth, page: document.documentElement.scrollWidth,
    boxes: [...document.querySelectorAll("button, input, textarea, pre, details")]
      .map((each) => each.getBoundingClientRect()).filter(({ width }) => width)
      .map(({ left, right }) => [left, right]),
    buttons: [...document.querySelectorAll("button")]
      .map((each) => each.getBoundingClientRect().height).filter(Boolean),
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
})"""


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_it_fits_into_any_window(browser: str, tmp_path: Path, colours: str) -> None:
    server = shop([])

    async def taken(arguments: dict[str, Any]) -> str:
        return "x" * 5000

    server.add_tool(taken, name="n" * 128, description="d" * 500, input_schema={"type": "object"})
    async with opened(browser, server) as (tab, _):
        await call(tab, "n" * 128)
        await call(tab, "count")
        for width in (400, 1280):
            await tab.show_as(width=width, colours=colours)
            await trio.Path(tmp_path / f"{width} {colours}.png").write_bytes(await tab.picture())
            seen = json.loads(await tab.evaluate(LAYOUT))
            assert seen["page"] == seen["room"]
            assert all(0 <= left < right <= width for left, right in seen["boxes"])
            assert all(height >= 28 for height in seen["buttons"])
            brightness = {part: sum(map(int, seen[part][4:-1].split(","))) for part in ("paper", "ink")}
            assert (brightness["paper"] > brightness["ink"]) == (colours == "light")
