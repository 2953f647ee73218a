"""A request goes through a gateway to its server, and the result comes back."""

from __future__ import annotations

import pytest

from mcp_actors import Client, Server
from mcp_actors.errors import RpcError, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream

PAIRS = [(client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")]


def make_server() -> Server:
    server = Server("behind")

    @server.tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    return server


@pytest.mark.parametrize(("client_era", "server_era"), PAIRS)
async def test_a_call_reaches_the_server_whose_prefix_its_name_has(client_era: str, server_era: str) -> None:
    gateway = Gateway([Upstream(name="sums", target=make_server(), era=server_era)])
    gateway.add_tool(lambda: "mine", name="own", description="Its own.")
    async with Client(gateway, era=client_era) as client:
        assert [tool.name async for tool in client.tools()] == ["own", "sums_add"]
        result = await client.call_tool("sums_add", {"a": 1, "b": 2})
        assert result.text == "3"
        assert (await client.call_tool("own")).text == "mine"
        with pytest.raises(RpcError, match="unknown tool: none_add"):
            await client.call_tool("none_add")


async def test_a_server_that_is_away_costs_its_own_tools_alone() -> None:
    away = Upstream(name="away", target="stdio:false")
    gateway = Gateway([away, Upstream(name="sums", target=make_server())])
    async with Client(gateway) as client:
        with pytest.raises(UpstreamUnavailable, match="'away' is not available"):
            await client.call_tool("away_add", {"a": 1, "b": 2})
        result = await client.call_tool("sums_add", {"a": 1, "b": 2})
        assert result.text == "3"
