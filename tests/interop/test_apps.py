"""Pages of tools (SEP-1865) with others: servers of the official Python SDK, of FastMCP and of the extension's own
examples, and a host in a browser.

The host is made of the official AppBridge and TypeScript SDK, as the reference host of the extension is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trio
from browser.tab import Tab

from mcp_actors import Client, Server
from mcp_actors.examples import board
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.types import AppCsp, AppPage
from mcp_transports.http.server import HttpServerTransport

from .installation import Peers, find_node, install_separately
from .servers import DRIVERS
from .user import LIMIT

HTML = "<!doctype html><title>Clock</title>"
EACH_ERA = pytest.mark.parametrize("era", ["legacy", "auto"])
EACH_SERVER = pytest.mark.parametrize("kind", ["official", "fastmcp"])


def server_of(peers: Peers, kind: str) -> list[str]:
    python = peers.python if kind == "official" else peers.fastmcp
    return [str(python), str(DRIVERS / "apps_server.py"), kind]


# -- servers of others -----------------------------------------------------------------------------------------------


@EACH_ERA
@EACH_SERVER
async def test_our_client_reads_the_page_of_a_server_of_others(peers: Peers, kind: str, era: str) -> None:
    with trio.fail_after(LIMIT):
        async with Client(server_of(peers, kind), era=era, apps=True) as client:
            # In sessions they declare no extensions, and pages do not depend on that.
            assert client.extensions == ({"io.modelcontextprotocol/ui": {}} if era == "auto" else {})
            (tool,) = [each async for each in client.tools()]
            assert tool.name == "show"
            assert await client.app(tool) == AppPage(
                "ui://clock/view",
                HTML,
                csp=AppCsp(connect=("https://api.example.com",)),
                permissions=frozenset({"clipboardWrite"}),
                prefers_border=True,
            )
            assert (await client.call_tool("show")).text == "shown True"
            assert (await client.call_tool("refresh")).text == "fresh"
        async with Client(server_of(peers, kind), era=era) as client:
            assert (await client.call_tool("show")).text == "shown False"


async def test_a_gateway_keeps_the_pages_of_both_apart(peers: Peers) -> None:
    gateway = Gateway(
        [Upstream(name=kind, target=server_of(peers, kind)) for kind in ("official", "fastmcp")]
    )
    with trio.fail_after(LIMIT):
        async with Client(gateway, apps=True) as client:
            tools = [each async for each in client.tools(for_apps=True)]
            assert {each.name: each.app_uri for each in tools} == {
                "official_show": "ui://official/clock/view",
                "official_refresh": "ui://official/clock/view",
                "fastmcp_show": "ui://fastmcp/clock/view",
                "fastmcp_refresh": "ui://fastmcp/clock/view",
            }
            assert {(await client.app(each)).html for each in tools} == {HTML}
            assert (await client.call_tool("fastmcp_show")).text == "shown True"


OSM, CESIUM = "https://*.openstreetmap.org", ("https://cesium.com", "https://*.cesium.com")
# The tools of each example with their pages, who may call them, and the origins of the pages.
EXAMPLES: dict[str, tuple[dict[str, tuple[str | None, set[str]]], AppCsp]] = {
    "server-basic-vanillajs": ({"get-time": ("ui://get-time/mcp-app.html", {"model", "app"})}, AppCsp()),
    "server-map": (
        {"show-map": ("ui://cesium-map/mcp-app.html", {"model", "app"}), "geocode": (None, {"model", "app"})},
        AppCsp(connect=(OSM, *CESIUM), resources=(OSM, *CESIUM)),
    ),
    "server-system-monitor": (
        {
            "get-system-info": ("ui://system-monitor/mcp-app.html", {"model", "app"}),
            "poll-system-stats": (None, {"app"}),
        },
        AppCsp(),
    ),
}


def example(name: str) -> list[str]:
    program = (
        install_separately("apps") / "node_modules" / "@modelcontextprotocol" / name / "dist" / "index.js"
    )
    return [str(find_node(Path(sys.executable))), str(program), "--stdio"]


@EACH_ERA
@pytest.mark.parametrize("name", EXAMPLES)
async def test_our_client_reads_the_pages_of_the_official_examples(peers: Peers, name: str, era: str) -> None:
    wanted, csp = EXAMPLES[name]
    target = example(name)
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, apps=True) as client:
            tools = [each async for each in client.tools(for_apps=True)]
            assert {each.name: (each.app_uri, each.visibility) for each in tools} == wanted
            page = await client.app(tools[0])
            assert page.html.startswith("<!")
            assert (page.csp, page.permissions) == (csp, frozenset())
            assert (await client.call_tool(tools[0].name, {})).text


# -- a host of others ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(peers: Peers) -> str:
    """The URL of a page that is a host."""
    modules = install_separately("apps")
    command = [str(find_node(Path(sys.executable))), str(DRIVERS / "apps_host.mjs"), str(modules)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def shown(
    browser: str, host: str, server: Server, tool: str, input: object, **options: str
) -> AsyncIterator[Tab]:
    """A tab with the host, which shows the result of one call of a tool of our server."""
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", allowed_origins=[host.rstrip("/")])
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)
        query = urlencode({"server": url, "tool": tool, "input": json.dumps(input), **options})
        async with Tab.open(browser) as tab:
            await tab.show_as(width=800, colours=options.get("theme", "light"))
            await tab.visit(f"{host}?{query}")
            await tab.until("window.happened?.shown || window.happened?.failure")
            assert await tab.evaluate("window.happened.failure") is None
            yield tab
        nursery.cancel_scope.cancel()


TITLES = "[...each.querySelectorAll('article')].map((card) => card.firstChild.textContent)"
COLUMNS = f"JSON.stringify([...document.querySelectorAll('section')].map((each) => {TITLES}))"


@pytest.mark.parametrize("behind", ["nothing", "gateway", "gateway with the name of the tool"])
@EACH_ERA
async def test_the_official_host_shows_the_board(browser: str, host: str, era: str, behind: str) -> None:
    server: Server = board.server
    tool = "add_card"
    if behind != "nothing":
        server, tool = Gateway([Upstream(name="our", target=board.server)]), "our_add_card"
    options = {"mode": era, **({"info": "yes"} if "name" in behind else {})}
    with trio.fail_after(LIMIT):
        async with shown(browser, host, server, tool, {"title": "Write <b>tests</b>"}, **options) as tab:
            await tab.until("document.querySelectorAll('article').length > 0", depth=2)
            first = json.loads(await tab.evaluate(COLUMNS, depth=2))
            assert first[0][-1] == "Write <b>tests</b>"
            # A page tells its size when it has been laid out, which is later.
            await tab.until("window.happened.sizes.length > 0")
            # A person moves the card, and writes another one.
            last = "[...document.querySelectorAll('section')][0].querySelector('article:last-child')"
            await tab.evaluate(f"{last}.querySelectorAll('button')[1].click()", depth=2)
            await tab.until(f"{COLUMNS} !== {json.dumps(json.dumps(first, separators=(',', ':')))}", depth=2)
            await tab.evaluate("document.querySelector('#title').value = 'Tell the model'", depth=2)
            await tab.evaluate("document.querySelector('form').requestSubmit()", depth=2)
            await tab.until("document.body.textContent.includes('Tell the model')", depth=2)
            columns = json.loads(await tab.evaluate(COLUMNS, depth=2))
            assert columns[1][-1] == "Write <b>tests</b>"
            assert columns[0][-1] == "Tell the model"
            await tab.until("window.happened.contexts.length === 2")
            happened = json.loads(await tab.evaluate("JSON.stringify(window.happened)"))
            prefix = "our_" if tool == "our_add_card" else ""
            assert happened["uri"] == f"ui://{'our/' if prefix else ''}board.html"
            assert happened["appOnly"] == [f"{prefix}move_card", f"{prefix}remove_card"]
            called = prefix if "name" in behind else ""
            assert happened["calls"] == [f"{called}move_card", f"{called}add_card"]
            if place := os.environ.get("MCP_ACTORS_PICTURES"):
                (Path(place) / f"board-{era}-{behind.replace(' ', '-')}.png").write_bytes(await tab.picture())


@EACH_ERA
async def test_the_official_host_shows_an_official_page_through_our_gateway(
    browser: str, host: str, era: str
) -> None:
    """Which calls a tool of its server that is for pages alone, by the name that it has there."""
    gateway = Gateway([Upstream(name="monitor", target=example("server-system-monitor"))])
    with trio.fail_after(LIMIT):
        async with shown(browser, host, gateway, "monitor_get-system-info", {}, mode=era) as tab:
            await tab.until("window.happened.calls.length > 0")
            assert await tab.evaluate("window.happened.calls[0]") == "poll-system-stats"
            assert await tab.evaluate("window.happened.uri") == "ui://monitor/system-monitor/mcp-app.html"
            assert json.loads(await tab.evaluate("JSON.stringify(window.happened.appOnly)")) == [
                "monitor_poll-system-stats"
            ]
            await tab.until(f"document.body.innerText.includes({json.dumps(os.uname().nodename)})", depth=2)
            if place := os.environ.get("MCP_ACTORS_PICTURES"):
                (Path(place) / f"monitor-{era}.png").write_bytes(await tab.picture())
