"""What a server declares before there is anything of it, and what clients that came before then are told."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Server
from mcp_actors.testing import ScriptedPeer, raw_client

from .peers import LEGACY, begin, meta, modern

TOOLS_CHANGED = "notifications/tools/list_changed"


async def nothing(peer: ScriptedPeer) -> None:
    """Nothing comes for a long time."""
    with trio.move_on_after(100) as waited:
        message = await peer.receive()
        raise AssertionError(f"unexpected: {message}")
    assert waited.cancelled_caught


def hello() -> str:
    """Says hello."""
    return "hello"


@pytest.mark.parametrize("name", ["tools", "resources", "prompts", "completions"])
async def test_what_is_named_is_declared_before_there_is_anything(name: Any) -> None:
    server = Server("early", capabilities=[name])
    async with raw_client(server) as peer:
        discovered = (await modern(peer, 1, "server/discover"))["result"]["capabilities"]
        initialized = (await peer.initialize("2025-11-25"))["capabilities"]
    assert set(discovered) == set(initialized) == {name, "logging"}


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list"])
async def test_a_list_that_is_declared_and_empty_is_answered(method: str) -> None:
    kind = method.partition("/")[0]
    server: Any = Server("early", capabilities=[kind])  # type: ignore[list-item]
    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25")
        assert (await peer.request(1, method))["result"] == {kind: []}


@pytest.mark.parametrize("era", [*LEGACY, "2026-07-28"])
async def test_a_client_that_came_before_the_tools_finds_them_and_hears_of_them(era: str) -> None:
    server = Server("early", capabilities=["tools"])
    heard = trio.Event()
    async with Client(server, era=era, on_change=lambda kind, uri: heard.set()) as client:
        assert [tool async for tool in client.tools()] == []
        await wait_all_tasks_blocked()
        server.add_tool(hello)
        with trio.fail_after(10):
            await heard.wait()
        assert [tool.name async for tool in client.tools()] == ["hello"]


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_is_not_notified_of_what_it_was_not_told_of(
    version: str, autojump_clock: MockClock
) -> None:
    server = Server("late", capabilities=["prompts"])
    async with raw_client(server) as peer:
        await begin(peer, version)
        await wait_all_tasks_blocked()
        server.add_tool(hello)
        server.add_resource("x://a", hello, name="a")
        await nothing(peer)
        server.add_prompt(hello)
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        # Asking is not forbidden to it, and the next session is told.
        assert (await peer.request(1, "tools/list"))["result"]["tools"][0]["name"] == "hello"


async def test_a_listener_hears_of_what_is_registered_after_it_came() -> None:
    server = Server("late")
    async with raw_client(server) as peer:
        asked = {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]}
        params = {"notifications": asked, "_meta": meta()}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
        assert (await peer.receive())["params"]["notifications"] == {}  # nothing of it is offered yet
        server.add_tool(hello)
        with trio.fail_after(10):
            assert (await peer.receive())["method"] == TOOLS_CHANGED
        server.add_resource("x://a", hello, name="a")
        server.resource_updated("x://a")
        with trio.fail_after(10):
            assert (await peer.receive())["params"]["uri"] == "x://a"


@pytest.mark.parametrize("capabilities", ["tools", ["tool"], {"tools": {}, "logging": {}}])
def test_an_unknown_name_is_refused_with_the_known_ones(capabilities: Any) -> None:
    with pytest.raises(ValueError, match="tools, resources, prompts, completions"):
        Server("wrong", capabilities=capabilities)


def test_a_time_to_live_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        Server("wrong", ttl_ms=-1)


@pytest.mark.parametrize("params", [{}, {"notifications": None}])
async def test_a_listener_has_to_say_what_it_wants(params: dict[str, Any]) -> None:
    server = Server("late")
    async with raw_client(server) as peer:
        answer = await modern(peer, 1, "subscriptions/listen", params)
        assert answer["error"]["code"] == -32602
