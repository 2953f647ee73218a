"""Calls with keys through a gateway: it keeps the answers of servers that keep none, and passes keys on to others."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.errors import (
    ConfigurationError,
    KeyConflict,
    LocalProtocolError,
    RpcError,
    UpstreamUnavailable,
)
from mcp_actors.extensions import IDEMPOTENCY, KEY
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from tests.gateway.hostile import HostileUpstream, tool
from tests.gateway.worlds import IN_MEMORY, OVER_HTTP, World
from tests.server.asking import FORM

DAY = timedelta(hours=24)


class Bank:
    """A server behind a gateway that notes what it did, and with which keys."""

    def __init__(self, kept: timedelta | None = None) -> None:
        self.server = Server("bank", mask_errors=False)
        self.done: list[Any] = []
        self.keys: list[Any] = []
        self.begun, self.gate = trio.Event(), trio.Event()
        options: dict[str, Any] = {} if kept is None else {"idempotent": kept}

        @self.server.tool(**options)
        async def transfer(cents: int, ctx: Context) -> str:
            self.done.append(cents)
            self.keys.append(ctx.meta.get(KEY))
            return f"number {len(self.done)}"

        @self.server.tool(**options)
        async def asks(ctx: Context) -> str:
            self.done.append("asks")
            answer = await ctx.elicit("street please", FORM)
            assert answer.content is not None
            return str(answer.content["name"])

        @self.server.tool(**options)
        async def slow() -> str:
            self.done.append("slow")
            self.begun.set()
            await self.gate.wait()
            return "slowly"


async def answer(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"name": question.message.split()[0]})


@pytest.mark.parametrize("world", IN_MEMORY + OVER_HTTP, ids=str)
async def test_a_gateway_keeps_answers_of_a_server_that_keeps_none(world: World) -> None:
    bank = Bank()
    async with world.connected(
        bank.server, settings={"idempotent": {"tr*": DAY, "asks": DAY}}, elicitation=answer
    ) as client:
        await client.list_tools()
        assert IDEMPOTENCY in (client.server_capabilities.extensions or {})
        for _ in range(2):
            assert await client.call_tool("x_transfer", {"cents": 5}, key="a", returns=str) == "number 1"
        with pytest.raises(KeyConflict):
            await client.call_tool("x_transfer", {"cents": 6}, key="a")
        with pytest.raises(RpcError, match="keeps no answers"):
            await client.call_tool("x_slow", key="a")
        for _ in range(2):
            assert await client.call_tool("x_asks", key="a", returns=str) == "street"
    # The key says nothing to such a server.
    assert bank.keys == [None]
    assert bank.done.count(5) == 1


@pytest.mark.parametrize("world", IN_MEMORY + OVER_HTTP, ids=str)
async def test_a_gateway_passes_keys_on(world: World) -> None:
    bank = Bank(DAY)
    async with world.connected(bank.server, elicitation=answer) as client:
        await client.list_tools()
        for _ in range(2):
            assert await client.call_tool("x_transfer", {"cents": 5}, key="a", returns=str) == "number 1"
        for _ in range(2):
            assert await client.call_tool("x_asks", key="a", returns=str) == "street"
    (key,) = bank.keys
    # All callers of the gateway are one caller of the server, so that the key is not theirs.
    assert isinstance(key, str)
    assert key != "a"
    assert bank.done.count(5) == 1


async def test_each_caller_of_a_gateway_has_keys_of_its_own() -> None:
    bank = Bank(DAY)
    gateway = Gateway([Upstream(name="x", target=bank.server)])
    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", authenticate=lambda request: request.headers["x-who"]
    )
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(gateway.serve, transport)
        texts = []
        for who in ("ann", "bob", "ann"):
            async with Client(HttpClientTransport(str(where), headers={"x-who": who})) as client:
                await client.list_tools()
                texts.append(await client.call_tool("x_transfer", {"cents": 5}, key="a", returns=str))
        nursery.cancel_scope.cancel()
    assert texts == ["number 1", "number 2", "number 1"]
    assert len(set(bank.keys)) == 2


async def test_a_call_whose_caller_has_gone_goes_on() -> None:
    bank = Bank()
    async with World(client="modern", server="modern", binding="http").connected(
        bank.server, settings={"idempotent": {"*": DAY}}
    ) as client:
        await client.list_tools()
        lost = trio.CancelScope()

        async def call() -> None:
            with lost:
                await client.call_tool("x_slow", key="a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await bank.begun.wait()
            lost.cancel()
        bank.gate.set()
        assert await client.call_tool("x_slow", key="a", returns=str) == "slowly"
    assert bank.done == ["slow"]


@pytest.mark.parametrize("world", IN_MEMORY, ids=str)
async def test_a_gateway_without_keys_declares_none(world: World) -> None:
    bank = Bank()
    async with world.connected(bank.server) as client:
        await client.list_tools()
        assert IDEMPOTENCY not in (client.server_capabilities.extensions or {})
        with pytest.raises(LocalProtocolError, match="takes no keys"):
            await client.call_tool("x_transfer", {"cents": 5}, key="a")
    assert bank.done == []


async def test_a_gateway_that_presents_its_upstream_keeps_answers_too() -> None:
    bank = Bank()
    gateway = Gateway(
        [Upstream(name="x", target=bank.server, prefix="", idempotent={"*": DAY})], presents=True
    )
    async with Client(gateway) as client:
        await client.list_tools()
        for _ in range(2):
            assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "number 1"
    assert bank.done == [5]


@pytest.mark.parametrize("kept", [True, "a day", -5, 0, None, 1e300])
async def test_what_a_server_says_of_its_answers_is_checked(kept: Any) -> None:
    server = Server("s")
    server.add_tool(lambda: "done", name="x", meta={"mcp-actors/idempotent": kept})
    server.add_tool(lambda: "done", name="kept", idempotent=DAY)
    async with Client(Gateway([Upstream(name="g", target=server)])) as client:
        await client.list_tools()
        if kept == 1e300:
            # The server refuses it, since it has no such rule itself.
            with pytest.raises(RpcError, match="keeps no answers"):
                await client.call_tool("g_x", key="a")
        else:
            with pytest.raises(RpcError, match="tool 'g_x' keeps no answers"):
                await client.call_tool("g_x", key="a")


def test_a_configuration_says_for_how_long(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"

    def write(idempotent: Any) -> None:
        entry = {"url": "http://127.0.0.1:1/mcp", "idempotent": idempotent}
        path.write_text(json.dumps({"mcpServers": {"bank": entry}}))

    write({"transfer": 3600, "create_*": 0.5})
    (entry,) = read_server_entries(path)
    assert entry.gateway.given()["idempotent"] == {
        "transfer": timedelta(hours=1),
        "create_*": timedelta(seconds=0.5),
    }
    for wrong in ({"transfer": 0}, {"transfer": "1h"}, ["transfer"], {"transfer": True}):
        write(wrong)
        with pytest.raises(ConfigurationError, match="an object of names and seconds"):
            read_server_entries(path)


@pytest.mark.parametrize("takes_keys", [True, False], ids=["takes keys still", "takes none any more"])
async def test_a_call_that_was_lost_is_made_again_where_its_key_counts(takes_keys: bool) -> None:
    async with trio.open_nursery() as nursery:

        async def call(channel: FrameChannel, message: dict[str, Any]) -> Any:
            calls.append(message["params"]["_meta"].get(KEY))
            if len(calls) > 1:
                return {"content": [{"type": "text", "text": "done"}]}
            # The server dies in the middle, and another version of it takes its place.
            if not takes_keys:
                upstream.capabilities, upstream.tools = {"tools": {}}, [tool("x")]
            await channel.aclose()
            return None

        calls: list[Any] = []
        upstream = HostileUpstream(nursery, tools__call=call)
        upstream.capabilities = {"tools": {}, "extensions": {IDEMPOTENCY: {}}}
        upstream.tools = [tool("x", _meta={"mcp-actors/idempotent": 60})]
        gateway = Gateway([Upstream(name="h", target=await upstream.begin(), era="legacy")])
        async with Client(gateway) as client:
            await client.list_tools()
            if takes_keys:
                assert await client.call_tool("h_x", key="a", returns=str) == "done"
                assert len(calls) == 2
                assert calls[0] == calls[1]
            else:
                with pytest.raises(UpstreamUnavailable, match="takes no keys any more"):
                    await client.call_tool("h_x", key="a")
                assert len(calls) == 1
        nursery.cancel_scope.cancel()
