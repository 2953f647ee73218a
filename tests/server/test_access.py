"""Scopes and the end of an access in the engine, for bindings that carry frames alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.client import Event
from mcp_actors.errors import InsufficientScope, LocalProtocolError, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_actors.testing import connected_pair, raw_client
from mcp_actors.types import Resource
from mcp_transports.memory import MemoryTransport
from tests.nodes import LocalNodes
from tests.scripted_peers import EVERY, LEGACY, MODERN, ask, begin, scripted
from tests.server.stocks import ID, Stocks, market, stocks, watcher

ERAS = ["2025-11-25", "2026-07-28"]


class Authenticating(MemoryTransport):
    """A binding of somebody else that authenticates its peers."""

    def __init__(self, principal: Principal | None) -> None:
        super().__init__()
        self.principal = principal

    async def serve(
        self, handler: Any, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def as_principal(channel: FrameChannel, principal: Principal | None = None) -> None:
            await handler(channel, self.principal)

        await super().serve(as_principal, task_status=task_status)


def make_server() -> Server:
    server = Server("scoped")

    @server.tool(scopes=["files:write"])
    async def store(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.subject

    @server.middleware
    async def told(ctx: Context, call_next: Any) -> Any:
        """Sees requests that may be served only."""
        assert ctx.method != "tools/call" or ctx.principal is None or "files:write" in ctx.principal.scopes
        return await call_next()

    return server


@asynccontextmanager
async def client_of(principal: Principal | None, era: str) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        transport = Authenticating(principal)
        await nursery.start(make_server().serve, transport)
        async with Client(transport, era=era) as client:
            yield client
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ERAS)
async def test_a_binding_that_authenticates_nobody_has_no_scopes_to_check(era: str) -> None:
    async with client_of(None, era) as client:
        assert (await client.call_tool("store")).text == "nobody"


@pytest.mark.parametrize("era", ERAS)
async def test_the_scopes_of_an_authenticated_peer_count_whatever_the_binding(era: str) -> None:
    async with client_of(Principal("ann", scopes=["files:write"]), era) as client:
        assert (await client.call_tool("store")).text == "ann"
    async with client_of(Principal("ann", scopes=["files:read"]), era) as client:
        with pytest.raises(InsufficientScope) as refusal:
            await client.call_tool("store")
        assert refusal.value.data == {"reason": "insufficient_scope", "scopes": ["files:write"]}


def make_shelf(**options: Any) -> Server:
    """Something of each kind with and without scopes, two on a page."""
    return shelved(Server("shelf", page_size=2, **options))


def shelved(server: Server) -> Server:
    async def nothing() -> str:
        return ""

    async def found(name: str) -> str:
        return name

    def listed(scheme: str) -> Any:
        return lambda: [Resource(f"{scheme}://listed", "listed")]

    several: tuple[list[str], ...] = ([], ["a"], ["b"], ["a", "b"], [])
    for number, scopes in enumerate(several):
        server.add_tool(nothing, name=f"t{number}", scopes=scopes)
        server.add_prompt(nothing, name=f"p{number}", scopes=scopes)
        server.add_resource(f"r{number}://x", nothing, scopes=scopes)
        server.add_resource(f"l{number}://{{name}}", found, scopes=scopes, list=listed(f"l{number}"))
    return server


async def shown(client: Client) -> tuple[list[str], ...]:
    return (
        [each.name async for each in client.tools()],
        [each.name async for each in client.prompts()],
        sorted([each.uri.partition(":")[0] async for each in client.resources()]),
        [each.uri_template.partition(":")[0] async for each in client.resource_templates()],
    )


def numbered(kinds: str, numbers: str) -> list[str]:
    return [f"{kind}{number}" for kind in kinds for number in numbers]


@pytest.mark.parametrize("is_gateway", [False, True])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("scopes", "numbers"),
    [(None, "01234"), ([], "04"), (["a"], "014"), (["b", "c"], "024"), (["a", "b"], "01234")],
)
async def test_what_a_caller_may_not_use_is_not_listed(
    scopes: list[str] | None, numbers: str, era: str, is_gateway: bool
) -> None:
    transport = Authenticating(None if scopes is None else Principal("ann", scopes=scopes))
    gateway = Gateway([Upstream(name="u", target=Server("u"))], page_size=2)
    server = shelved(gateway) if is_gateway else make_shelf()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport, era=era) as client:
            lists = tuple(numbered(kinds, numbers) for kinds in ("t", "p", "lr", "l"))
            assert await shown(client) == lists
        nursery.cancel_scope.cancel()


async def test_all_is_listed_if_the_program_wants_that_and_a_call_says_what_is_missing() -> None:
    transport = Authenticating(Principal("ann"))
    async with trio.open_nursery() as nursery:
        await nursery.start(make_shelf(lists_all=True).serve, transport)
        async with Client(transport) as client:
            assert await shown(client) == tuple(numbered(kinds, "01234") for kinds in ("t", "p", "lr", "l"))
            with pytest.raises(InsufficientScope) as caught:
                await client.call_tool("t3")
            assert caught.value.data == {"reason": "insufficient_scope", "scopes": ["a", "b"]}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("lists_all", "suggested"), [(False, ""), (True, "; did you mean 'store'?")])
async def test_a_wrong_name_is_answered_without_the_tools_that_a_caller_may_not_use(
    lists_all: bool, suggested: str
) -> None:
    server = Server("scoped", lists_all=lists_all)
    server.add_tool(lambda: None, name="store", scopes=["files:write"])
    transport = Authenticating(Principal("ann"))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport) as client:
            with pytest.raises(RpcError) as caught:
                await client.call_tool("stores")
            assert caught.value.message == f"unknown tool: stores{suggested}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("lists_all", "scope"), [(False, "private"), (True, "public")])
async def test_a_list_that_differs_by_caller_is_not_kept_for_others(lists_all: bool, scope: str) -> None:
    server = make_shelf(cache_scope="public", lists_all=lists_all)
    async with connected_pair(server, era="modern") as client:
        pages: list[Any] = [await client.list_tools(), await client.list_prompts()]
        pages += [await client.list_resources(), await client.list_resource_templates()]
        assert [each.cache_scope for each in pages] == [scope] * 4
        assert (await client.read_resource("r0://x")).cache_scope == "public"


async def test_a_subscription_ends_some_time_after_its_access(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    async with (
        client_of(Principal("ann", expires_at=time.time() + 100), "2026-07-28") as client,
        client.listen(tools=True) as listener,
    ):
        with trio.fail_after(1000):
            assert [event async for event in listener] == []
        assert trio.current_time() - began == pytest.approx(100 + STREAM_GRACE, abs=5)


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ("files:read", "write a list of scopes"),
        (["two words"], "such as"),
        ([""], "such as"),
        ([1], "such as"),
    ],
)
def test_scopes_are_checked_when_they_are_written(scopes: Any, message: str) -> None:
    server = Server("scoped")
    for add in (server.tool, server.prompt):
        with pytest.raises(TypeError, match=message):
            add(scopes=scopes)(lambda: "never")


def test_what_a_principal_is() -> None:
    ann = Principal("ann", "https://as.example.org", "an app", ["a"], {"email": "secret"}, 100.0)
    assert ann == Principal("ann", "https://as.example.org", "an app", ["b"])
    others = [
        Principal("ann"),
        Principal("ann", "https://as.example.org"),
        Principal("ann", "https://as.example.org", "other"),
    ]
    assert all(ann != other and ann.key != other.key for other in others)
    assert "secret" not in repr(ann)
    assert (ann.seconds_left(90.0), ann.seconds_left(500.0)) == (10 + STREAM_GRACE, STREAM_GRACE)
    assert others[0].seconds_left(500.0) == float("inf")


# -- Capabilities: what is declared exists, what is not declared does not, on both sides and at run time ---

GATED: dict[str, tuple[str, dict[str, Any]]] = {
    "tools/list": ("tools", {}),
    "tools/call": ("tools", {"name": "x"}),
    "resources/list": ("resources", {}),
    "resources/templates/list": ("resources", {}),
    "resources/read": ("resources", {"uri": "x://a"}),
    "prompts/list": ("prompts", {}),
    "prompts/get": ("prompts", {"name": "x"}),
}
SUBSCRIBING = {
    "resources/subscribe": ("resources", {"uri": "x://a"}),
    "resources/unsubscribe": ("resources", {"uri": "x"}),
}


async def declared(peer: Any, version: str) -> dict[str, Any]:
    if version == MODERN:
        capabilities: dict[str, Any] = (await ask(peer, version, "d", "server/discover"))["result"][
            "capabilities"
        ]
        return capabilities
    result: dict[str, Any] = await peer.initialize(version)
    return dict(result["capabilities"])


@pytest.mark.parametrize("version", EVERY)
async def test_a_server_without_anything_declares_nothing_and_answers_nothing(version: str) -> None:
    async with raw_client(Server("empty")) as peer:
        assert await declared(peer, version) == {"logging": {}}
        gated = GATED if version == MODERN else {**GATED, **SUBSCRIBING}
        for method, (_, params) in gated.items():
            error = (await ask(peer, version, method, method, params))["error"]
            assert error["code"] == -32601, method


@pytest.mark.parametrize("version", EVERY)
async def test_a_server_declares_what_it_answers(version: str) -> None:
    server = Server("full")
    server.add_tool(lambda: None, name="x")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_prompt(lambda: "p", name="x")
    async with raw_client(server) as peer:
        expected: dict[str, Any] = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "logging": {},
        }
        if version != "2024-11-05":
            expected["completions"] = {}
        assert await declared(peer, version) == expected
        for method, (_, params) in GATED.items():
            assert "result" in await ask(peer, version, method, method, params), method


@pytest.mark.parametrize("version", EVERY)
async def test_what_a_session_was_promised_stays(version: str) -> None:
    """A list that became empty is an empty list; a client need not expect its server to unlearn a method."""
    server = Server("shrinking")
    server.add_tool(lambda: None, name="x")
    server.add_resource("x://a", lambda: "a", name="a")
    server.add_prompt(lambda: "p", name="x")
    async with raw_client(server) as peer:
        before = await declared(peer, version)
        server.remove_tool("x")
        server.remove_resource("x://a")
        server.remove_prompt("x")
        for method, member in (
            ("tools/list", "tools"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
            ("prompts/list", "prompts"),
        ):
            assert (await ask(peer, version, method, method))["result"][member] == []
        assert (await ask(peer, version, 1, "tools/call", {"name": "x"}))["error"]["code"] == -32602
    async with raw_client(server) as peer:
        assert await declared(peer, version) == before


@pytest.mark.parametrize("version", EVERY)
async def test_what_is_added_while_serving_is_declared_and_answered(version: str) -> None:
    server = Server("growing")
    async with raw_client(server) as peer:
        await begin(peer, version)
        assert (await ask(peer, version, 1, "tools/list"))["error"]["code"] == -32601
        server.add_tool(lambda: None, name="x")
        assert [tool["name"] for tool in (await ask(peer, version, 2, "tools/list"))["result"]["tools"]] == [
            "x"
        ]
    async with raw_client(server) as peer:
        assert "tools" in await declared(peer, version)


async def test_completion_of_the_first_revision_needs_no_capability() -> None:
    server = Server("s")
    server.add_prompt(lambda: "p", name="p")
    ref = {"type": "ref/prompt", "name": "nobody"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    async with raw_client(server) as peer:
        assert "completions" not in (await peer.initialize("2024-11-05"))["capabilities"]
        assert (await peer.request(1, "completion/complete", params))["error"]["code"] == -32602


async def test_declarations_of_the_users_own_pass_through() -> None:
    server = Server("s", extensions={"acme/x": {"on": True}}, experimental={"y": {}})
    async with raw_client(server) as peer:
        for version in ("2025-11-25", MODERN):
            capabilities = await declared(peer, version)
            assert capabilities["extensions"] == {"acme/x": {"on": True}}
            assert capabilities["experimental"] == {"y": {}}


# -- the client's side ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_a_client_does_not_ask_for_what_was_not_declared(version: str) -> None:
    async with Client(Server("empty", versions=(version,))) as client:
        sent = client.tree().link.frames_out
        for attempt in (
            client.list_tools(),
            client.call_tool("x"),
            client.list_resources(),
            client.list_resource_templates(),
            client.read_resource("x://a"),
            client.list_prompts(),
            client.get_prompt("x"),
            client.subscribe_resource("x://a"),
        ):
            with pytest.raises(LocalProtocolError):
                await attempt
        assert client.tree().link.frames_out == sent


async def test_methods_of_the_other_era_do_not_exist() -> None:
    async with scripted(MODERN) as (client, _):
        with pytest.raises(LocalProtocolError, match=MODERN):
            await client.subscribe_resource("x://a")
    server = Server("s")
    async with Client(server, era="modern") as client:
        assert (await client.request("server/discover"))["supportedVersions"] == list(EVERY)


@pytest.mark.parametrize("version", LEGACY)
async def test_questions_that_were_not_declared_are_refused(version: str) -> None:
    async with scripted(version) as (_, peer):
        for method in (
            "roots/list",
            "sampling/createMessage",
            "elicitation/create",
            "acme/thing",
            "tools/list",
        ):
            answer = await peer.request(method, method, {"messages": [], "maxTokens": 1, "message": "?"})
            # A method that the revision has is refused for its mode, which was not declared.
            has_modes = method == "elicitation/create" and version >= "2025-06-18"
            assert answer["error"]["code"] == (-32602 if has_modes else -32601)
        assert (await peer.request("p", "ping"))["result"] == {}


# -- Two servers that share a bus: what changes at one is heard by those who listen at the other ---------

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
