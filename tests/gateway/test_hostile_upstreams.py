"""An upstream that breaks the protocol costs its own answers, and nothing and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.errors import McpError, RpcError, UpstreamMisbehaved, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.breaker import THRESHOLD
from mcp_actors.gateway.callbacks import MAX_QUESTIONS_OF_CONNECTION
from mcp_actors.tasks import Tasks
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.memory import MemoryTransport
from tests.gateway.hostile import HostileUpstream, tool
from tests.gateway.upstreams import Behind
from tests.messages import discover_result

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@asynccontextmanager
async def behind(
    nursery: trio.Nursery, hostile: HostileUpstream, *, client: dict[str, Any], **settings: Any
) -> AsyncIterator[Client]:
    """Yields a client of a gateway in front of a hostile server."""
    way = await hostile.begin()
    settings = {"era": "legacy", "lazy": True, **settings}
    async with Client(Gateway([Upstream(name="u", target=lambda: way, **settings)]), **client) as of_gateway:
        yield of_gateway


@pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
async def test_a_change_that_is_reported_during_the_handshake_costs_nothing(
    nursery: trio.Nursery, kind: str
) -> None:
    hostile = HostileUpstream(nursery)

    async def initialize(channel: FrameChannel, message: dict[str, Any]) -> None:
        await hostile.send(
            channel, {"id": message["id"], "result": await hostile.initialize(channel, message)}
        )
        await hostile.send(channel, {"method": f"notifications/{kind}/list_changed"})

    hostile.answers["initialize"] = initialize
    with capture_logs() as logs:
        async with behind(nursery, hostile, client={}) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["u_x"]
    assert [each for each in logs if each["log_level"] in ("warning", "error")] == []


@pytest.mark.parametrize("arguments", ["as-is", "repair"])
@pytest.mark.parametrize("of_client", ["legacy", "modern"])
@pytest.mark.parametrize("of_server", ["legacy", "modern"])
@pytest.mark.parametrize("meta", [5, SERVER_INFO, [SERVER_INFO]], ids=str)
async def test_a_meta_that_is_no_object_is_misbehaviour_and_no_crash(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    meta: Any,
    of_server: str,
    of_client: str,
    arguments: str,
) -> None:
    hostile = HostileUpstream(
        nursery,
        server__discover=discover_result({"tools": {}}),
        tools__call={"content": [], "resultType": "complete", "_meta": meta},
    )
    counts = {"type": "object", "properties": {"count": {"type": "integer"}}}
    hostile.tools = [tool("x", inputSchema=counts)]
    with capture_logs() as logs:
        async with behind(
            nursery, hostile, client={"era": of_client}, era=of_server, arguments=arguments
        ) as client:
            for sent in ({"count": 3}, {"count": "3"}):
                with pytest.raises(UpstreamMisbehaved):
                    await client.call_tool("u_x", sent)
    assert [each for each in logs if each["log_level"] == "error"] == []


async def test_the_result_of_a_task_may_have_null_for_its_meta(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    hostile = HostileUpstream(nursery, tools__call={"content": [], "_meta": None})
    hostile.tools = [tool("x", execution={"taskSupport": "optional"})]
    way = await hostile.begin()
    gateway = Gateway([Upstream(name="u", target=lambda: way, era="legacy")], extensions=[Tasks()])
    async with Client(gateway, era="legacy") as client:
        task = await client.start_tool("u_x")
        assert task.id is not None
        assert (await task.result()).content == []


async def test_a_flood_of_questions_reaches_a_client_up_to_a_bound(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The session of a client is shared by all upstreams: one that asks without an end must not fill it."""
    asked = 0

    async def never(question: Any) -> Any:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()

    async def flood(channel: FrameChannel, message: dict[str, Any]) -> None:
        for number in range(3 * MAX_QUESTIONS_OF_CONNECTION):
            params = {"messages": [], "maxTokens": 1}
            question = {"id": f"q{number}", "method": "sampling/createMessage", "params": params}
            await hostile.send(channel, question)

    hostile = HostileUpstream(nursery, tools__call=flood)
    async with behind(nursery, hostile, client={"era": "legacy", "sampling": never}) as client:
        with pytest.raises(McpError):
            await client.call_tool("u_x")
        refused = [each for each in hostile.received if "error" in each]
        assert asked == MAX_QUESTIONS_OF_CONNECTION
        assert len(refused) >= 2 * MAX_QUESTIONS_OF_CONNECTION
        assert {each["error"]["code"] for each in refused[:MAX_QUESTIONS_OF_CONNECTION]} == {429}


async def test_an_attempt_to_connect_ends_with_the_session_that_it_is_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Else clients that come and go would start processes of a slow server until nobody else gets one."""

    async def never(channel: FrameChannel, message: dict[str, Any]) -> None:
        return None

    hostile = HostileUpstream(nursery, initialize=never)
    way = await hostile.begin()
    gateway = MemoryTransport()
    upstream = Upstream(name="u", target=lambda: way, era="legacy", lazy=True, sessions="own")
    await nursery.start(Gateway([upstream]).serve, gateway)
    for _ in range(3):
        async with Client(gateway, era="legacy") as client:
            with trio.move_on_after(1):
                await client.call_tool("u_x")
            assert hostile.open == 1
        await trio.sleep(1)
        assert hostile.open == 0
    hostile.answers["initialize"] = hostile.initialize
    hostile.answers["tools/call"] = {"content": []}
    async with Client(gateway, era="legacy") as client:
        assert (await client.call_tool("u_x")).content == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/{}?k={}", "ws://user:{}@127.0.0.1:9/{}"])
async def test_no_part_of_a_url_that_may_be_a_key_is_shown(url: str) -> None:
    """Some services put the key into the path."""
    upstream = Upstream(name="u", target=url.format("s3cret", "s3cret"), lazy=True, era="modern")
    gateway = Gateway([upstream])
    with capture_logs() as logs:
        async with Client(gateway) as client:
            with pytest.raises(UpstreamUnavailable) as refused:
                await client.call_tool("u_x")
            tree = str(gateway.tree())
    assert "127.0.0.1:9/..." in tree
    assert any("127.0.0.1:9/..." in str(each) for each in logs)
    assert "s3cret" not in str(logs) + tree + repr(refused.value) + repr(upstream)


@pytest.mark.parametrize("prefix", [None, ""])
async def test_a_gateway_that_is_its_own_upstream_comes_to_an_end(
    nursery: trio.Nursery, autojump_clock: MockClock, prefix: str | None
) -> None:
    """A loop fills the bounds of the upstream and then unwinds; its own tools go on."""
    way = MemoryTransport()
    gateway = Gateway([Upstream(name="u", target=lambda: way, prefix=prefix)])

    @gateway.tool
    async def own() -> str:
        """Is no upstream's."""
        return "own"

    await nursery.start(gateway.serve, way)
    async with Client(way) as client:
        for name in ("u_" * 400 + "own", "nobody_has_it") if prefix is None else ("nobody_has_it",):
            with pytest.raises(RpcError):
                await client.call_tool(name)
        assert (await client.call_tool("own")).text == "own"
    (upstream,) = gateway.tree().upstreams
    assert upstream.in_flight == 0
    assert upstream.connections <= 100


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("server_era", ["legacy", "modern"])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    nursery: trio.Nursery, autojump_clock: MockClock, era: str, server_era: str
) -> None:
    """They leave while the upstream is connected to, while they are asked for, listed or called, and while it ends."""
    slow = Behind(nursery)
    await slow.come()

    class Slow(MemoryTransport):
        @asynccontextmanager
        async def connect(self) -> AsyncIterator[FrameChannel]:
            await trio.sleep(0.3)
            async with slow.connect() as channel:
                yield channel

    way = MemoryTransport()
    upstream = Upstream(name="u", target=lambda: Slow(), era=server_era, lazy=True, sessions="own")
    gateway = Gateway([upstream])
    await nursery.start(gateway.serve, way)

    async def leave_after(seconds: float, turn: int) -> None:
        with trio.move_on_after(seconds):
            async with Client(way, era=era) as client:
                if turn % 3 == 0:
                    assert [each.name async for each in client.tools()]
                else:
                    await client.call_tool("u_wait", {"seconds": 0.4 * (turn % 3)})

    async with trio.open_nursery() as clients:
        for turn in range(40):
            clients.start_soon(leave_after, 0.03 * turn, turn)
    await trio.sleep(10)
    (found,) = gateway.tree().upstreams
    assert (slow.open, found.connections, found.in_flight, found.callers) == (0, 0, 0, 0)
    assert slow.connects > 10
    async with Client(way, era=era) as client:
        assert (await client.call_tool("u_add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_a_caller_presents_reaches_no_upstream(nursery: trio.Nursery, era: str) -> None:
    seen: list[str] = []
    server = Server("behind")

    def look(ctx: Context) -> str:
        """Notes what comes with a call."""
        assert ctx.request is not None
        seen.extend([str(dict(ctx.request.headers)), str(ctx.meta), str(ctx.request)])
        return "seen"

    server.add_tool(look, name="look", inline=True)
    (behind_it,) = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
    gateway = Gateway([Upstream(name="u", target=behind_it, era=era)])
    (url,) = await nursery.start(gateway.serve, "http://127.0.0.1:0/mcp")
    headers = {"authorization": "Bearer s3cret", "cookie": "a=s3cret", "x-api-key": "s3cret"}
    async with Client(HttpClientTransport(url, headers=headers), era=era) as client:
        assert (await client.call_tool("u_look")).text == "seen"
    assert seen
    assert "s3cret" not in str(seen)


async def test_a_client_that_crashes_its_own_servers_closes_the_upstream_to_nobody_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Each session has a server of its own, which its first call ends: that says nothing of the others' servers."""

    async def crash(channel: FrameChannel, message: dict[str, Any]) -> Any:
        if message["params"]["arguments"].get("crash"):
            await channel.aclose()
            return None
        return {"content": []}

    hostile = HostileUpstream(nursery, tools__call=crash)
    way = await hostile.begin()
    gateway = MemoryTransport()
    upstream = Upstream(name="u", target=lambda: way, era="legacy", lazy=True)
    await nursery.start(Gateway([upstream]).serve, gateway)
    for _ in range(2 * THRESHOLD):
        async with Client(gateway, era="legacy") as client:
            with pytest.raises(UpstreamUnavailable, match="lost during the call"):
                await client.call_tool("u_x", {"crash": True})
    async with Client(gateway, era="legacy") as client:
        assert (await client.call_tool("u_x", {})).content == []


async def test_a_client_whose_capabilities_a_server_refuses_closes_it_to_nobody_else(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A connection for one client declares what that declares, so a refused handshake may be the client's doing."""

    async def refuse(channel: FrameChannel, message: dict[str, Any]) -> Any:
        if "roots" not in message["params"]["capabilities"]:
            return await hostile.initialize(channel, message)
        await hostile.send(channel, {"id": message["id"], "error": {"code": -32602, "message": "no"}})
        return None

    hostile = HostileUpstream(nursery, initialize=refuse, tools__call={"content": []})
    way = await hostile.begin()
    gateway = MemoryTransport()
    upstream = Upstream(name="u", target=lambda: way, era="legacy", lazy=True)
    await nursery.start(Gateway([upstream]).serve, gateway)
    for _ in range(2 * THRESHOLD):
        async with Client(gateway, era="legacy", roots=["file:///x"]) as client:
            with pytest.raises(UpstreamUnavailable, match="cannot be connected to"):
                await client.call_tool("u_x")
    async with Client(gateway, era="legacy") as client:
        assert (await client.call_tool("u_x")).content == []
