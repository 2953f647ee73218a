"""Turns: calls with one key run one after the other in the order of their arrival, at one node and over all."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors import Client, Context, Overloaded, Progress, Server, SyncContext, Turn
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.errors import RpcError, SharedStateUnavailable, TurnLost
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.types import ToolAnnotations

READ_ONLY = ToolAnnotations(read_only_hint=True)


class Workshop:
    """A server with tools that take turns, which takes note of who is inside, and of the order."""

    def __init__(self, shared: Any = None, **turn: Any) -> None:
        self.server = Server("workshop", shared=shared)
        self.begun: list[str] = []
        self.inside: dict[str, list[bool]] = {}
        self.most = 0
        self.met: list[str] = []
        self.gates: dict[str, trio.Event] = {}
        self.entries: dict[str, trio.Event] = {}
        rule = Turn("{path}", **turn)
        self.server.add_tool(self.edit, name="edit", turn=rule)
        self.server.add_tool(self.read, name="read", turn=rule, annotations=READ_ONLY)

    async def edit(self, path: str, name: str) -> str:
        return await self._work(path, name, False)

    async def read(self, path: str, name: str) -> str:
        return await self._work(path, name, True)

    async def _work(self, path: str, name: str, shares: bool) -> str:
        inside = self.inside.setdefault(path, [])
        if inside and not (shares and all(inside)):
            self.met.append(name)
        inside.append(shares)
        self.most = max(self.most, len(inside))
        self.begun.append(name)
        self.entries.setdefault(name, trio.Event()).set()
        try:
            await self.gates.setdefault(name, trio.Event()).wait()
            return name
        finally:
            inside.remove(shares)

    async def entered(self, name: str) -> None:
        await self.entries.setdefault(name, trio.Event()).wait()

    def finish(self, *names: str) -> None:
        for each in names:
            self.gates.setdefault(each, trio.Event()).set()


async def until(ready: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not ready():
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def calling(client: Client) -> AsyncIterator[Callable[..., Awaitable[trio.CancelScope]]]:
    """Yields what begins a call, in order, and returns a scope that cancels it."""
    async with trio.open_nursery() as nursery:

        async def begin(tool: str, path: str, name: str, ended: list[Any] | None = None) -> trio.CancelScope:
            scope = trio.CancelScope()

            async def run() -> None:
                with scope:
                    try:
                        await client.call_tool(tool, {"path": path, "name": name})
                    except RpcError as error:
                        assert ended is not None
                        ended.append(error)

            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            return scope

        yield begin


async def test_calls_with_one_key_run_in_the_order_of_arrival_and_others_at_once() -> None:
    shop = Workshop()
    async with Client(shop.server) as client, calling(client) as begin:
        for name in ("a1", "a2", "a3"):
            await begin("edit", "a", name)
        await begin("edit", "b", "b1")
        assert shop.begun == ["a1", "b1"]
        (turn,) = [each for each in shop.server.tree().turns if each.key == "a"]
        assert (turn.tools, turn.running, turn.waiting, turn.nodes) == (("edit",), 1, 2, False)
        shop.finish("a1")
        await until(lambda: "a2" in shop.begun)
        assert shop.begun == ["a1", "b1", "a2"]
        shop.finish("a2", "a3", "b1")
    assert shop.begun == ["a1", "b1", "a2", "a3"]
    assert shop.met == []
    assert shop.server.tree().turns == ()


async def test_tools_that_only_read_share_and_overtake_nobody() -> None:
    shop = Workshop()
    async with Client(shop.server) as client, calling(client) as begin:
        for tool, name in (("read", "r1"), ("read", "r2"), ("edit", "e1"), ("read", "r3"), ("read", "r4")):
            await begin(tool, "a", name)
        assert shop.begun == ["r1", "r2"]
        shop.finish("r1", "r2")
        await until(lambda: "e1" in shop.begun)
        assert shop.begun == ["r1", "r2", "e1"]
        shop.finish("e1")
        await until(lambda: "r4" in shop.begun)
        shop.finish("r3", "r4")
    assert shop.most == 2
    assert shop.met == []


async def test_a_call_that_is_cancelled_frees_its_place_at_once() -> None:
    shop = Workshop()
    async with Client(shop.server) as client, calling(client) as begin:
        await begin("read", "a", "r1")
        waiting = await begin("edit", "a", "e1")
        await begin("read", "a", "r2")
        waiting.cancel()
        await until(lambda: "r2" in shop.begun)
        running = await begin("edit", "a", "e2")
        shop.finish("r1", "r2")
        await until(lambda: "e2" in shop.begun)
        await begin("edit", "a", "e3")
        running.cancel()
        await until(lambda: "e3" in shop.begun)
        shop.finish("e3")
    assert shop.begun == ["r1", "r2", "e2", "e3"]


async def test_a_thread_keeps_the_turn_of_a_call_that_was_cancelled_until_it_ends() -> None:
    server, order = Server("threads"), []
    entered, leaves = threading.Event(), threading.Event()

    @server.tool(turn="all")
    def slow(name: str) -> str:
        order.append(f"{name} begins")
        entered.set()
        leaves.wait(60)
        order.append(f"{name} ends")
        return name

    async with Client(server) as client, trio.open_nursery() as nursery:
        with trio.CancelScope() as first:

            async def cancel() -> None:
                await trio.to_thread.run_sync(entered.wait)
                first.cancel()

            nursery.start_soon(cancel)
            await client.call_tool("slow", {"name": "one"})
        nursery.start_soon(client.call_tool, "slow", {"name": "two"})
        while not any(each.waiting for each in server.tools.turns.statistics()):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert order == ["one begins"]
        leaves.set()
    assert order == ["one begins", "one ends", "two begins", "two ends"]


async def test_a_queue_is_bounded_and_so_is_the_waiting(autojump_clock: trio.testing.MockClock) -> None:
    shop, refused = Workshop(waiting=1, max_wait=5), []
    async with Client(shop.server) as client, calling(client) as begin:
        await begin("edit", "a", "a1")
        await begin("edit", "a", "a2", refused)
        await begin("edit", "a", "a3", refused)
        assert [type(each) for each in refused] == [Overloaded]
        await trio.sleep(6)
        assert [type(each) for each in refused] == [Overloaded, Overloaded]
        shop.finish("a1")
    assert shop.begun == ["a1"]


async def test_progress_says_how_many_calls_come_first() -> None:
    shop, told = Workshop(), []

    def on_progress(progress: Progress) -> None:
        told.append(progress.message)

    async with Client(shop.server) as client, calling(client) as begin, trio.open_nursery() as nursery:
        await begin("edit", "a", "a1")
        second = await begin("edit", "a", "a2")

        async def third() -> None:
            await client.call_tool("edit", {"path": "a", "name": "a3"}, on_progress=on_progress)

        nursery.start_soon(third)
        await until(lambda: told == ["waits for its turn behind 2 calls"])
        second.cancel()
        await until(lambda: told[1:] == ["waits for its turn behind 1 call"])
        shop.finish("a1", "a3")


async def test_a_function_makes_the_key_of_context_and_arguments() -> None:
    server, begun, gate = Server("keys"), [], trio.Event()

    def key(ctx: Context, arguments: Any) -> str | None:
        assert ctx.method == "tools/call"
        return None if arguments["number"] == 0 else f"odd {arguments['number'] % 2}"

    @server.tool(turn=key)
    async def take(number: int) -> int:
        begun.append(number)
        await gate.wait()
        return number

    async with Client(server) as client, trio.open_nursery() as nursery:
        for number in (1, 2, 3, 0, 0):
            nursery.start_soon(client.call_tool, "take", {"number": number})
            await trio.testing.wait_all_tasks_blocked()
        assert begun == [1, 2, 0, 0]
        gate.set()
    assert begun == [1, 2, 0, 0, 3]


def plain(path: str, ctx: SyncContext) -> str:
    return path


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"turn": "{folder}"}, "no argument 'folder'"),
        ({"turn": "{path!r}"}, "no more in the braces"),
        ({"turn": "{path"}, "expected '}'"),
        ({"turn": 3}, "write a text"),
        ({"turn": "{path}", "inline": True}, "remove inline=True"),
        ({"turn": lambda ctx, arguments: "x", "inline": True}, "remove inline=True"),
    ],
)
def test_what_is_no_rule_is_refused_where_the_tool_is_registered(options: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        Server("wrong").tool(**options)(plain)
    with pytest.raises(TypeError, match="no thread can be stopped"):
        Server("wrong").tool(turn=Turn("{path}", nodes=True))(plain)


async def test_a_tool_that_was_loaded_anew_waits_for_calls_of_the_former_one() -> None:
    former, later = Workshop(), Workshop()
    server = ReplaceableServer(former.server)
    async with Client(server) as client, calling(client) as begin:
        await begin("edit", "a", "a1")
        await server.replace(later.server)
        await begin("edit", "a", "a2")
        assert (former.begun, later.begun) == (["a1"], [])
        former.finish("a1")
        await until(lambda: later.begun == ["a2"])
        later.finish("a2")


async def test_tools_of_a_mounted_server_take_the_turns_of_that_server() -> None:
    shop, outer = Workshop(), Server("outer")
    outer.mount("shop", shop.server)
    async with (
        Client(outer) as client,
        Client(shop.server) as own,
        calling(client) as begin,
        calling(own) as directly,
    ):
        await begin("shop_edit", "a", "a1")
        await directly("edit", "a", "a2")
        assert shop.begun == ["a1"]
        shop.finish("a1", "a2")
    assert shop.begun == ["a1", "a2"]


# -- over all nodes ------------------------------------------------------------------------------------------------


class Network:
    """A shared state of several nodes of this process, each of which can be cut off from it, and can die."""

    def __init__(self, seed: int = 0, has_bus: bool = True) -> None:
        self.has_bus = has_bus
        self.values: dict[str, bytes] = {}
        self.mailboxes: dict[str, Callable[[bytes], None]] = {}
        self.cut_off: set[int] = set()
        self.dead: set[int] = set()
        self.delayed: trio.Event | None = None
        """When the next answer comes that has two calls in a queue."""
        self.random = random.Random(seed)

    async def step(self, node: int) -> None:
        """Takes a moment, as a store does."""
        for _ in range(self.random.randint(1, 3)):
            await trio.lowlevel.checkpoint()
        if node in self.cut_off or node in self.dead:
            raise SharedStateUnavailable("values", "cut off")


class NodeOfNetwork:
    """The shared state of one node: its own in memory, but for values and mailboxes."""

    def __init__(self, network: Network, node: int) -> None:
        self.network = network
        self.number = node
        self.own: Any = None

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Any]:
        async with MemoryShared().open(name) as self.own:
            yield self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    @property
    def values(self) -> Any:
        return self

    @property
    def bus(self) -> Any:
        return BusOfNetwork(self)

    @property
    def spans_processes(self) -> bool:
        return True

    async def load(self, key: str) -> bytes | None:
        network = self.network
        await network.step(self.number)
        found = network.values.get(key)
        if network.delayed is not None and found is not None and len(json.loads(found)) == 2:
            arrives, network.delayed = network.delayed, None
            await arrives.wait()
        return found

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        await self.network.step(self.number)
        values = self.network.values
        if values.get(key) != before:
            return False
        if after is None:
            values.pop(key, None)
        else:
            values[key] = after
        return True


class BusOfNetwork:
    def __init__(self, node: NodeOfNetwork) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.own.bus, name)

    @property
    def spans_processes(self) -> bool:
        return self._node.network.has_bus

    def open_mailbox(self, take: Callable[[bytes], None]) -> tuple[str, Callable[[], None]]:
        mailboxes, address = self._node.network.mailboxes, f"node {self._node.number}"
        mailboxes[address] = take
        return address, lambda: None

    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        network = self._node.network
        await network.step(self._node.number)
        number = int(address.split()[1])
        if number in network.dead or (not network.has_bus and number != self._node.number):
            return False
        if number not in network.cut_off:
            network.mailboxes[address](message)
        return True


class Nodes:
    """Several servers whose tools take turns together, and what is known of each call."""

    def __init__(self, number: int, seed: int = 0, has_bus: bool = True) -> None:
        self.network = Network(seed, has_bus)
        self.shops = [Workshop(NodeOfNetwork(self.network, each), nodes=True) for each in range(number)]
        first = self.shops[0]
        for each in self.shops[1:]:
            each.begun, each.inside, each.met = first.begun, first.inside, first.met
            each.gates, each.entries = first.gates, first.entries

    @property
    def begun(self) -> list[str]:
        return self.shops[0].begun

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[Client]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Client(each.server)) for each in self.shops]


async def test_calls_at_several_nodes_take_turns(autojump_clock: trio.testing.MockClock) -> None:
    nodes = Nodes(2)
    async with nodes.clients() as (one, two), calling(one) as first, calling(two) as second:
        await first("edit", "a", "a1")
        await second("edit", "a", "a2")
        await first("edit", "a", "a3")
        await first("edit", "b", "b1")
        assert nodes.begun == ["a1", "b1"]
        (waits,) = nodes.shops[1].server.tree().turns
        assert (waits.key, waits.running, waits.waiting, waits.nodes) == ("a", 0, 1, True)
        for name in ("a1", "a2", "a3", "b1"):
            nodes.shops[0].finish(name)
            await trio.testing.wait_all_tasks_blocked()
    assert nodes.begun == ["a1", "b1", "a2", "a3"]
    assert nodes.shops[0].met == []
    assert nodes.network.values == {}


@pytest.mark.parametrize("has_bus", [True, False])
async def test_a_node_that_has_died_loses_its_turn(
    has_bus: bool, autojump_clock: trio.testing.MockClock
) -> None:
    # Without a way to other processes, as with a file, nothing but its silence says that one has died.
    nodes = Nodes(2, has_bus=has_bus)
    async with nodes.clients() as (one, two), calling(one) as first, calling(two) as second:
        scope = await first("edit", "a", "a1")
        await second("edit", "a", "a2")
        await trio.sleep(100)
        assert nodes.begun == ["a1"]
        nodes.network.dead.add(0)
        scope.cancel()
        await trio.sleep(2 if has_bus else 20)
        assert nodes.begun == ["a1", "a2"]
        nodes.shops[0].finish("a2")


async def test_a_node_that_is_cut_off_stops_its_function_before_another_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    nodes, ended = Nodes(2), []
    async with nodes.clients() as (one, two), calling(one) as first, calling(two) as second:
        await first("edit", "a", "a1", ended)
        await second("edit", "a", "a2")
        await trio.sleep(100)
        assert nodes.begun == ["a1"]
        nodes.network.cut_off.add(0)
        await trio.sleep(60)
        assert [type(each) for each in ended] == [TurnLost]
        assert nodes.begun == ["a1", "a2"]
        nodes.shops[0].finish("a2")
    assert nodes.shops[0].met == []


async def test_nobody_is_taken_for_gone_who_has_given_a_turn_back_meanwhile() -> None:
    nodes = Nodes(1)
    arrives = nodes.network.delayed = trio.Event()
    with capture_logs() as logs:
        async with nodes.clients() as (one,), calling(one) as begin:
            await begin("edit", "a", "a1")
            await begin("edit", "a", "a2")
            # What the second call reads of the queue is older than the end of the first one.
            nodes.shops[0].finish("a1", "a2")
            await trio.testing.wait_all_tasks_blocked()
            arrives.set()
            await trio.testing.wait_all_tasks_blocked()
    assert nodes.begun == ["a1", "a2"]
    assert [each["event"] for each in logs if "turns" in each["event"]] == []


async def test_nobody_is_taken_for_gone_who_gives_a_turn_back(autojump_clock: trio.testing.MockClock) -> None:
    nodes = Nodes(2, seed=7)
    names = [f"a{number}" for number in range(20)]
    nodes.shops[0].finish(*names)
    with capture_logs() as logs:
        async with nodes.clients() as clients, trio.open_nursery() as nursery:
            for number, name in enumerate(names):
                # Some come in the middle of what another one does with the queue.
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(clients[number % 2].call_tool, "edit", {"path": "a", "name": name})
    assert sorted(nodes.begun) == sorted(names)
    assert [each["event"] for each in logs if "turns" in each["event"]] == []


async def test_nothing_runs_while_the_queue_of_all_nodes_cannot_be_reached() -> None:
    nodes, ended = Nodes(1), []
    nodes.network.cut_off.add(0)
    async with nodes.clients() as (one,), calling(one) as begin:
        await begin("edit", "a", "a1", ended)
    assert [type(each) for each in ended] == [SharedStateUnavailable]
    assert nodes.begun == []


async def test_nodes_of_a_file_take_turns(tmp_path: Path) -> None:
    shops = [Workshop(SqliteShared(tmp_path / "state.db"), nodes=True) for _ in range(2)]
    shops[1].begun, shops[1].gates = shops[0].begun, shops[0].gates
    async with Client(shops[0].server) as one, Client(shops[1].server) as two, trio.open_nursery() as nursery:
        nursery.start_soon(one.call_tool, "edit", {"path": "a", "name": "a1"})
        await until(lambda: shops[0].begun == ["a1"])
        nursery.start_soon(two.call_tool, "edit", {"path": "a", "name": "a2"})
        await until(lambda: bool(shops[1].server.tree().turns))
        shops[0].finish("a1", "a2")
    assert shops[0].begun == ["a1", "a2"]


class Arrived(NamedTuple):
    name: str
    tool: str


class Story:
    """A random course of calls, cancellations, deaths and cuts at some nodes, and what has to hold of it."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = random.Random(seed)
        self.nodes = Nodes(number, seed, self.random.random() < 0.7)
        self.number = number
        self.arrived: dict[str, list[Arrived]] = {}
        self.ended: dict[str, str] = {}
        self.scopes: dict[str, tuple[int, trio.CancelScope]] = {}
        # Calls whose node was cut off meanwhile: others may have taken their places away.
        self.cut: set[str] = set()

    async def run(self) -> None:
        async with self.nodes.clients() as clients, trio.open_nursery() as nursery:
            for step in range(self.random.randint(5, 30)):
                await self._act(step, clients, nursery)
                await trio.sleep(self.random.choice([0, 0, 0.3, 2, 20]))
            # A node that was cut off comes back.
            self.nodes.network.cut_off.clear()

    async def _act(self, step: int, clients: list[Client], nursery: trio.Nursery) -> None:
        network, drawn = self.nodes.network, self.random.random()
        alive = [each for each in range(self.number) if each not in network.dead | network.cut_off]
        if drawn < 0.08 and len(alive) > 1:
            self._die(self.random.choice(alive))
        elif drawn < 0.16 and len(alive) > 1:
            network.cut_off.add(node := self.random.choice(alive))
            self.cut |= {name for name, (of, _) in self.scopes.items() if of == node}
        elif drawn < 0.2:
            network.cut_off.clear()
        elif drawn < 0.3 and self.scopes:
            name = self.random.choice(sorted(self.scopes))
            self.ended.setdefault(name, "cancelled")
            self.scopes[name][1].cancel()
        else:
            node, path = self.random.choice(alive), self.random.choice("ab")
            name, tool = f"{path}{step}", self.random.choice(["edit", "edit", "read"])
            self.arrived.setdefault(path, []).append(Arrived(name, tool))
            scope = trio.CancelScope()
            self.scopes[name] = node, scope
            nursery.start_soon(self._call, clients[node], tool, path, name, scope)
            # It has its place: of two that come at the same moment to two nodes either may be first.
            await trio.sleep(1)

    def _die(self, node: int) -> None:
        self.nodes.network.dead.add(node)
        for name, (of, scope) in self.scopes.items():
            if of == node:
                self.ended.setdefault(name, "died")
                scope.cancel()

    async def _call(self, client: Client, tool: str, path: str, name: str, scope: trio.CancelScope) -> None:
        takes = self.random.choice([0, 0.1, 3, 40])

        async def finish() -> None:
            await self.nodes.shops[0].entered(name)
            await trio.sleep(takes)
            self.nodes.shops[0].finish(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            with scope:
                try:
                    await client.call_tool(tool, {"path": path, "name": name}, timeout=1e6, cap=1e6)
                    self.ended.setdefault(name, "answered")
                except RpcError as error:
                    self.ended.setdefault(name, type(error).__name__)
            nursery.cancel_scope.cancel()
        self.scopes.pop(name, None)


# In this one a ticket is left behind by a node that lives, and has another turn.
@pytest.mark.slow
@example(seed=1836, number=3)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), number=st.integers(1, 3))
def test_never_two_at_once_always_in_order_and_nobody_starves(seed: int, number: int) -> None:
    story = Story(seed, number)

    async def bounded() -> None:
        with trio.fail_after(100_000):
            await story.run()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
    nodes = story.nodes
    assert nodes.shops[0].met == []
    place = {name: each for each, name in enumerate(nodes.begun)}
    for arrived in story.arrived.values():
        # The calls of a node that was cut off may have lost their places.
        whole = [
            each for each in arrived if story.ended[each.name] == "answered" and each.name not in story.cut
        ]
        for earlier, later in combinations(whole, 2):
            assert place[earlier.name] < place[later.name] or earlier.tool == later.tool == "read"
    assert set(story.ended) == {each.name for arrived in story.arrived.values() for each in arrived}
