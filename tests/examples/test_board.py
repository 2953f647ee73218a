"""The example of a board: its cards belong to the session, its page is a document, and its buttons are for the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client
from mcp_actors.examples import board
from mcp_actors.types import AppCsp

EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


def titles(result: Any) -> list[tuple[str, str]]:
    return [(each["title"], each["column"]) for each in result.structured_content["cards"]]


@EACH_ERA
async def test_the_cards_are_moved_and_removed_and_belong_to_the_session(era: str) -> None:
    async with Client(board.server, era=era) as client, Client(board.server, era=era) as other:
        await client.call_tool("add_card", {"title": "one"})
        result = await client.call_tool("add_card", {"title": "two", "column": "doing"})
        assert titles(result) == [("one", "to do"), ("two", "doing")]
        one, two = (each["id"] for each in result.structured_content["cards"])
        await client.call_tool("move_card", {"id": one, "column": "done"})
        await client.call_tool("remove_card", {"id": two})
        assert titles(await client.call_tool("show_board")) == [("one", "done")]
        assert titles(await other.call_tool("show_board")) == []
        for wrong in ({"title": ""}, {"title": "x" * 121}, {"title": "x", "column": "never"}):
            assert (await client.call_tool("add_card", wrong)).is_error


async def test_the_board_is_bounded() -> None:
    async with Client(board.server) as client:
        for number in range(board.MOST_CARDS):
            await client.call_tool("add_card", {"title": str(number)})
        refused = await client.call_tool("add_card", {"title": "more"})
        assert refused.is_error
        assert "remove some first" in refused.text


async def test_the_page_needs_nothing_and_calls_tools_that_there_are() -> None:
    async with Client(board.server, apps=True) as client:
        tools = {each.name: each async for each in client.tools(for_apps=True)}
        assert [each.name async for each in client.tools()] == ["show_board", "add_card"]
        page = await client.app(tools["show_board"])
    assert (page.uri, page.csp, page.prefers_border) == ("ui://board.html", AppCsp(), True)
    assert page.html == Path(board.__file__).with_name("board.html").read_text()
    called = set(re.findall(r'call\("(\w+)"', page.html))
    assert called == {"add_card", "move_card", "remove_card"}
    assert called <= tools.keys()
    assert not re.search(r"innerHTML|(?:src|href)=|https?:", page.html)
