"""Two servers that share a bus: what changes at one is heard by those who listen at the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_actors import Client, Server
from mcp_actors.client import Event
from tests.nodes import LocalNodes

from .stocks import ID, Stocks, market, stocks, watcher

URI = "x://a"


class Node:
    """A server at which one client listens."""

    def __init__(self, nodes: LocalNodes, era: str) -> None:
        self.era = era
        self.made: Stocks = stocks()
        self.server: Server = market(self.made.extension, shared=nodes)
        self.server.add_resource(URI, lambda: "a", name="a")
        self.server.add_prompt(lambda: "p", name="p")
        self.events: list[Event] = []
        self.extension, self.told = watcher()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async def follow(listener: Any) -> None:
            async for event in listener:
                self.events.append(event)

        client = Client(self.server, era=self.era, extensions=[self.extension])
        async with client, trio.open_nursery() as nursery:
            members = {"stocks": ["ACME", "HIDDEN"]}
            async with client.listen(
                tools=True, prompts=True, resources=True, uris=(URI,), members=members
            ) as listener:
                nursery.start_soon(follow, listener)
                await wait_all_tasks_blocked()
                yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def two(era: str = "modern") -> AsyncIterator[tuple[Node, Node, LocalNodes]]:
    nodes = LocalNodes()
    one, other = Node(nodes, era), Node(nodes, era)
    async with one.listening(), other.listening():
        yield one, other, nodes


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_changes_at_one_node_are_heard_at_the_other(era: str) -> None:
    async with two(era) as (one, other, _):
        one.server.add_tool(lambda: None, name="new")
        one.server.add_prompt(lambda: "q", name="q")
        one.server.add_resource("x://b", lambda: "b", name="b")
        one.server.resource_updated(URI)
        await wait_all_tasks_blocked()
    assert one.events == other.events
    assert [event.kind for event in other.events] == ["tools", "prompts", "resources", "resource_updated"]


async def test_keys_of_extensions_are_heard_at_the_other_node() -> None:
    async with two() as (one, other, nodes):
        other.made.prices["ACME"] = 9.0
        one.made.set("ACME", 9.0)
        one.made.set("HIDDEN", 9.0)
        await wait_all_tasks_blocked()
        assert nodes.buses[0].published == [(f"{ID}/stocks", "ACME"), (f"{ID}/stocks", "HIDDEN")]
    assert one.told == other.told == [{"name": "ACME", "price": 9.0}]


async def test_what_comes_from_another_node_is_not_published_again() -> None:
    async with two() as (one, _, nodes):
        one.server.resource_updated(URI)
        await wait_all_tasks_blocked()
        assert [bus.published for bus in nodes.buses] == [[("resource_updated", URI)], []]


async def test_many_changes_are_one_for_a_slow_reader_at_the_other_node() -> None:
    async with two() as (one, other, _):
        for _ in range(100):
            one.server.resource_updated(URI)
        await wait_all_tasks_blocked()
    assert other.events == [Event("resource_updated", URI)]


async def test_after_lost_events_everything_counts_as_changed() -> None:
    async with two() as (one, other, nodes):
        nodes.buses[1].cut = True
        one.server.resource_updated(URI)
        await wait_all_tasks_blocked()
        assert other.events == []
        nodes.buses[1].miss()
        await wait_all_tasks_blocked()
    assert {event.kind for event in other.events} == {"tools", "prompts", "resources", "resource_updated"}
    assert [told["name"] for told in other.told] == ["ACME"]


async def test_events_that_nobody_here_knows_do_no_harm() -> None:
    async with two() as (one, other, nodes):
        for topic, key in [("resource_updated", ""), ("tools", "x"), ("unknown/topic", "k"), ("", "")]:
            nodes.buses[0].publish(topic, key)
        one.server.resource_updated(URI)
        await wait_all_tasks_blocked()
    assert other.events == [Event("tools"), Event("resource_updated", URI)]


async def test_a_worker_thread_reaches_the_other_node() -> None:
    async with two() as (one, other, _):
        await trio.to_thread.run_sync(one.server.resource_updated, URI)
        await trio.to_thread.run_sync(one.made.set, "ACME", 1.0)
        await wait_all_tasks_blocked()
    assert other.events == [Event("resource_updated", URI)]
    assert [told["name"] for told in other.told] == ["ACME"]


async def test_a_node_that_nobody_listens_at_is_joined_too() -> None:
    nodes = LocalNodes()
    listening, other = Node(nodes, "modern"), Node(nodes, "modern")
    async with listening.listening(), Client(other.server):
        await trio.to_thread.run_sync(other.server.resource_updated, URI)
        await wait_all_tasks_blocked()
    assert listening.events == [Event("resource_updated", URI)]


async def test_a_server_that_has_stopped_has_left_the_bus() -> None:
    nodes = LocalNodes()
    node = Node(nodes, "modern")
    async with Client(node.server):
        (bus,) = nodes.buses
    node.server.resource_updated(URI)
    assert bus.published == []
    assert bus._takes == {}


async def test_on_subscribe_is_of_each_node() -> None:
    nodes = LocalNodes()
    one, other = Node(nodes, "modern"), Node(nodes, "modern")
    subscribed: list[str] = []
    one.server.on_subscribe = lambda uri: subscribed.append(f"one {uri}")
    other.server.on_subscribe = lambda uri: subscribed.append(f"other {uri}")
    async with one.listening(), Client(other.server):
        pass
    assert subscribed == [f"one {URI}"]
