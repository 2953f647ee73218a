"""Plain callbacks of the sync client that call the client themselves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mcp_actors import Context, Server
from mcp_actors.bridges import thread_bridge
from mcp_actors.errors import McpError
from mcp_actors.sync import Client
from mcp_actors.types import ElicitResult

SECONDS = 20


def asking_server() -> Server:
    server = Server("asks")

    @server.tool
    async def ask(ctx: Context, question: str) -> str:
        answer = await ctx.elicit(question, {"type": "object", "properties": {"name": {"type": "string"}}})
        return answer.action

    return server


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_callbacks_wait_for_each_other_in_every_place_that_there_is(era: str) -> None:
    many = thread_bridge.MOST
    all_wait = threading.Barrier(many)

    def elicit(question: Any) -> ElicitResult:
        if question.message == "outer":
            all_wait.wait(SECONDS)
            client.call_tool("ask", {"question": "inner"})
        return ElicitResult("accept", {"name": "x"})

    client = Client(asking_server(), era=era, elicitation=elicit).open()
    with ThreadPoolExecutor(many) as pool:
        calls = [pool.submit(client.call_tool, "ask", {"question": "outer"}) for _ in range(many)]
        try:
            assert {each.result(SECONDS).text for each in calls} == {"accept"}
        finally:
            client.close()


def test_a_callback_that_leads_to_itself_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_bridge, "MOST_WAITING", 10)
    errors: list[Exception] = []

    def elicit(question: Any) -> ElicitResult:
        try:
            client.call_tool("ask", {"question": "again"})
        except McpError as error:
            errors.append(error)
        return ElicitResult("accept", {"name": "x"})

    with Client(asking_server(), era="legacy", elicitation=elicit) as client:
        assert client.call_tool("ask", {"question": "first"}).text == "accept"
    assert ["for ever" in str(each) for each in errors] == [True]
