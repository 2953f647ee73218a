"""The page of the benchmark suite in a real browser: narrow and wide, light and dark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from benchmarks.suite.page import page
from tests.benchmarks.test_suite_reports import made_up

from .chromium import LIMIT
from .tab import Tab

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
