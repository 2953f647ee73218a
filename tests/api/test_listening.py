"""Subscriptions as a server keeps them, seen from the wire in both eras; and lists that change while it serves."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Server
from mcp_actors.testing import ScriptedPeer, raw_client

from .peers import LEGACY, SERVER_INFO, SUBSCRIPTION_ID, begin, meta, modern

ACK = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x://a"],
}


def make_server(**options: Any) -> Server:
    server = Server("s", **options)
    server.add_tool(lambda: None, name="t")
    server.add_prompt(lambda: "p", name="p")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_resource("x://b", lambda: "b", name="b")
    return server


async def listen(peer: ScriptedPeer, id: int | str, **filter: Any) -> dict[str, Any]:
    """Opens a subscription; the acknowledgement."""
    params = {"notifications": filter, "_meta": meta()}
    await peer.send({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})
    acknowledgement: dict[str, Any] = await peer.receive()
    assert acknowledgement["method"] == ACK
    return acknowledgement


async def cancel(peer: ScriptedPeer, id: int | str) -> None:
    await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
    await wait_all_tasks_blocked()


async def nothing(peer: ScriptedPeer) -> None:
    """Nothing comes for a long time."""
    with trio.move_on_after(100) as waited:
        message = await peer.receive()
        raise AssertionError(f"unexpected: {message}")
    assert waited.cancelled_caught


@pytest.mark.parametrize("id", [0, 5, "", "5"])
async def test_the_acknowledgement_comes_first_and_tags_keep_their_type(id: int | str) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        server.remove_prompt("p")
        acknowledgement = await listen(peer, id, **EVERYTHING)
        assert acknowledgement["params"]["notifications"] == EVERYTHING
        server.remove_tool("t")
        server.resource_updated("x://a")
        for message, method in (
            (acknowledgement, ACK),
            (await peer.receive(), "notifications/tools/list_changed"),
        ):
            assert message["method"] == method
            tag = message["params"]["_meta"][SUBSCRIPTION_ID]
            assert (type(tag), tag) == (type(id), id)
        updated = await peer.receive()
        assert updated["params"] == {"uri": "x://a", "_meta": {SUBSCRIPTION_ID: id}}


async def test_an_event_in_the_turn_of_the_request_is_neither_lost_nor_early() -> None:
    server = make_server()
    server.on_listen = lambda ctx: server.resource_updated("x://a")
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        assert (await peer.receive())["method"] == UPDATED


async def test_only_what_was_asked_for_is_told(autojump_clock: MockClock) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await listen(
            peer, 1, promptsListChanged=True, toolsListChanged=False, resourceSubscriptions=["x://b"]
        )
        server.remove_tool("t")
        server.remove_resource("x://a")
        server.resource_updated("x://a")
        await nothing(peer)
        server.remove_prompt("p")
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        server.resource_updated("x://b/below")
        assert (await peer.receive())["params"]["uri"] == "x://b/below"


async def test_what_is_not_offered_is_not_promised() -> None:
    server = Server("tools only")
    server.add_tool(lambda: None, name="t")
    async with raw_client(server) as peer:
        acknowledgement = await listen(peer, 1, **EVERYTHING, taskIds=["1"])
        assert acknowledgement["params"]["notifications"] == {"toolsListChanged": True}
        acknowledgement = await listen(peer, 2)
        assert acknowledgement["params"]["notifications"] == {}


@pytest.mark.parametrize("filter", [5, [], "x", {"toolsListChanged": "yes"}, {"resourceSubscriptions": [5]}])
async def test_a_filter_that_is_none_is_invalid(filter: Any) -> None:
    async with raw_client(make_server()) as peer:
        answer = await modern(peer, 1, "subscriptions/listen", {"notifications": filter})
        assert answer["error"]["code"] == -32602


async def test_each_of_many_subscriptions_hears_of_it_once(autojump_clock: MockClock) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, "1", resourceSubscriptions=["x://a", "x://b"])
        await listen(peer, 3, toolsListChanged=True)
        server.resource_updated("x://a")
        tags = [(await peer.receive())["params"]["_meta"][SUBSCRIPTION_ID] for _ in range(2)]
        assert set(tags) == {1, "1"}
        await nothing(peer)


async def test_cancelled_ends_it_in_silence(autojump_clock: MockClock) -> None:
    server = make_server()
    gone: list[str] = []
    server.on_unsubscribe = gone.append
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, 2, toolsListChanged=True)
        await cancel(peer, 1)
        assert gone == ["x://a"]
        server.resource_updated("x://a")
        await nothing(peer)
        server.remove_tool("t")  # its neighbour lives on
        assert (await peer.receive())["params"]["_meta"][SUBSCRIPTION_ID] == 2


async def test_a_server_that_stops_says_so() -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await listen(peer, 1, toolsListChanged=True)
        await listen(peer, "2", **EVERYTHING)
        server.stop()
        answers = [await peer.receive(), await peer.receive()]
        for answer in sorted(answers, key=lambda answer: str(answer["id"])):
            result = answer["result"]
            assert result["resultType"] == "complete"
            assert result["_meta"][SUBSCRIPTION_ID] == answer["id"]
            assert type(result["_meta"][SUBSCRIPTION_ID]) is type(answer["id"])
            assert result["_meta"][SERVER_INFO]["name"] == "s"
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()


async def test_hooks_are_told_of_listeners_and_subscribers() -> None:
    server = make_server()
    told: list[str] = []
    server.on_listen = lambda ctx: told.append(f"listen {ctx.request_id}")
    server.on_unlisten = lambda ctx: told.append(f"unlisten {ctx.request_id}")
    server.on_subscribe = lambda uri: told.append(f"first {uri}")
    server.on_unsubscribe = lambda uri: told.append(f"last {uri}")
    async with raw_client(server) as peer:
        await listen(peer, 1, resourceSubscriptions=["x://a"])
        await listen(peer, 2, resourceSubscriptions=["x://a"])
        await cancel(peer, 1)
        assert told == ["first x://a", "listen 1", "listen 2", "unlisten 1"]
        await cancel(peer, 2)
        assert told[4:] == ["unlisten 2", "last x://a"]
        assert server.tree().bus.subscriptions == 0


async def test_the_stateless_revision_pushes_nothing_unasked(autojump_clock: MockClock) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await modern(peer, 1, "tools/list")
        await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        server.add_tool(lambda: None, name="new")
        server.resource_updated("x://a")
        await nothing(peer)


# -- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_hears_of_lists_unasked_and_of_resources_it_subscribed_to(
    version: str, autojump_clock: MockClock
) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await begin(peer, version)
        server.resource_updated("x://a")
        await nothing(peer)
        for id in (1, 2):  # twice is once
            assert (await peer.request(id, "resources/subscribe", {"uri": "x://a"}))["result"] == {}
        server.resource_updated("x://a")
        assert await peer.receive() == {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "x://a"}}
        await nothing(peer)
        server.add_tool(lambda: None, name="new")
        assert await peer.receive() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        server.remove_prompt("p")
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        server.remove_resource("x://b")
        assert (await peer.receive())["method"] == "notifications/resources/list_changed"
        assert (await peer.request(3, "resources/unsubscribe", {"uri": "x://a"}))["result"] == {}
        assert (await peer.request(4, "resources/unsubscribe", {"uri": "x://never"}))["result"] == {}
        server.resource_updated("x://a")
        await nothing(peer)


async def test_what_is_new_can_be_seen_when_it_is_told() -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await wait_all_tasks_blocked()
        server.add_tool(lambda: None, name="new")
        await peer.receive()
        names = [tool["name"] for tool in (await peer.request(1, "tools/list"))["result"]["tools"]]
        assert names == ["t", "new"]


async def test_the_end_of_a_session_drops_its_subscriptions() -> None:
    server = make_server()
    told: list[str] = []
    server.on_subscribe = lambda uri: told.append(f"first {uri}")
    server.on_unsubscribe = lambda uri: told.append(f"last {uri}")
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await peer.request(1, "resources/subscribe", {"uri": "x://a"})
        assert told == ["first x://a"]
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert told == ["first x://a", "last x://a"]
        assert server.tree().bus.subscriptions == 0


@pytest.mark.parametrize("said", ["notifications/initialized", "initialized", "tools/list"])
async def test_a_client_that_is_past_its_handshake_hears_of_changes(
    said: str, autojump_clock: MockClock
) -> None:
    """The right notification, the bare method of the tutorials, or none at all but a request."""
    server = make_server()
    async with raw_client(server) as peer:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.request(1, "initialize", params)
        if said == "tools/list":
            await peer.request(2, said)
        else:
            await peer.send({"jsonrpc": "2.0", "method": said})
        await wait_all_tasks_blocked()
        server.remove_tool("t")
        with trio.fail_after(10):
            assert (await peer.receive())["method"] == "notifications/tools/list_changed"


async def test_nobody_is_told_anything_before_the_handshake(autojump_clock: MockClock) -> None:
    server = make_server()
    async with raw_client(server) as peer:
        await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await wait_all_tasks_blocked()
        server.remove_tool("t")
        await nothing(peer)
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.request(1, "initialize", params)
        server.remove_prompt("p")
        await nothing(peer)  # until it says initialized, it gets answers and nothing else
