"""The site of the documentation in a real browser, from a folder of files: it is searched, read and copied from.

``MCP_ACTORS_SITE`` names the folder of a site that is built; otherwise the tests build it, with the extra ``docs``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from .chromium import LIMIT
from .tab import Tab

ROOT = Path(__file__).parent.parent.parent
BUILD = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs"]
SECONDS = 600  # for a build on a loaded machine; it takes 50 on two cores that are not

# What a browser fetches by itself while it shows a page: an address with a host in it is not of this folder.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preload|icon)["']?[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import ["'](?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = os.environ.get("MCP_ACTORS_SITE")
    if built:
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [*BUILD, folder], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr or "pip install -e '.[docs]' installs what builds the site"
    return folder


async def shown(tab: Tab, script: str) -> object:
    """What a script returns as soon as it is true: a search fills its page by itself."""
    while not (value := await tab.evaluate(script)):
        await trio.lowlevel.checkpoint()
    return value


async def test_a_search_finds_a_method_without_a_server(browser: str, site: Path) -> None:
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab:
            await tab.visit(f"{(site / 'search.html').as_uri()}?q=call_tool")
            await shown(tab, "document.querySelectorAll('#search-results li a').length > 3")
            found = json.loads(
                await tab.evaluate(
                    "JSON.stringify([...document.querySelectorAll('#search-results li a')].map((each) => each.href))"
                )
            )
    assert any("api/mcp_actors.client.html#mcp_actors.client.Client.call_tool" in each for each in found)


async def test_the_reference_of_a_class_opens(browser: str, site: Path) -> None:
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab:
            await tab.visit((site / "api" / "mcp_actors.client.html").as_uri())
            text = await tab.evaluate(
                "document.getElementById('mcp_actors.client.Client').parentElement.innerText"
            )
    assert "call_tool" in text
    assert "Raises" in text


async def test_a_program_is_copied_as_it_is_shown(browser: str, site: Path) -> None:
    copied = """
    (() => {
      const keep = (text) => { window.copied = text; return Promise.resolve(); };
      Object.defineProperty(navigator, "clipboard", { value: { writeText: keep } });
      document.execCommand = () => {
        keep(getSelection().toString() || document.activeElement.value);
        return true;
      };
      document.querySelector("div.highlight-python button.copybtn").click();
      return window.copied;
    })()
    """
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab:
            await tab.visit((site / "start" / "server.html").as_uri())
            text = await tab.evaluate(copied)
    assert text.startswith("# bookshop.py")
    assert "server.run()" in text


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("page", ["index.html", "how-to/asyncio.html", "api/mcp_actors.client.html"])
async def test_it_fits_into_any_window(browser: str, site: Path, page: str, width: int, colours: str) -> None:
    seen = """
    JSON.stringify({
      room: document.documentElement.clientWidth, page: document.documentElement.scrollWidth,
      paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    })
    """
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab:
            await tab.show_as(width=width, colours=colours)
            await tab.visit((site / page).as_uri())
            look = json.loads(await tab.evaluate(seen))
    assert look["page"] <= look["room"]  # nothing moves sideways
    brightness = {part: sum(map(int, re.findall(r"\d+", look[part])[:3])) for part in ("paper", "ink")}
    assert (brightness["paper"] > brightness["ink"]) == (colours == "light")


@pytest.mark.peers
def test_no_request_leaves_the_machine(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(pages) > 60
    assert [path.name for path in pages if FETCHED.search(path.read_text())] == []


@pytest.mark.peers
def test_there_are_lists_of_the_pages_for_models(site: Path) -> None:
    listed, whole = ((site / name).read_text() for name in ("llms.txt", "llms-full.txt"))
    links = re.findall(r"\]\(([^)]+)\): \S", listed)
    assert len(links) > 40
    assert all((site / link).is_file() for link in links)
    assert "# Your first server" in whole
