"""The live view of all nodes of a server: each is asked over the bus, and actions go to the node that is meant."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, RpcError
from mcp_actors.abc import ServerHandler
from mcp_actors.shared.redis import RedisShared
from mcp_actors.telemetry.cluster import ClusterView
from mcp_actors.telemetry.live_view import Action, ActionOutcome, Feed, ServerView
from mcp_actors.telemetry.snapshot import NodeSnapshot, Snapshot
from tests.nodes import LocalBus, LocalNodes
from tests.redis_server import RedisServer
from tests.telemetry.served import make_server, serving


class InMemory:
    """A companion that looks at all nodes without an endpoint, so that time can be virtual."""

    is_companion: Literal[True] = True

    def __init__(self) -> None:
        self.view: ClusterView | None = None
        self.node = ""

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        own = ServerView(handler)
        self.node = own.node
        async with ClusterView.open(own, handler.shared) as self.view:
            task_status.started(self.view)
            await trio.sleep_forever()


@asynccontextmanager
async def node(shared: Any, number: int, *, watched: bool = True) -> AsyncIterator[tuple[str, InMemory]]:
    """A node of the server; its address and its live view."""
    server, looking = make_server(), InMemory()
    server.shared = shared
    targets = [f"memory:cluster-{number}", *([looking] if watched else [])]
    async with serving(server, *targets):
        yield f"memory:cluster-{number}", looking


async def seen(looking: InMemory, count: int) -> list[NodeSnapshot]:
    """Returns the nodes once there are so many."""
    assert looking.view is not None
    while True:
        nodes = await looking.view.snapshot()
        if len(nodes) == count:
            return nodes


async def test_each_node_sees_all_that_have_a_view(autojump_clock: trio.testing.MockClock) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one), node(nodes, 2) as (_, two), node(nodes, 3, watched=False):
        for looking, other in ((one, two), (two, one)):
            found = await seen(looking, 2)
            assert [each.node for each in found] == [looking.node, other.node]
            assert {each.server for each in found} == {"watched"}


async def test_an_action_goes_to_its_node_which_says_who_wanted_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nodes, caught = LocalNodes(), list[RpcError]()

    async def hold(client: Client) -> None:
        try:
            await client.call_tool("hold", {"name": "x"})
        except RpcError as error:
            caught.append(error)

    with capture_logs() as logs:
        async with node(nodes, 1) as (_, one), node(nodes, 2) as (there, two), Client(there) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, client)
                await trio.testing.wait_all_tasks_blocked()
                await seen(one, 2)
                _, other = await seen(one, 2)
                (call,) = other.calls
                assert one.view is not None
                wrong = await one.view.act(Action("cancel_call", one.node, call.key), "bob")
                right = await one.view.act(Action("cancel_call", two.node, call.key), "bob")
    assert (wrong.done, right.done) == (False, True)
    assert len(caught) == 1
    acted = [each["who"] for each in logs if each["event"] == "an operator acted"]
    assert acted == ["bob", "bob, through another node"]


async def test_a_silent_node_is_shown_as_that_and_then_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one), node(nodes, 2):
        await seen(one, 2)
        assert one.view is not None
        nodes.buses[1].cut = True
        began = trio.current_time()
        await trio.sleep(2)
        _, silent = await one.view.snapshot()
        assert silent.note is not None
        assert silent.note.startswith("silent for 2.")
        # A node that does not answer is waited for, and for no longer than this.
        assert trio.current_time() - began < 3
        await trio.sleep(10)
        assert len(await one.view.snapshot()) == 1
        answer = await one.view.act(Action("end_session", silent.node, "watched#1"), "bob")
        assert not answer.done


async def test_an_action_on_a_node_that_hangs_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one), node(nodes, 2) as (_, two):
        await seen(one, 2)
        nodes.buses[1]._mailboxes.clear()
        began = trio.current_time()
        assert one.view is not None
        answer = await one.view.act(Action("end_session", two.node, "watched#1"), "bob")
    assert (answer.done, trio.current_time() - began) == (False, 3.0)


@pytest.mark.parametrize("message", [b"", b"{}", b"[]", b'{"type":"_NodeAnswer"}', b"\xff", b"1" * 10_000])
async def test_what_is_no_message_of_a_node_costs_nothing(
    message: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    nodes = LocalNodes()
    with capture_logs() as logs:
        async with node(nodes, 1) as (_, one), node(nodes, 2):
            bus: LocalBus = nodes.buses[0]
            (address,) = bus._mailboxes
            await bus.send(address, message)
            assert len(await seen(one, 2)) == 2
    assert [each["event"] for each in logs] == ["another node said something unknown"]


async def test_many_questions_are_dropped_and_many_rows_fit_a_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one), node(nodes, 2) as (there, _), Client(there) as client:
        for _ in range(1000):
            nodes.buses[0].publish("mcp-actors admin", "nobody/1")
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(client.call_tool, "hold", {"name": "日" * 400 + str(number)})
            await trio.testing.wait_all_tasks_blocked()
            await seen(one, 2)
            _, other = await seen(one, 2)
            nursery.cancel_scope.cancel()
    assert len(other.calls) == 200
    assert len(msgspec.json.encode(other)) < 512 * 1024


def lie(**members: Any) -> bytes:
    """Returns what a node says that is none, or no honest one."""
    honest = {"node": "liar", "server": "s", "version": "", "host": "h", "pid": 1, "state": "serving"}
    snapshot = {**honest, "uptime": 1.0, "at": 1.0, **members}
    return json.dumps({"type": "_NodeAnswer", "address": "elsewhere/1", "snapshot": snapshot}).encode()


async def said(nodes: LocalNodes, message: bytes) -> None:
    """Has every node hear a message, again and again, as a node does that answers whenever it is asked."""
    for address in list(nodes.buses[0]._mailboxes):
        await nodes.buses[0].send(address, message)


async def test_nobody_speaks_for_this_node_nor_for_one_that_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (here, one), node(nodes, 2) as (_, two), Client(here, era="legacy"):
        await seen(one, 2)
        for name in (one.node, two.node):
            await said(nodes, lie(node=name, server="liar"))
        assert one.view is not None
        found = await one.view.snapshot()
        assert [(each.node, each.server) for each in found] == [(one.node, "watched"), (two.node, "watched")]
        began = trio.current_time()
        answer = await one.view.act(Action("end_session", one.node, found[0].sessions[0].name), "bob")
        assert (answer.done, trio.current_time()) == (True, began)


@pytest.mark.parametrize("lies", [{"took": 1e300}, {"uptime": 1e308, "lag": -1e308}, {"uptime": -1e308}])
async def test_a_node_that_lies_stops_no_live_view(
    lies: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one):
        assert one.view is not None
        feed = Feed(one.view)
        for number in range(2):
            await said(nodes, lie(**(lies if number else {}), totals={"requests": number * 2**62}))
            snapshot = msgspec.json.decode(await feed.latest(), type=Snapshot)
            assert [each.server for each in snapshot.nodes] == ["watched", "s"]
            assert snapshot.interval <= 30
            await trio.sleep(1)


async def test_a_number_that_nothing_can_divide_is_no_message(autojump_clock: trio.testing.MockClock) -> None:
    nodes = LocalNodes()
    with capture_logs() as logs:
        async with node(nodes, 1) as (_, one):
            await said(nodes, lie(totals={"requests": 10**400}))
            assert len(await seen(one, 1)) == 1
    assert [each["event"] for each in logs] == ["another node said something unknown"]


async def test_a_node_is_not_silent_while_it_ends_sessions(autojump_clock: trio.testing.MockClock) -> None:
    nodes = LocalNodes()
    async with node(nodes, 1) as (_, one), node(nodes, 2) as (_, two):
        await seen(one, 2)
        assert one.view is not None
        assert two.view is not None

        async def slow(action: Action, who: str) -> ActionOutcome:
            await trio.sleep(1)
            return ActionOutcome(True, f"\x1b[2J{who}" * 100)

        two.view._own.act = slow  # type: ignore[method-assign]
        outcomes: list[ActionOutcome] = []

        async def end() -> None:
            assert one.view is not None
            outcomes.append(await one.view.act(Action("end_session", two.node, "watched#1"), "bob\x1b" * 99))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await trio.sleep(0.1)
            _, other = await one.view.snapshot()
    assert other.note is None
    (outcome,) = outcomes
    assert outcome.done
    assert len(outcome.text) <= 120
    assert outcome.text.isprintable()


async def test_nodes_that_share_a_redis_see_each_other(redis_server: RedisServer) -> None:
    async with (
        node(RedisShared(redis_server.url), 1) as (_, one),
        node(RedisShared(redis_server.url), 2) as (there, two),
        Client(there, era="legacy"),
    ):
        await seen(one, 2)
        while not (other := (await seen(one, 2))[1]).sessions:
            await trio.lowlevel.checkpoint()
        assert one.view is not None
        answer = await one.view.act(Action("end_session", two.node, other.sessions[0].name), "bob")
    assert answer.done
