"""Lists and resources that keep themselves: the state first, then what differs, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, RpcError, Server
from mcp_actors.auth import BearerToken
from mcp_actors.client import ListChange
from mcp_actors.errors import (
    AuthorizationError,
    ConnectionLost,
    LocalProtocolError,
    ResourceNotFound,
    SubscriptionLost,
)
from mcp_actors.gateway import Upstream
from mcp_actors.testing import Faults, FaultyTransport, ScriptedPeer, raw_server
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import serve_gateway
from tests.messages import initialize_result
from tests.scripted_peers import MODERN, fail, reply, scripted, tell
from tests.transports.http.scripted import URL, Asked, Script, Stream, sse

ACK = "notifications/subscriptions/acknowledged"
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


def make_server(*names: str, **options: Any) -> Server:
    server = Server("s", **options)
    for name in names:
        server.add_tool(lambda: None, name=name)
    return server


def shown(change: ListChange[Any]) -> dict[str, list[str]]:
    """The names in a change, without the parts that are empty."""
    parts = {
        part: [each.name for each in getattr(change, part)] for part in ("added", "removed", "changed", "all")
    }
    return {part: found for part, found in parts.items() if found}


def frames_out(client: Client) -> int:
    link = client.tree().link
    assert link is not None
    return link.frames_out


async def nothing_follows(changes: AsyncIterator[Any]) -> None:
    with trio.move_on_after(100) as waited:
        raise AssertionError(f"unexpected: {await anext(changes)}")
    assert waited.cancelled_caught


# -- both eras --------------------------------------------------------------------------------------------------------


@ERAS
async def test_first_the_list_and_then_what_differs(era: str, autojump_clock: MockClock) -> None:
    server = make_server("a", "b")
    async with Client(server, era=era) as client, client.watch_tools() as tools:
        assert shown(await anext(tools)) == {"added": ["a", "b"], "all": ["a", "b"]}
        server.add_tool(lambda: None, name="c")
        assert shown(await anext(tools)) == {"added": ["c"], "all": ["a", "b", "c"]}
        server.remove_tool("a")
        assert shown(await anext(tools)) == {"removed": ["a"], "all": ["b", "c"]}
        server.remove_tool("b")
        server.add_tool(lambda: None, name="b", description="another one")
        change = await anext(tools)
        assert shown(change) == {"changed": ["b"], "all": ["c", "b"]}
        assert change.changed[0].description == "another one"
        await nothing_follows(tools)


@ERAS
async def test_resources_and_prompts_are_watched_as_well(era: str, autojump_clock: MockClock) -> None:
    server = Server("s")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_prompt(lambda: "p", name="p")
    async with (
        Client(server, era=era) as client,
        client.watch_resources() as resources,
        client.watch_prompts() as prompts,
    ):
        assert shown(await anext(resources)) == {"added": ["a"], "all": ["a"]}
        assert shown(await anext(prompts)) == {"added": ["p"], "all": ["p"]}
        server.add_resource("x://b", lambda: "b", name="b")
        server.add_prompt(lambda: "q", name="q")
        assert shown(await anext(prompts)) == {"added": ["q"], "all": ["p", "q"]}
        assert shown(await anext(resources)) == {"added": ["b"], "all": ["a", "b"]}


@ERAS
async def test_a_resource_has_its_newest_contents(era: str, autojump_clock: MockClock) -> None:
    server, text = Server("s"), ["one"]

    @server.resource("x://a", name="a")
    async def read() -> str:
        return text[0]

    async with Client(server, era=era) as client, client.watch_resource("x://a") as contents:
        assert (await anext(contents)).text == "one"
        text[0] = "two"
        server.resource_updated("x://a")
        text[0] = "three"
        server.resource_updated("x://a")
        assert (await anext(contents)).text == "three"
        server.resource_updated("x://a")  # it is the same
        await nothing_follows(contents)


@ERAS
async def test_a_resource_that_is_gone_is_looked_for_again_when_something_is_heard_of_it(
    era: str, autojump_clock: MockClock
) -> None:
    async def read() -> str:
        return "a"

    server = Server("s")
    server.add_resource("x://a", read, name="a")
    async with Client(server, era=era) as client, client.watch_resource("x://a") as contents:
        assert (await anext(contents)).text == "a"
        server.remove_resource("x://a")
        server.resource_updated("x://a")
        with pytest.raises(ResourceNotFound):
            await anext(contents)
        await nothing_follows(contents)
        server.add_resource("x://a", read, name="a")
        server.resource_updated("x://a")
        assert (await anext(contents)).text == "a"


@ERAS
async def test_a_slow_reader_gets_one_difference_for_all_that_it_has_missed(era: str) -> None:
    server = make_server("a")
    async with Client(server, era=era) as client, client.watch_tools() as tools:
        await anext(tools)
        sent = frames_out(client)
        for number in range(100):
            server.add_tool(lambda: None, name=f"t{number}")
            await wait_all_tasks_blocked()
            if number != 42:
                server.remove_tool(f"t{number}")
        assert frames_out(client) == sent  # who does not look asks for nothing
        assert shown(await anext(tools)) == {"added": ["t42"], "all": ["a", "t42"]}


@ERAS
async def test_a_look_that_is_cancelled_loses_nothing(era: str, autojump_clock: MockClock) -> None:
    server = make_server("a")
    async with Client(server, era=era) as client, client.watch_tools() as tools:
        for _ in range(20):
            with trio.move_on_after(0):
                await anext(tools)
        assert shown(await anext(tools)) == {"added": ["a"], "all": ["a"]}
        server.add_tool(lambda: None, name="b")
        for _ in range(20):
            with trio.move_on_after(0):
                await anext(tools)
        assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}


@ERAS
async def test_leaving_the_block_leaves_nothing_behind(era: str) -> None:
    server = Server("s")
    server.add_resource("x://a", lambda: "a", name="a")
    async with Client(server, era=era) as client:
        living: list[int] = []
        for _ in range(3):
            async with client.watch_resource("x://a") as contents, client.watch_resources() as resources:
                await anext(contents)
                await anext(resources)
            await wait_all_tasks_blocked()
            assert server.tree().bus.uris == 0
            # The server keeps tasks for the next calls.
            living.append(trio.lowlevel.current_statistics().tasks_living)
        assert living[0] == living[1] == living[2]
        with pytest.raises(StopAsyncIteration):
            await anext(contents)


@ERAS
async def test_many_watch_with_one_client(era: str) -> None:
    server = make_server("a")
    async with Client(server, era=era) as client, client.watch_tools() as one, client.watch_tools() as two:
        await anext(one)
        server.add_tool(lambda: None, name="b")
        assert shown(await anext(one)) == {"added": ["b"], "all": ["a", "b"]}
        assert shown(await anext(two)) == {"added": ["a", "b"], "all": ["a", "b"]}


async def test_what_a_server_does_not_have_is_not_watched() -> None:
    async with Client(Server("s")) as client:
        with pytest.raises(LocalProtocolError, match="'tools'"):
            async with client.watch_tools():
                raise AssertionError("it was entered")
    with pytest.raises(LocalProtocolError, match="not connected"):
        async with Client(Server("s")).watch_tools():
            raise AssertionError("it was entered")


@ERAS
async def test_a_client_that_is_closed_ends_the_watch(era: str) -> None:
    async with Client(make_server("a"), era=era) as client, client.watch_tools() as tools:
        await anext(tools)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.aclose)
            with pytest.raises(ConnectionLost):
                await anext(tools)


async def test_a_connection_that_is_not_made_again_ends_the_watch() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(peer.channel.aclose)
        async with client.watch_tools() as tools:
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await anext(tools)


# -- programs without Trio --------------------------------------------------------------------------------------------


def test_asyncio_programs_watch_as_well() -> None:
    async def main() -> None:
        server = make_server("a")
        async with mcp_actors.asyncio.Client(server) as client, client.watch_tools() as tools:
            assert shown(await anext(tools)) == {"added": ["a"], "all": ["a"]}
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(tools), 0.01)
            server.add_tool(lambda: None, name="b")
            async for change in tools:
                assert shown(change) == {"added": ["b"], "all": ["a", "b"]}
                break

    asyncio.run(main())


def test_programs_without_a_loop_watch_as_well() -> None:
    server, text = Server("s"), ["one"]
    server.add_resource("x://a", lambda: text[0], name="a")
    with mcp_actors.sync.Client(server) as client, client.watch_resource("x://a") as contents:
        assert next(contents).text == "one"
        text[0] = "two"
        server.resource_updated("x://a")
        for content in contents:
            assert content.text == "two"
            break


# -- what the server may be -------------------------------------------------------------------------------------------


class Scripted:
    """A server that answers ``tools/list`` with the names of the moment, and grants subscriptions as it is told."""

    def __init__(self, *, grants: bool = True, ttl: int | None = None) -> None:
        self.tools: list[str] = ["a"]
        self.grants, self.ttl = grants, ttl
        self.lists: list[float] = []
        self.listening: dict[str, Any] = {}
        self.before: Callable[[], Any] = lambda: None

    async def run(self, peer: ScriptedPeer) -> None:
        while True:
            try:
                request = await peer.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                return
            method = request.get("method")
            if method == "subscriptions/listen":
                self.listening = request
                wanted = request["params"]["notifications"] if self.grants else {}
                await tell(peer, request["id"], ACK, notifications=wanted)
            elif method == "tools/list":
                self.lists.append(trio.current_time())
                self.before()
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
                result: dict[str, Any] = {"resultType": "complete", "tools": tools}
                await reply(peer, request, result if self.ttl is None else {**result, "ttlMs": self.ttl})

    async def say_changed(self, peer: ScriptedPeer) -> None:
        await tell(peer, self.listening["id"], "notifications/tools/list_changed")


async def test_a_server_that_announces_nothing_is_asked_after_its_own_time(autojump_clock: MockClock) -> None:
    server = Scripted(grants=False, ttl=5000)
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(server.run, peer)
        async with client.watch_tools() as tools:
            assert shown(await anext(tools)) == {"added": ["a"], "all": ["a"]}
            nursery.start_soon(_later, 12.0, lambda: server.tools.append("b"))
            assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
            assert [round(each) for each in server.lists] == [0, 5, 10, 15]
        nursery.cancel_scope.cancel()


async def test_a_session_that_announces_nothing_is_asked_again_in_the_next_one(
    autojump_clock: MockClock,
) -> None:
    server, peers = Scripted(), []
    async with raw_server() as raw, trio.open_nursery() as nursery:

        async def play() -> None:
            while True:
                peers.append(await raw.accept())
                asked = await peers[-1].receive()
                await reply(peers[-1], asked, initialize_result("2025-11-25", {"tools": {}}))
                await server.run(peers[-1])

        nursery.start_soon(play)
        async with Client(raw.transport, era="legacy", restart=True) as client, client.watch_tools() as tools:
            await anext(tools)
            await nothing_follows(tools)
            server.tools.append("b")
            await peers[0].channel.aclose()
            with trio.fail_after(60):
                assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
            assert len(server.lists) == 2
        nursery.cancel_scope.cancel()


async def _later(seconds: float, function: Callable[[], Any]) -> None:
    await trio.sleep(seconds)
    function()


@pytest.mark.parametrize("ttl", [None, 0])
async def test_without_a_time_it_is_asked_once(ttl: int | None, autojump_clock: MockClock) -> None:
    server = Scripted(grants=False, ttl=ttl)
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(server.run, peer)
        async with client.watch_tools() as tools:
            await anext(tools)
            await nothing_follows(tools)
        assert len(server.lists) == 1
        nursery.cancel_scope.cancel()


async def test_one_that_announces_changes_is_not_asked_by_the_clock(autojump_clock: MockClock) -> None:
    server = Scripted(ttl=1000)
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(server.run, peer)
        async with client.watch_tools() as tools:
            await anext(tools)
            await nothing_follows(tools)
        assert len(server.lists) == 1
        nursery.cancel_scope.cancel()


async def test_a_change_that_no_answer_shows_is_looked_for_once_more(autojump_clock: MockClock) -> None:
    """Behind a load balancer the node that answers may not have heard of the change yet."""
    server = Scripted()
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(server.run, peer)
        async with client.watch_tools() as tools:
            await anext(tools)
            await server.say_changed(peer)
            nursery.start_soon(_later, 0.5, lambda: server.tools.append("b"))
            assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
            await server.say_changed(peer)
            await nothing_follows(tools)
        assert len(server.lists) == 1 + 2 + 2
        nursery.cancel_scope.cancel()


async def test_a_change_while_the_list_is_read_is_read_as_well(autojump_clock: MockClock) -> None:
    """The answer may have been made before the change, and another one must follow."""
    server = Scripted()
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(server.run, peer)
        async with client.watch_tools() as tools:
            await anext(tools)

            def change_behind_the_answer() -> None:
                server.before = lambda: None
                nursery.start_soon(add)

            async def add() -> None:
                await wait_all_tasks_blocked()
                server.tools.append("c")
                await server.say_changed(peer)

            server.tools.append("b")
            server.before = change_behind_the_answer
            await server.say_changed(peer)
            with trio.fail_after(60):
                assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
                assert shown(await anext(tools)) == {"added": ["c"], "all": ["a", "b", "c"]}
        nursery.cancel_scope.cancel()


async def test_a_server_without_subscriptions_is_read_once_a_connection(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            while True:
                request = await peer.receive()
                if request["method"] == "tools/list":
                    await reply(peer, request, {"resultType": "complete", "tools": []})
                else:
                    await fail(peer, request, -32601)

        nursery.start_soon(play)
        async with client.watch_tools() as tools:
            assert shown(await anext(tools)) == {}
            await nothing_follows(tools)
        nursery.cancel_scope.cancel()


async def test_what_the_server_says_is_raised_and_the_watch_goes_on(autojump_clock: MockClock) -> None:
    server, works = Server("s"), [False]

    @server.resource("x://a", name="a")
    async def read() -> str:
        if not works[0]:
            raise RpcError(-32000, "not today")
        return "a"

    async with Client(server, era="modern") as client, client.watch_resource("x://a") as contents:
        for _ in range(2):
            with pytest.raises(RpcError, match="not today"):
                await anext(contents)
        works[0] = True
        assert (await anext(contents)).text == "a"


async def test_a_server_that_answers_with_errors_is_asked_after_pauses_that_grow(
    autojump_clock: MockClock,
) -> None:
    """A program that looks again and again does not make a server fail in a loop."""
    server, asked = Server("s"), []

    @server.resource("x://a", name="a")
    async def read() -> str:
        asked.append(trio.current_time())
        raise RpcError(-32603, "broken")

    async with Client(server, era="modern") as client, client.watch_resource("x://a") as contents:
        for _ in range(8):
            with pytest.raises(RpcError, match="broken"):
                await anext(contents)
        pauses = [round(later - former, 1) for former, later in itertools.pairwise(asked)]
        assert pauses == [1.0, 2.0, 5.0, 15.0, 30.0, 30.0, 30.0]
        # What the server says itself ends a pause.
        server.resource_updated("x://a")
        began = trio.current_time()
        with pytest.raises(RpcError, match="broken"):
            await anext(contents)
        assert trio.current_time() == began


async def test_the_pause_after_an_error_is_short_again_after_an_answer(autojump_clock: MockClock) -> None:
    server, works, asked = Server("s"), [False], []

    @server.resource("x://a", name="a")
    async def read() -> str:
        asked.append(trio.current_time())
        if not works[0]:
            raise RpcError(-32603, "broken")
        return "a"

    async with Client(server, era="modern") as client, client.watch_resource("x://a") as contents:
        for _ in range(3):
            with pytest.raises(RpcError, match="broken"):
                await anext(contents)
        works[0] = True
        assert (await anext(contents)).text == "a"
        works[0] = False
        server.resource_updated("x://a")
        asked.clear()
        for _ in range(2):
            with pytest.raises(RpcError, match="broken"):
                await anext(contents)
        assert round(asked[1] - asked[0], 1) == 1.0


@pytest.mark.parametrize("ttl", [None, 1000])
async def test_a_resource_that_is_gone_is_not_asked_for_in_a_loop(
    ttl: int | None, autojump_clock: MockClock
) -> None:
    """Nor where the server announces nothing, and has said for how long its answer is good."""
    asked = []
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def play() -> None:
            while True:
                request = await peer.receive()
                if request["method"] == "subscriptions/listen":
                    await tell(peer, request["id"], ACK, notifications={})
                elif request["method"] == "resources/read":
                    asked.append(trio.current_time())
                    if len(asked) > 1:
                        await fail(peer, request, -32602)
                        continue
                    contents = [{"uri": "x://a", "text": "a"}]
                    more = {} if ttl is None else {"ttlMs": ttl}
                    await reply(peer, request, {"resultType": "complete", "contents": contents, **more})

        nursery.start_soon(play)
        async with client.watch_resource("x://a") as contents:
            await anext(contents)
            for _ in range(5):
                with trio.move_on_after(100):
                    with pytest.raises(RpcError):
                        await anext(contents)
        assert len(asked) <= 6
        assert len(set(asked)) == len(asked)
        nursery.cancel_scope.cancel()


async def test_pages_of_two_states_are_not_put_together(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        def page(*names: str, cursor: str | None = None) -> dict[str, Any]:
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            more = {} if cursor is None else {"nextCursor": cursor}
            return {"resultType": "complete", "tools": tools, **more}

        async def play() -> None:
            listening = await peer.receive()
            await tell(peer, listening["id"], ACK, notifications=listening["params"]["notifications"])
            await reply(peer, await peer.receive(), page("a", "b", cursor="2"))
            second = await peer.receive()
            # "a" is gone, so "c" has moved to the first page.
            await tell(peer, listening["id"], "notifications/tools/list_changed")
            await reply(peer, second, page("d"))
            await reply(peer, await peer.receive(), page("b", "c", cursor="2"))
            # The cursor is one of a list that is gone.
            await fail(peer, await peer.receive(), -32602)
            await reply(peer, await peer.receive(), page("b", "c", cursor="2"))
            await reply(peer, await peer.receive(), page("d"))

        nursery.start_soon(play)
        async with client.watch_tools() as tools:
            assert shown(await anext(tools))["all"] == ["b", "c", "d"]


# -- losses -----------------------------------------------------------------------------------------------------------


@ERAS
async def test_a_restart_of_the_server_is_one_difference(era: str, autojump_clock: MockClock) -> None:
    place = MemoryTransport()
    async with trio.open_nursery() as nursery, first_and_next(nursery, place) as serve:
        await serve(make_server("a", "b"))
        async with Client(place, era=era, restart=True) as client, client.watch_tools() as tools:
            assert shown(await anext(tools)) == {"added": ["a", "b"], "all": ["a", "b"]}
            await serve(make_server("b", "c"))
            assert shown(await anext(tools)) == {"added": ["c"], "removed": ["a"], "all": ["b", "c"]}
            await serve(make_server("b", "c"))  # the same
            await nothing_follows(tools)
            await serve(Server("s"))  # without any tool
            assert shown(await anext(tools)) == {"removed": ["b", "c"]}
        nursery.cancel_scope.cancel()


@ERAS
async def test_an_outage_of_an_hour_is_waited_for(era: str, autojump_clock: MockClock) -> None:
    place = MemoryTransport()
    async with trio.open_nursery() as nursery, first_and_next(nursery, place) as serve:
        await serve(make_server("a"))
        async with Client(place, era=era, restart=True) as client, client.watch_tools() as tools:
            await anext(tools)
            nursery.start_soon(serve, make_server("b"), 3600.0)
            assert shown(await anext(tools)) == {"added": ["b"], "removed": ["a"], "all": ["b"]}
            assert trio.current_time() >= 3600
        nursery.cancel_scope.cancel()


async def test_changes_are_followed_after_an_outage_of_an_hour(autojump_clock: MockClock) -> None:
    """The function of the program, as well as a watch."""
    place, told = MemoryTransport(), []
    async with trio.open_nursery() as nursery, first_and_next(nursery, place) as serve:
        await serve(make_server("a"))
        options: dict[str, Any] = {"restart": True, "on_change": lambda kind, uri: told.append(kind)}
        async with Client(place, era="modern", **options):
            await wait_all_tasks_blocked()
            later = make_server("b")
            await serve(later, 3600.0)
            await trio.sleep(60)
            told.clear()
            later.add_tool(lambda: None, name="c")
            await trio.sleep(60)
            assert told == ["tools"]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def first_and_next(nursery: trio.Nursery, place: MemoryTransport) -> AsyncIterator[Any]:
    """Yields a function that serves another server in the place of the one before, after some seconds without any."""
    served: list[tuple[trio.CancelScope, trio.Event]] = []

    async def serve(server: Server, seconds: float = 0.0) -> None:
        for scope, ended in served:
            scope.cancel()
            await ended.wait()
        await trio.sleep(seconds)
        scope, ended = trio.CancelScope(), trio.Event()
        served[:] = [(scope, ended)]

        async def run(*, task_status: trio.TaskStatus[Any]) -> None:
            with scope:
                await server.serve(place, task_status=task_status)
            ended.set()

        await nursery.start(run)

    yield serve


STEP = st.tuples(st.sampled_from(["add", "remove", "describe", "restart"]), st.floats(0, 40))


@given(
    steps=st.lists(STEP, max_size=12),
    loss=st.sampled_from([0.0, 0.02, 0.1, 0.25]),
    era=st.sampled_from(["modern", "legacy"]),
    page_size=st.sampled_from([2, 1000]),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_lost_the_reader_has_the_state_of_the_server(
    steps: list[tuple[str, float]], loss: float, era: str, page_size: int, seed: int
) -> None:
    """The last state is the server's, none is older than the one before, and the differences add up."""
    story = Story(steps, loss, era, page_size, seed)
    trio.run(story.run, clock=MockClock(autojump_threshold=0))


class Story:
    """A server that changes and is started again, and a reader behind a connection that is lost again and again.

    Each change gives one tool a description that no state before had, so that every state is unique.
    """

    def __init__(
        self, steps: list[tuple[str, float]], loss: float, era: str, page_size: int, seed: int
    ) -> None:
        self.steps, self.era, self.page_size = steps, era, page_size
        self.random = random.Random(seed)
        self.place = MemoryTransport()
        faults = Faults(latency=0.05, jitter=0.05, loss=loss)
        self.transport = FaultyTransport(self.place, faults, seed=seed)
        self.truth: dict[str, str] = {"first": "0"}
        self.history = [dict(self.truth)]
        self.server = self.make()
        self.seen: list[dict[str, str]] = []

    def make(self) -> Server:
        server = Server("s", page_size=self.page_size)
        for name, text in self.truth.items():
            server.add_tool(lambda: None, name=name, description=text)
        return server

    def step(self, kind: str, number: int) -> None:
        name = self.random.choice(sorted(self.truth))
        if kind == "add":
            self.truth[f"t{number}"] = str(number)
            self.server.add_tool(lambda: None, name=f"t{number}", description=str(number))
            self.history.append(dict(self.truth))
        elif kind == "remove" and name != "first":
            del self.truth[name]
            self.server.remove_tool(name)
            self.history.append(dict(self.truth))
        elif kind == "describe":
            # Both changes are one to nobody: a reader may see the state between them.
            del self.truth[name]
            self.server.remove_tool(name)
            self.history.append(dict(self.truth))
            self.truth[name] = str(number)
            self.server.add_tool(lambda: None, name=name, description=str(number))
            self.history.append(dict(self.truth))

    async def run(self) -> None:
        with trio.fail_after(1_000_000):
            async with trio.open_nursery() as nursery, first_and_next(nursery, self.place) as serve:
                await serve(self.server)
                await self.connect(nursery, serve)
                nursery.cancel_scope.cancel()

    async def connect(self, nursery: trio.Nursery, serve: Any) -> None:
        while True:
            try:
                async with Client(self.transport, era=self.era, restart=True) as client:
                    nursery.start_soon(self.change, serve)
                    await self.read(client)
                return
            except mcp_actors.McpError:
                # Only the first connection is not made again by the client.
                assert not self.seen

    async def change(self, serve: Any) -> None:
        for number, (kind, pause) in enumerate(self.steps, 1):
            await trio.sleep(pause)
            if kind == "restart":
                self.server = self.make()
                await serve(self.server, self.random.random() * 60)
            else:
                self.step(kind, number)
        self.steps = []

    async def read(self, client: Client) -> None:
        added_up: dict[str, str] = {}
        place = 0
        async with client.watch_tools() as tools:
            while self.steps or added_up != self.truth:
                change: ListChange[Any] | None = None
                with trio.move_on_after(self.random.choice([0, 0.1, 10, 1000])):
                    change = await anext(tools)
                if change is None:
                    continue
                for each in change.removed:
                    del added_up[each.name]
                for each in change.added:
                    assert each.name not in added_up
                for each in change.changed:
                    assert each.name in added_up
                added_up |= {each.name: each.description for each in [*change.added, *change.changed]}
                assert added_up == {each.name: each.description for each in change.all}
                self.seen.append(dict(added_up))
                if self.page_size > len(self.truth):
                    place = self.history.index(added_up, place)
                await trio.sleep(self.random.choice([0, 1, 100]))


# -- the stream of a session over HTTP ---------------------------------------------------------------------------------


class StreamingServer:
    """A server with a session over HTTP, whose stream the test opens, writes to and breaks off."""

    def __init__(self, *, ids: bool = False, refuses_ids: bool = False) -> None:
        self.tools, self.ids, self.refuses_ids = ["a"], ids, refuses_ids
        self.lists = 0
        self.text = "0"
        self.declared = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
        self.stream: Stream | None = None
        self.gets: list[str | None] = []
        self.may_open = trio.Event()
        self.may_open.set()
        self.refusal: int | None = None
        """The status of the answer to whoever asks for the stream."""
        self.token: str | None = None
        """The token without which everything is refused with 401."""

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if self.token is not None and asked.headers.get("authorization") != f"Bearer {self.token}":
            return httpx2.Response(401)
        if asked.method == "GET":
            await self.may_open.wait()
            self.gets.append(asked.headers.get("last-event-id"))
            if self.refusal is not None:
                return httpx2.Response(self.refusal)
            if self.refuses_ids and self.gets[-1] is not None:
                return httpx2.Response(400)
            self.stream = Stream(*[b"id: 1\ndata:\n\n"] * self.ids)
            return sse(self.stream)
        if asked.method == "DELETE":
            return httpx2.Response(405)
        request = json.loads(asked.body)
        match request["method"]:
            case "initialize":
                result = initialize_result("2025-06-18", self.declared)
            case "tools/list":
                self.lists += 1
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]}
            case "resources/read":
                result = {"contents": [{"uri": request["params"]["uri"], "text": self.text}]}
            case "resources/subscribe" | "resources/unsubscribe":
                result = {}
            case _:
                return httpx2.Response(202)
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        headers = {"mcp-session-id": "s-1"}
        return httpx2.Response(200, headers=headers, json=answer)

    def lose_stream(self) -> None:
        assert self.stream is not None
        self.stream.end(httpx2.ReadError("reset"))


@asynccontextmanager
async def streaming(
    server: StreamingServer, auth: BearerToken | None = None, **options: Any
) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=auth)
        async with Client(transport, era="legacy", **options) as client:
            yield client


async def test_a_change_while_the_stream_was_lost_is_seen(autojump_clock: MockClock) -> None:
    server = StreamingServer()
    async with streaming(server) as client, client.watch_tools() as tools:
        assert shown(await anext(tools)) == {"added": ["a"], "all": ["a"]}
        await nothing_follows(tools)
        server.lose_stream()
        server.tools.append("b")  # the server has nobody to tell
        with trio.fail_after(60):
            assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}


async def test_a_stream_that_was_lost_without_a_change_is_one_question(autojump_clock: MockClock) -> None:
    server = StreamingServer()
    async with streaming(server) as client, client.watch_tools() as tools:
        await anext(tools)
        await nothing_follows(tools)
        lists = server.lists
        server.lose_stream()
        await nothing_follows(tools)
        assert server.lists == lists + 1


async def test_a_stream_that_is_resumed_is_no_question(autojump_clock: MockClock) -> None:
    server = StreamingServer(ids=True)
    async with streaming(server) as client, client.watch_tools() as tools:
        await anext(tools)
        await nothing_follows(tools)
        lists = server.lists
        server.lose_stream()
        await nothing_follows(tools)
        assert server.gets == [None, "1"]
        assert server.lists == lists


async def test_a_stream_whose_event_the_server_has_forgotten_begins_anew(autojump_clock: MockClock) -> None:
    server = StreamingServer(ids=True, refuses_ids=True)
    async with streaming(server) as client, client.watch_tools() as tools:
        await anext(tools)
        await nothing_follows(tools)
        server.lose_stream()
        server.tools.append("b")
        with trio.fail_after(60):
            assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
        assert server.gets == [None, "1", None]


async def test_a_change_before_the_stream_was_first_open_is_seen(autojump_clock: MockClock) -> None:
    server, told = StreamingServer(), []
    server.may_open = trio.Event()
    async with streaming(server, on_change=lambda kind, uri: told.append(kind)) as client:
        async with client.watch_tools() as tools:
            await anext(tools)
            server.tools.append("b")
            server.may_open.set()
            with trio.fail_after(60):
                assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
        # The function of the program is told of changes, and not of every connection.
        assert told == []


async def test_everything_counts_as_changed_after_a_stream_was_lost(autojump_clock: MockClock) -> None:
    server, told = StreamingServer(), []
    async with streaming(server, on_change=lambda kind, uri: told.append((kind, uri))) as client:
        async with client.listen(tools=True, uris=["x://a"]) as listener:
            await trio.sleep(1)
            server.lose_stream()
            with trio.fail_after(60):
                events = [await anext(listener), await anext(listener)]
            assert sorted((event.kind, event.uri) for event in events) == [
                ("resource_updated", "x://a"),
                ("tools", None),
            ]
            assert told == [("tools", None), ("resources", None), ("resource_updated", "x://a")]


GIVEN_UP = pytest.mark.parametrize("status", [401, 403, 405, 410])


@GIVEN_UP
async def test_a_list_is_asked_for_by_the_clock_once_its_stream_is_given_up(
    status: int, autojump_clock: MockClock
) -> None:
    server, told = StreamingServer(ids=True), []
    async with streaming(server, on_change=lambda kind, uri: told.append(kind)) as client:
        async with client.watch_tools() as tools:
            assert shown(await anext(tools)) == {"added": ["a"], "all": ["a"]}
            await nothing_follows(tools)
            server.refusal = status
            server.lose_stream()
            server.tools.append("b")
            with trio.fail_after(10):
                assert shown(await anext(tools)) == {"added": ["b"], "all": ["a", "b"]}
            assert told == ["tools", "resources"]
            lists = server.lists
            server.tools.append("c")  # nobody is told any more
            with trio.fail_after(61):
                assert shown(await anext(tools)) == {"added": ["c"], "all": ["a", "b", "c"]}
            with trio.move_on_after(630):
                await anext(tools)
            assert server.lists == lists + 11
            assert len(server.gets) == 2


async def test_a_list_whose_changes_nothing_can_bring_is_asked_for_by_the_clock(
    autojump_clock: MockClock,
) -> None:
    server, told = StreamingServer(), []
    server.refusal = 405
    async with streaming(server, on_change=lambda kind, uri: told.append(kind)) as client:
        async with client.watch_tools() as tools, client.watch_resource("x://a") as contents:
            await anext(tools)
            assert (await anext(contents)).text == "0"
            for number in range(1, 3):
                server.tools.append(str(number))
                server.text = str(number)
                with trio.fail_after(61):
                    assert shown(await anext(tools))["added"] == [str(number)]
                    assert (await anext(contents)).text == str(number)
        # A watch that begins when the stream is given up knows it as well.
        async with client.watch_tools() as tools:
            await anext(tools)
            server.tools.append("last")
            with trio.fail_after(61):
                assert shown(await anext(tools))["added"] == ["last"]
        assert told == []


async def test_what_the_server_does_not_declare_is_not_asked_for_by_the_clock(
    autojump_clock: MockClock,
) -> None:
    server = StreamingServer()
    server.refusal, server.declared = 405, {"tools": {}}
    async with streaming(server) as client, client.watch_tools() as tools:
        await anext(tools)
        await nothing_follows(tools)
        assert server.lists <= 2


@GIVEN_UP
async def test_a_listener_whose_stream_is_given_up_is_lost(status: int, autojump_clock: MockClock) -> None:
    server = StreamingServer()
    async with streaming(server) as client, client.listen(tools=True) as listener:
        await trio.sleep(1)
        server.refusal = status
        server.lose_stream()
        await trio.sleep(10)
        assert (await anext(listener)).kind == "tools"  # it may have changed in the gap
        with pytest.raises(SubscriptionLost, match=str(status)) as caught:
            await anext(listener)
        assert isinstance(caught.value.__cause__, mcp_actors.McpError)
        with pytest.raises(SubscriptionLost, match=str(status)):
            async with client.listen(tools=True):
                raise AssertionError("nothing can be heard")


async def test_a_stream_is_opened_again_once_there_is_other_access(autojump_clock: MockClock) -> None:
    server, token = StreamingServer(ids=True), ["first"]
    server.token = "first"
    async with streaming(server, auth=BearerToken(lambda: token[0])) as client:
        async with client.watch_tools() as tools:
            await anext(tools)
            await nothing_follows(tools)
            server.token = "second"
            server.lose_stream()
            await trio.sleep(10)
            with pytest.raises(AuthorizationError):
                await anext(tools)
            token[0] = "second"
            server.tools.append("b")
            with trio.fail_after(61):
                assert shown(await anext(tools))["added"] == ["b"]
            assert server.stream is not None
            await trio.sleep(10)
            server.tools.append("c")
            server.stream.write(b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n')
            with trio.fail_after(1):
                assert shown(await anext(tools))["added"] == ["c"]


@pytest.mark.parametrize("is_opened", [True, False])
async def test_a_gateway_reads_the_list_of_a_server_that_it_cannot_hear(
    is_opened: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = StreamingServer()
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        if not is_opened:
            server.refusal = 405
        target = partial(HttpClientTransport, URL, client=http)
        upstream = Upstream(name="there", target=target, era="legacy", sessions="shared")
        async with Client(await serve_gateway(nursery, upstream)) as client:
            assert [each.name async for each in client.tools()] == ["there_a"]
            await trio.sleep(10)
            if is_opened:
                server.refusal = 401
                server.lose_stream()
                await trio.sleep(10)
                await client.list_tools(refresh=True)
                await trio.sleep(10)
            server.tools.append("b")
            names = [each.name for each in (await client.list_tools(refresh=True)).tools]
            assert names == ["there_a", "there_b"]
