"""Pages in a real browser: a client, the live view, that of a REST API, and that of the benchmark suite."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from benchmarks.suite.page import page
from mcp_actors import Client, Context, RpcError, Server
from mcp_actors.cli.credentials import ApiKeys, new_key
from mcp_actors.cli.rest.application import RestApplication
from mcp_actors.telemetry import Metrics
from mcp_actors.types import CallToolResult, ImageContent, Implementation, TextContent
from mcp_transports.admin import AdminTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.benchmarks.test_suite_reports import made_up

from .chromium import LIMIT, Site, visit
from .tab import Tab

# -- A page in a real browser uses our server over WebSocket and HTTP ------------------------------------
#
# And one from a foreign origin does not get in.
#
# The names of origins are made to lead to this machine, so that every refusal is the server's and none the network's.

TEXT = "gruß 🐍"


@attrs.define
class Served:
    """Our server over both bindings: where it is, as the page wants it, and for whom its tool ran."""

    query: str
    websocket: WebSocketServerTransport
    echoed: list[str]

    @classmethod
    @asynccontextmanager
    async def open(cls, allowed_origins: Sequence[str] | None) -> AsyncIterator[Served]:
        server = Server("for-pages")
        echoed: list[str] = []

        @server.tool
        async def echo(message: str) -> str:
            echoed.append(message)
            return message

        websocket = WebSocketServerTransport("ws://127.0.0.1:0/ws", allowed_origins=allowed_origins)
        http = HttpServerTransport("http://127.0.0.1:0/mcp", allowed_origins=allowed_origins)
        async with trio.open_nursery() as nursery:
            urls = await nursery.start(server.serve, websocket, http)
            yield cls("ws={}&http={}".format(*urls), websocket, echoed)
            nursery.cancel_scope.cancel()


async def reported(browser: str, name: str, allowed: str | None) -> tuple[dict[str, Any], Served]:
    """What a page from the host ``name`` tells; ``allowed`` is the host that the server was told to let in."""
    with trio.fail_after(LIMIT + 10):
        async with Site.open() as site:
            origins = None if allowed is None else [f"http://{allowed}:{site.port}"]
            async with Served.open(origins) as served:
                report = await visit(browser, site, name, served.query)
                assert report["origin"] == f"http://{name}:{site.port}"
                return report, served


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        pytest.param("app.example.com", "app.example.com", id="named"),
        pytest.param("localhost", None, id="loopback-by-default"),
    ],
)
async def test_a_page_that_may(browser: str, name: str, allowed: str | None) -> None:
    report, served = await reported(browser, name, allowed)
    introduction = {"server": "for-pages", "tools": ["echo"], "text": TEXT}
    assert report["websocket"] == {
        **introduction,
        "protocol": "mcp",
        "extensions": "",
        "closed": 1003,  # a binary frame is none of MCP's
    }
    assert report["http"] == {**introduction, "session": True, "ended": True}
    assert report["modern"] == {"text": TEXT}
    assert report["title"] == "works"
    assert len(served.echoed) == 3
    assert served.websocket.statistics().refused == 0


@pytest.mark.parametrize(
    "allowed",
    [pytest.param("app.example.com", id="others-are-named"), pytest.param(None, id="nobody-is-named")],
)
async def test_a_page_from_a_foreign_origin_is_refused(browser: str, allowed: str | None) -> None:
    report, served = await reported(browser, "evil.example.com", allowed)
    assert report["websocket"] == {"refused": "closed with 1006"}  # pages are told no more
    assert served.websocket.statistics().refused == 1
    assert report["http"] == {"refused": "Failed to fetch"}
    assert report["modern"] == {"refused": "Failed to fetch"}
    assert report["title"] == "refused"
    # What needs no leave of the server was sent: the browser shows nothing of the answer, and nothing was done.
    assert report["blind"] == {"saw": "opaque"}
    assert served.echoed == []


async def test_loopback_pages_are_foreign_once_another_origin_is_named(browser: str) -> None:
    report, served = await reported(browser, "localhost", "app.example.com")
    assert report["websocket"] == {"refused": "closed with 1006"}
    assert report["http"] == {"refused": "Failed to fetch"}
    assert served.echoed == []


# -- The page of the live view in a real browser: what it shows, and what a peer's names can make of it ---

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'


async def called(client: Client, tool: str, caught: list[RpcError]) -> None:
    try:
        # It is in flight for as long as the page is looked at.
        await client.call_tool(tool, {"name": "x"}, timeout=LIMIT)
    except RpcError as error:
        caught.append(error)


@asynccontextmanager
async def watched(browser: str, server: Server) -> AsyncIterator[tuple[Tab, Client, trio.CancelScope]]:
    """Yields a tab with the live view of a server, a client of it, and the scope in which it is served."""
    lines = list[str]()
    admin = AdminTransport("http://127.0.0.1:0", interval=0.2, say=lines.append)
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery, trio.open_nursery() as serving:
            url, _ = await serving.start(server.serve, "http://127.0.0.1:0/mcp", admin)
            async with Client(url, era="legacy", info=Implementation(HOSTILE, "1")) as client:
                await tab.visit(lines[0].removeprefix("live view at "))
                yield tab, client, serving.cancel_scope
            nursery.cancel_scope.cancel()
            serving.cancel_scope.cancel()


def holding() -> Server:
    server = Server("watched", telemetry=Metrics())

    @server.tool(name=HOSTILE)
    async def hold(name: str) -> str:
        await trio.sleep_forever()
        return name

    @server.tool
    async def fail(name: str) -> str:
        raise ValueError("the disk is full")

    return server


async def test_it_shows_calls_as_text_and_cancels_one_after_a_question(browser: str) -> None:
    caught = list[RpcError]()
    async with watched(browser, holding()) as (tab, client, _), trio.open_nursery() as calls:
        calls.start_soon(called, client, HOSTILE, caught)
        await tab.until("document.querySelectorAll('button.act').length === 2")
        text = await tab.evaluate("document.querySelector('#main').textContent")
        # The client's name, and that of the tool.
        assert text.count(HOSTILE) == 2
        assert "tools/call" in text
        assert await tab.evaluate("document.querySelectorAll('figure svg').length") == 8
        assert await tab.evaluate("document.querySelectorAll('img').length") == 0
        await tab.evaluate("document.querySelector('button.act').click()")
        assert await tab.evaluate("document.activeElement.id") == "no"
        question = await tab.evaluate("document.querySelector('dialog[open]').textContent")
        assert all(each in question for each in ("Cancel this call?", HOSTILE, "age", "not authenticated"))
        await tab.evaluate("document.querySelector('#yes').click()")
        while not caught:
            await trio.lowlevel.checkpoint()
        await tab.until("document.querySelector('#said').textContent.includes('was cancelled')")
        assert await tab.evaluate("typeof window.owned") == "undefined"
        # A page of its own cannot be given markup, even by mistake.
        assert await tab.evaluate(
            "try { document.body.innerHTML = '<b>x</b>' } catch (error) { error.name }"
        ) == ("TypeError")
    assert "an operator of the server" in str(caught[0])


async def test_it_says_first_whether_the_server_is_healthy(browser: str) -> None:
    async with watched(browser, holding()) as (tab, client, _):
        await tab.until("document.querySelector('#verdict').textContent === 'healthy'")
        for _ in range(6):
            await client.call_tool("fail", {"name": "x"})
        # Before the last call has failed, fewer may have been enough.
        told = "fail: 6 of 6 calls failed in the last minute"
        await tab.until(f"document.querySelector('#troubles').textContent === {json.dumps(told)}")
        assert await tab.evaluate("document.querySelector('#verdict').textContent") == "1 trouble"
        (row,) = await rows_of(tab, "tools and other requests", "fail")
        assert row[2:4] == ["6", "6"]
        assert row[4].endswith("ms")
        # It loads nothing, and talks to its own server alone.
        hosts = (
            "performance.getEntriesByType('resource').every((each) => each.name.startsWith(location.origin))"
        )
        assert await tab.evaluate(hosts)


async def rows_of(tab: Tab, title: str, name: str) -> list[list[str]]:
    script = f"""JSON.stringify([...document.querySelector('table[aria-label="{title}"]').tBodies[0].rows]
        .map((row) => [...row.cells].map((cell) => cell.textContent)))"""
    return [row for row in json.loads(await tab.evaluate(script)) if row[0] == name]


async def test_numbers_of_a_server_that_is_gone_are_not_shown_as_new_ones(browser: str) -> None:
    async with watched(browser, holding()) as (tab, _, serving):
        await tab.until("document.querySelector('#verdict').textContent === 'healthy'")
        # A machine that stands still for seconds is taken for a server that says nothing.
        await tab.until("document.querySelector('#gone').hidden")
        serving.cancel()
        await tab.until("!document.querySelector('#gone').hidden")
        banner = await tab.evaluate("document.querySelector('#gone').textContent")
        assert "What is below is what it said" in banner
        assert await tab.evaluate("document.body.className") == "stale"
        assert await tab.evaluate("document.querySelector('#verdict').hidden")
        assert await tab.evaluate("document.title") == "✗ watched : gone"


async def test_it_can_be_used_with_the_keyboard_while_it_changes(browser: str) -> None:
    async with watched(browser, holding()) as (tab, client, _), trio.open_nursery() as calls:
        calls.start_soon(called, client, HOSTILE, [])
        await tab.until("document.querySelectorAll('button.act').length === 2")
        await tab.evaluate("document.querySelector('button.act').focus()")
        label = await tab.evaluate("document.activeElement.getAttribute('aria-label')")
        assert label.startswith(f"cancel {HOSTILE}, ")
        # Another snapshot has come, and a row before this one.
        calls.start_soon(called, client, HOSTILE, [])
        await tab.until("document.querySelectorAll('button.act').length === 3")
        assert await tab.evaluate("document.activeElement.className") == "act"
        await tab.evaluate("document.activeElement.click()")
        await tab.evaluate("document.querySelector('#no').click()")
        await tab.until("!document.querySelector('dialog[open]')")
        assert await tab.evaluate("document.activeElement.className") == "act"
        sorts = "document.querySelectorAll('th[aria-sort=descending]').length"
        assert await tab.evaluate(sorts) > 3
        left = "new KeyboardEvent('keydown', { key: 'ArrowLeft', cancelable: true })"
        await tab.evaluate(f"document.querySelector('figure svg').dispatchEvent({left})")
        chosen = await tab.evaluate("document.querySelector('figure svg').getAttribute('aria-label')")
        assert chosen.startswith("requests a second: now ")
        assert ", now: " in chosen
        calls.cancel_scope.cancel()


CARDS = """JSON.stringify({
    room: document.documentElement.clientWidth, page: document.documentElement.scrollWidth,
    plots: getComputedStyle(document.querySelector("#plots")).gridTemplateColumns.split(" ").length,
    cards: getComputedStyle(document.querySelector("tbody")).gridTemplateColumns.split(" ").length,
    buttons: [...document.querySelectorAll("button.act")].map((each) => each.getBoundingClientRect())
      .map(({ left, right, height }) => [left, right, height]),
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
})"""


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_the_live_view_fits_into_any_window(browser: str, colours: str) -> None:
    async with watched(browser, holding()) as (tab, client, _), trio.open_nursery() as calls:
        calls.start_soon(called, client, HOSTILE, [])
        await tab.until("document.querySelectorAll('button.act').length === 2")
        for width in (400, 1280):
            await tab.show_as(width=width, colours=colours)
            seen = json.loads(await tab.evaluate(CARDS))
            assert seen["page"] == seen["room"]
            assert all(0 <= left < right <= width for left, right, _ in seen["buttons"])
            if width == 400:
                assert (seen["plots"], seen["cards"]) == (2, 2)
                assert all(height >= 32 for _, _, height in seen["buttons"])
            else:
                assert seen["plots"] >= 4
            brightness = {part: sum(map(int, seen[part][4:-1].split(","))) for part in ("paper", "ink")}
            assert (brightness["paper"] > brightness["ink"]) == (colours == "light")
        calls.cancel_scope.cancel()


async def test_without_its_token_it_shows_nothing_of_the_server(browser: str) -> None:
    server = Server("watched")
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            admin = AdminTransport("http://127.0.0.1:0", token="a-token-of-an-operator")
            _, where = await nursery.start(server.serve, "http://127.0.0.1:0/mcp", admin)
            await tab.visit(f"{where}/#wrong")
            while "token is missing or wrong" not in await tab.evaluate("document.body.textContent"):
                await trio.lowlevel.checkpoint()
            assert "watched" not in await tab.evaluate("document.body.textContent")
            nursery.cancel_scope.cancel()


async def test_a_token_with_a_percent_sign_opens_it(browser: str) -> None:
    token = "100%-secret-of-operators"
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            admin = AdminTransport("http://127.0.0.1:0", token=token)
            _, where = await nursery.start(Server("watched").serve, "http://127.0.0.1:0/mcp", admin)
            await tab.visit(f"{where}/#{token}")
            while "watched" not in await tab.evaluate("document.querySelector('header').textContent"):
                await trio.lowlevel.checkpoint()
            assert "1 node" in await tab.evaluate("document.querySelector('#state').textContent")
            nursery.cancel_scope.cancel()


# -- The page of a REST API: calls, progress, cancellation, keys, and what a hostile server sends ---------

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
async def test_the_page_of_a_rest_api_fits_into_any_window(
    browser: str, tmp_path: Path, colours: str
) -> None:
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


# -- The page of the benchmark suite: narrow and wide, light and dark ------------------------------------

# Contents that lead nowhere, what is wider than the window and in no box that scrolls, and two colours.
LOOK = """
(() => {
  const wide = document.documentElement.clientWidth;
  const out = [...document.body.querySelectorAll("*")].filter(
    (each) => !each.closest(".wide, svg") && each.getBoundingClientRect().right > wide + 1);
  const boxes = [...document.querySelectorAll(".wide")];
  const nowhere = [...document.querySelectorAll("nav a")].filter((each) => !document.querySelector(each.hash));
  return JSON.stringify({
    window: innerWidth, room: wide, page: document.documentElement.scrollWidth,
    out: out.map((each) => each.outerHTML.slice(0, 80)),
    links: document.querySelectorAll("nav a").length, nowhere: nowhere.length,
    scrolls: boxes.filter((each) => each.scrollWidth > each.clientWidth).length,
    plots: Math.max(...[...document.querySelectorAll("svg")].map((each) => each.getBoundingClientRect().width)),
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
  });
})()
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_it_fits_into_any_window(browser: str, tmp_path: Path, colours: str) -> None:
    (tmp_path / "page.html").write_text(page(made_up()))
    with trio.fail_after(LIMIT + 10):
        async with Tab.open(browser) as tab:
            for width in (400, 1200):
                await tab.show_as(width=width, colours=colours)
                await tab.visit((tmp_path / "page.html").as_uri())
                seen = json.loads(await tab.evaluate(LOOK))
                assert seen["window"] == width
                assert (seen["page"], seen["out"]) == (seen["room"], [])  # nothing moves sideways
                assert seen["plots"] < width
                assert seen["links"] > 4
                assert seen["nowhere"] == 0
                if width == 400:
                    assert seen["scrolls"] > 0  # but tables in boxes of their own
                brightness = {part: sum(map(int, seen[part][4:-1].split(","))) for part in ("paper", "ink")}
                assert (brightness["paper"] > brightness["ink"]) == (colours == "light")
